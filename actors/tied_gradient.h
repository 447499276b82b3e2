#pragma once
#include <map>
#include <vector>

#include "actors/model_state.h"
#include "schedules/accumulation.h"
#include "tensor/queue.h"
#include "tensor/storage.h"

namespace llm {

/// The gradient of a tied embedding, on the rank of the head. A microbatch's part is one number
/// before any sum over microbatches or ranks: the head's backward writes a leaf, the embedding's,
/// which comes last, adds to it, and only then does the leaf join the summation tree. In a pipeline
/// the first stage's backward of a microbatch ends when the head is some microbatches ahead, so
/// several leaves wait at a time.
class TiedGradient {
 public:
  /// `steps` by microbatch, from tied_accumulation(); at most `n_pending` leaves wait at a time.
  TiedGradient(const ModelState& state, std::vector<AccumulationStep> steps, int n_pending);

  /// Where microbatch m's gradient is written, (V, C) f32: the same place until merge(m).
  MutView leaf(int m);
  /// Both uses have written: enqueues the tree's additions and frees what they free. Microbatches
  /// come in order. After the last one the sum is in gradient buffer 0.
  void merge(Queue& queue, int m);

 private:
  const std::vector<AccumulationStep> steps_;
  Storage extra_;
  std::vector<MutView> slots_;  // the first is the sum's place in gradient buffer 0
  std::vector<std::size_t> free_;
  std::map<int, std::size_t> leaves_;  // by microbatch
  std::vector<std::size_t> tree_;      // by the plan's buffer
};

/// The summation of a tied embedding: the tree, or one leaf after the other. (Adding in sequence
/// needs a leaf too, since the head of the next microbatch may come before this one's embedding.)
std::vector<AccumulationStep> tied_accumulation(const AccumulationPlan& plan);

/// Elements of (V, C) matrices that a TiedGradient needs beside the rank's gradient buffers.
int n_extra_leaves(const AccumulationPlan& plan, int n_pending);

}  // namespace llm
