#pragma once
#include <cstdint>
#include <functional>

#include <fmt/format.h>
#include "src/comm/nccl/nccl_communicator.h"

namespace llm {

/// One end of the messages from one rank to another: a communicator of the two. Both ends put the
/// same messages in the same order. Nothing blocks.
class NcclLink {
 public:
  /// A message that waits for its partner keeps so many thread blocks from the model's kernels, and
  /// with each come some 10 MB of buffers. Four fill PCIe, and most of an NVLink.
  static constexpr int most_ctas = 4;

  NcclLink(const NcclCalls& calls, int from, int to, bool is_sender)
      : calls_(calls),
        is_sender_(is_sender),
        communicator_(calls, {"messages", fmt::format("between rank {} and rank {}", from, to)}) {}

  /// Of the sender's end, for the receiver's.
  NcclCalls::Id make_id() { return communicator_.make_id(); }
  void begin(const NcclCalls::Id& id) {
    const int rank = is_sender_ ? NcclCalls::sender : NcclCalls::receiver;
    communicator_.begin(id, {rank, 2}, most_ctas);
  }
  bool has_begun() const { return communicator_.has_begun(); }
  /// The next message. `done` is called when the device has moved it.
  void put(void* bytes, std::int64_t n_bytes, std::function<void()> done) {
    const auto call = [this, bytes, n_bytes](NcclCalls::Communicator communicator,
                                             cudaStream_t stream) {
      return is_sender_ ? calls_.send(bytes, n_bytes, communicator, stream)
                        : calls_.receive(bytes, n_bytes, communicator, stream);
    };
    communicator_.put(is_sender_ ? "ncclSend" : "ncclRecv", call, std::move(done));
  }
  bool poll(std::int64_t now_ns) { return communicator_.poll(now_ns); }

 private:
  const NcclCalls& calls_;
  const bool is_sender_;
  NcclCommunicator communicator_;
};

}  // namespace llm
