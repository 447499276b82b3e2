#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tensor/cuda/device_stream.h"
#include "tensor/cuda/op_key.h"
#include "tensor/queue.h"

using cudaGraphExec_t = struct CUgraphExec_st*;

namespace llm {

struct Graph;

/// An op in a device's queue that may come again.
struct KeyedOp {
  KeyedOp(OpKey key_, Queue::PutRepeated put_) : key(std::move(key_)), put(std::move(put_)) {}
  OpKey key;
  Queue::PutRepeated put;
};

/// Runs of ops as CUDA graphs. A run that comes for the first time is issued op by op, which opens
/// what its ops open once (libraries, algorithms, attributes of kernels); at the second time it is
/// captured, and from then on the graph is launched. Runs are the same when their ops' keys are, to
/// the byte: memory, shapes, parameters. So a graph does what its ops would do, in their order.
///
/// Ops' numbers are written to a small memory of the device before each launch, by an op of their
/// own in the same stream. Ops with the same numbers share them.
///
/// Scratch of ops becomes memory of the graph (allocated and released in it), which CUDA keeps
/// beside the stream-ordered pool. The graphs used last are kept, `most_runs` of them.
///
/// To make a graph may take memory of the device. Whether that waits for kernels that run, such as
/// NCCL's that wait for a peer (src/comm/nccl/nccl_transport.h), no GPU has said yet: so graphs are
/// off where nobody asks for them.
class OpGraphs {
 public:
  static constexpr std::size_t most_runs = 256;

  /// Of a stream that outlives it, and that is done with it then.
  explicit OpGraphs(DeviceStream& stream);
  ~OpGraphs();
  OpGraphs(const OpGraphs&) = delete;
  OpGraphs& operator=(const OpGraphs&) = delete;

  /// Issues the ops in their order, at once.
  void issue(const std::vector<std::shared_ptr<const KeyedOp>>& run);
  Queue::GraphCounts counts() const { return counts_; }

 private:
  using Run = std::vector<std::shared_ptr<const KeyedOp>>;
  /// Ops' numbers, each once, and where each op's begin.
  struct Numbers {
    std::vector<std::int64_t> values;
    std::vector<std::size_t> begins;  ///< in the order of the ops
  };
  struct Seen {
    std::shared_ptr<Graph> graph;  ///< from the second time on
    std::int64_t last_use = 0;
  };
  Numbers numbers_of(const Run& run) const;
  std::shared_ptr<Graph> capture(const Run& run, const Numbers& numbers) const;
  void forget_oldest();

  DeviceStream& stream_;
  std::int64_t* numbers_;  ///< on the device
  std::unordered_map<std::string, Seen> seen_;
  std::int64_t n_uses_ = 0;
  Queue::GraphCounts counts_;
};

}  // namespace llm
