#pragma once
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// What the ranks of a tensor-parallel group do together between a layer's ops. Each call puts its
/// work at the end of the queue and returns: what is enqueued after it sees the result. Every rank
/// of the group enqueues the same calls in the same order.
class GroupSums {
 public:
  virtual ~GroupSums() = default;
  virtual int size() const = 0;
  virtual int rank() const = 0;
  /// x becomes the sum over the group, with the same bits on every rank. x f32, bf16 or f16; sums
  /// are f32, rounded once.
  virtual void all_reduce(Queue& queue, MutView x) = 0;
  /// x (n, C) as in all_reduce, where each rank has some rows (ModelConfig::TensorParallel::rows):
  /// its own become the sum, the others nothing in particular.
  virtual void reduce_scatter_rows(Queue& queue, MutView x) = 0;
  /// x (n, C), f32, bf16 or f16: every rank has filled its own rows, and has all of them.
  virtual void gather_rows(Queue& queue, MutView x) = 0;
  /// all (size(), ...) f32: every rank has filled its own part all[rank()], and has all of them.
  virtual void all_gather(Queue& queue, MutView all) = 0;
  /// As all_reduce of f32, over the ranks that have the same key heads (ModelConfig::n_kv_sharers).
  virtual void all_reduce_kv(Queue& queue, MutView x) = 0;
};

}  // namespace llm
