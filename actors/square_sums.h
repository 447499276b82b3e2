#pragma once
#include <cstdint>
#include <vector>

#include "actors/model_state.h"
#include "schedules/collective.h"
#include "schedules/shards.h"
#include "src/comm/transport.h"
#include "src/rt/task.h"
#include "tensor/queue.h"
#include "tensor/storage.h"

namespace llm {

/// The sum of squares of a model's summed gradient, whoever holds which part: one sum a chunk of
/// 4,096 elements, by the rank that owns it; chunks added in order to one sum a parameter, and
/// these over the ranks that have a part of it each, data-parallel ones of spread experts and
/// tensor-parallel ones (what several have, one counts); and
/// these added in canonical order, on every rank alike. So neither pipeline nor shards change its
/// bits.
class SquareSums {
 public:
  struct Plan {
    /// By rank of the pipeline: which parameters it has (owned_parameters).
    std::vector<std::vector<std::size_t>> parameters_by_rank;
    /// By rank of the data-parallel group: which piece of the buckets it owns. One entry where
    /// every rank has all: then that group exchanges nothing.
    std::vector<int> piece_by_member = {0};
    int chunks_tag = 0;
    int tensor_tag = 0;
    int parameters_tag = 0;
    int experts_tag = 0;
  };
  /// `pipeline` are the ranks that hold the other stages, `owners` those with the other pieces,
  /// `tensor` those with the other parts of each parameter.
  SquareSums(Group& pipeline, Group& owners, Group& tensor, Plan plan, const ModelState& state);

  /// Enqueues the sums of what the rank owns of a bucket.
  void enqueue(Queue& queue, std::size_t bucket);
  /// Of all parameters, once everything that was enqueued has run.
  Task<double> total(std::int64_t step);

 private:
  Task<> gather_chunks(std::int64_t step);
  Task<> gather_parameters(std::int64_t step);
  /// Of spread experts' parameters, over the owners.
  Task<> sum_over_experts(std::vector<double>& by_parameter, std::int64_t step);
  Task<double> sum_over_tensor_group(const std::vector<double>& by_parameter, std::int64_t step);
  bool is_sharded() const { return plan_.piece_by_member.size() > 1; }

  Group& pipeline_;
  Group& owners_;
  Group& tensor_;
  const Plan plan_;
  const ModelState& state_;
  std::vector<Shard> shards_;                     // by member of the owners
  std::vector<std::int64_t> chunk_begin_;         // by spec: its first chunk in canonical order
  std::vector<std::vector<std::int64_t>> slots_;  // by bucket and owned piece: its first chunk sum
  Storage device_sums_;     // f64, on the device where gradients are: of the rank's own chunks
  Storage chunk_sums_;      // f64, by member and its pieces
  Storage expert_sums_;     // f64, by owner and parameter; empty where experts are not spread
  Storage tensor_sums_;     // f64, by rank of the tensor group and parameter; empty for one
  Storage parameter_sums_;  // f64, by rank of the pipeline and its parameters
  std::vector<GatherRound> chunk_gather_;
  std::vector<GatherRound> parameter_gather_;
};

/// Bytes of the sums of a rank's chunks, on its device where it computes there; and of them and
/// those of all parameters on the CPU: for --plan.
std::int64_t square_chunk_bytes(const ModelConfig& config, const LayerRanges& ranges);
std::int64_t square_sum_bytes(const ModelConfig& config, const LayerRanges& ranges);

}  // namespace llm
