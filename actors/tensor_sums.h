#pragma once
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "actors/queued_calls.h"
#include "schedules/collective.h"
#include "src/comm/transport.h"
#include "src/model/group_sums.h"
#include "src/rt/task.h"
#include "tensor/storage.h"

namespace llm {

/// Carries out what the layers of a tensor-parallel group do together.
///
///   sends and receives  partial sums and statistics   to and from the group's ranks
///   holds               one call's receives, and its sum in f32 where x is not
class TensorSums : public GroupSums, public QueuedCalls {
 public:
  struct Plan {
    int tag = 0;
    std::int64_t max_elements = 0;     ///< of an all_reduce or reduce_scatter_rows of x
    std::int64_t row_width = 0;        ///< C where rows are cut, else 0
    std::int64_t max_kv_elements = 0;  ///< of an all_reduce_kv
    bool is_low = false;               ///< x is bf16 or f16
  };
  /// `kv` are the ranks of the group that have the same key heads. `reductions` runs the additions.
  TensorSums(Group& group, Group& kv, Queue& reductions, Plan plan);

  int size() const override { return group_.size(); }
  int rank() const override { return group_.index; }
  void all_reduce(Queue& queue, MutView x) override;
  void reduce_scatter_rows(Queue& queue, MutView x) override;
  void gather_rows(Queue& queue, MutView x) override;
  void all_gather(Queue& queue, MutView all) override;
  void all_reduce_kv(Queue& queue, MutView x) override;

 private:
  enum class Kind : std::uint8_t { reduce, reduce_rows, gather_rows, gather, reduce_kv };
  struct Call {
    Kind kind;
    MutView x;
  };
  /// Whose cuts a sum has, and whether it stays in pieces.
  enum class Pieces : std::uint8_t { even, rows };
  struct Reduction {
    ReduceScatterPlan scatter;
    std::vector<GatherRound> gather;
  };
  void enqueue(Queue& queue, Kind kind, MutView x);
  Task<> carry_out(std::int64_t key) override;
  /// The sum over all ranks, on each of them or each piece on its own; in f32 where x is not.
  Task<> reduce(Group& group, MutView x, Pieces pieces, std::int64_t key);
  Task<> gather(MutView all, const std::vector<std::int64_t>& cuts, std::int64_t key);
  Task<> pass_queue(std::int64_t key);
  /// Decided once for each size.
  const Reduction& reduction_of(const Group& group, Pieces pieces, std::int64_t n_elements);

  Group& group_;
  Group& kv_;
  Queue& reductions_;
  const Plan plan_;
  std::map<std::int64_t, Call> calls_;  // reached and not begun
  std::map<std::tuple<int, Pieces, std::int64_t>, Reduction> reductions_of_;
  Storage receives_;
  Storage sum_;
};

/// Bytes that a rank of a group of `size` holds for it: for --plan.
std::int64_t tensor_sums_bytes(int size, int n_kv_sharers, const TensorSums::Plan& plan);

}  // namespace llm
