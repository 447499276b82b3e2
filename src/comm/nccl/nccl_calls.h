#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "tensor/queue.h"

namespace llm {

/// What this project calls of NCCL, filled by the module that links it (nccl_module.cu). Calls
/// return NCCL's result codes. A communicator never blocks: what is in progress is asked for by
/// `state`. One that carries messages is of two ranks, a sender (0) and a receiver (1); one that
/// adds up vectors of f32 is of a group.
struct NcclCalls {
  using Id = std::array<std::byte, 128>;
  using Communicator = void*;
  static constexpr int success = 0;
  static constexpr int in_progress = 7;
  static constexpr int sender = 0;
  static constexpr int receiver = 1;

  /// A rank's place among those of a communicator.
  struct Place {
    int rank;
    int n_ranks;
  };

  int (*make_id)(Id& id);
  int (*begin)(Communicator& made, const Id& id, Place place, int most_ctas);
  /// How the communicator's last call goes: success, in progress, or an error.
  int (*state)(Communicator communicator, int& state);
  int (*send)(const void* from, std::int64_t n_bytes, Communicator communicator,
              cudaStream_t stream);
  int (*receive)(void* into, std::int64_t n_bytes, Communicator communicator, cudaStream_t stream);
  /// Calls between the two go on together.
  int (*begin_group)();
  int (*end_group)();
  /// The sum of all ranks' n elements, in place on every rank.
  int (*all_reduce)(float* x, std::int64_t n, Communicator communicator, cudaStream_t stream);
  /// The same, but rank k's n_each elements from k * n_each on alone, in place there.
  int (*reduce_scatter)(float* x, std::int64_t n_each, int rank, Communicator communicator,
                        cudaStream_t stream);
  /// The same, in place on rank `root` alone.
  int (*reduce)(float* x, std::int64_t n, int root, Communicator communicator, cudaStream_t stream);
  int (*finalize)(Communicator communicator);
  int (*destroy)(Communicator communicator);
  int (*abort)(Communicator communicator);
  const char* (*text)(int code);
  /// More words on the last error, may be empty.
  const char* (*last_error)(Communicator communicator);
};

}  // namespace llm
