#include "schedules/pipeline_buffers.h"

#include <algorithm>
#include <vector>

#include "schedules/simulation.h"
#include "src/base/check.h"

namespace llm {
namespace {

/// When a microbatch's backward on a stage begins and ends, as far as others wait for it.
struct Span {
  double begin = 0;
  double end = 0;
};
using Spans = std::vector<std::vector<Span>>;  // by stage and microbatch

Spans backward_spans(const Pipeline& pipeline) {
  const Simulation simulation = simulate(pipeline);
  CHECK_CONTRACT(simulation.finished(), "a pipeline's schedules wait for each other in no circle");
  const auto n = static_cast<std::size_t>(pipeline.n_microbatches);
  Spans spans(static_cast<std::size_t>(pipeline.n_stages()), std::vector<Span>(n));
  for (int rank = 0; rank < pipeline.n_ranks; ++rank) {
    for (const TimedAction& timed : simulation.actions[static_cast<std::size_t>(rank)]) {
      const Action::Kind kind = timed.action.kind;
      if (kind != Action::Kind::backward && kind != Action::Kind::backward_input) continue;
      const int stage = pipeline.stage_of({rank, timed.action.chunk});
      spans[static_cast<std::size_t>(stage)][static_cast<std::size_t>(timed.action.microbatch)] = {
          timed.begin, timed.end};
    }
  }
  return spans;
}

/// Most microbatches at a time from the begin of their backward in `from` to its end in `to`.
int most_between(const std::vector<Span>& from, const std::vector<Span>& to) {
  int most = 1;
  for (const Span& begun : from) {
    int waiting = 0;
    for (std::size_t m = 0; m < from.size(); ++m) {
      waiting += from[m].begin <= begun.begin && to[m].end > begun.begin ? 1 : 0;
    }
    most = std::max(most, waiting);
  }
  return most;
}

}  // namespace

PipelineBuffers pipeline_buffers(const Pipeline& pipeline) {
  const Spans spans = backward_spans(pipeline);
  const int last = pipeline.n_stages() - 1;
  PipelineBuffers buffers;
  for (int stage = 0; stage <= last; ++stage) {
    // On one rank, a gradient stays in its buffer from stage to stage.
    const int rank = pipeline.place_of(stage).rank;
    int end = stage;
    while (end > 0 && pipeline.place_of(end - 1).rank == rank) --end;
    const int from = std::min(stage + 1, last);
    buffers.gradients = std::max(
        buffers.gradients,
        most_between(spans[static_cast<std::size_t>(from)], spans[static_cast<std::size_t>(end)]));
  }
  buffers.embedding_gradients = most_between(spans.back(), spans.front());
  return buffers;
}

}  // namespace llm
