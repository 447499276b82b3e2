#pragma once
#include "schedules/pipeline.h"

namespace llm {

/// How many tensors wait between the stages of a pipeline on the virtual clock of simulate(). With
/// at least so many buffers that run waits for none, so a rank that waits for a buffer can never
/// deadlock a schedule that is free of deadlocks without; more would only help ranks out of step.
struct PipelineBuffers {
  /// Gradients of one stage's output, from the begin of the next stage's backward to the end of its
  /// own (or that of the last stage before it on the same rank); the most over all stages.
  int gradients = 1;
  /// Microbatches whose backward has begun on the last stage and has not ended on the first.
  int embedding_gradients = 1;
  bool operator==(const PipelineBuffers&) const = default;
};

/// Throws ContractBroken for a schedule that deadlocks.
PipelineBuffers pipeline_buffers(const Pipeline& pipeline);

}  // namespace llm
