#pragma once
#include <memory>
#include <string>

#include "src/comm/nccl/nccl_calls.h"
#include "src/comm/transport.h"

namespace llm {

/// Control messages between transports: which tensors go when. No actor sees or counts them.
inline constexpr int nccl_channel = -2;

/// Tensors on a device by NCCL, everything else (views on the CPU, control messages, the loss of a
/// peer) by another transport. The k-th message of a (sender, receiver, tag) lies on a device at
/// both ends or at none.
///
/// Receives are posted long before their data, and a receive in a stream stops what is behind it.
/// So nothing is given to NCCL before both ends agree, by small messages of the inner transport:
///   1. who posts a receive tells the sender (a credit: tag, number, expected header);
///   2. the sender, once it has the tensor and its credit, gives it the next place among all that
///      it sends to this rank, tells the receiver tag, number and header, and calls ncclSend;
///   3. the receiver compares the header with what it expects and calls ncclRecv.
/// Each direction between two ranks is a link (NcclLink): a communicator of its own, begun with its
/// first message, and a stream of its own.
///
/// Why nothing waits in a circle. A link's order is the sender's alone, and both ends put exactly
/// that into the link's stream, which holds nothing else and waits for no other stream. So the
/// first message of a link waits for its partner's call at most, which that rank makes as soon as
/// it polls, whatever waits in its streams; and so on for each message behind it. What this asks
/// for is that kernels of different links run beside each other, and that the loop goes on:
///   - a link's kernel takes NcclLink::most_ctas thread blocks; the model's end by themselves;
///   - streams must not share one of the device's queues: CUDA_DEVICE_MAX_CONNECTIONS=32;
///   - no call may wait for the device, as the first use of a kernel does that is loaded lazily
///     (CUDA_MODULE_LOADING=EAGER), and as pinning memory may.
/// set_nccl_environment() tells CUDA. An order over all links of a device would not do without it:
/// where two ranks send to each other at once, each has to call both its send and its receive.
///
/// An error that NCCL reports later leaves poll() as CommError within milliseconds. The transport's
/// end aborts the communicators that have work left, so no kernel waits for a peer that is gone.
class NcclTransport : public Transport {
 public:
  /// `inner` and `calls` are not owned; both are polled by the inner one's loop.
  NcclTransport(Transport& inner, const NcclCalls& calls);
  ~NcclTransport() override;
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  int rank() const override { return inner_.rank(); }
  int n_ranks() const override { return inner_.n_ranks(); }
  bool poll() override;
  std::string doing() const override { return "NCCL"; }
  /// Directions, from or to this rank, that have had a tensor: each is a communicator.
  int n_links() const;

 protected:
  void do_send(int peer, int tag, const Header& header, View tensor, Event& sent) override;
  void do_receive(int peer, int tag, const Header& expected, MutView tensor,
                  Event& received) override;
  void do_send_control(int peer, const ControlHeader& header,
                       std::span<const std::byte> payload) override;

 private:
  struct State;

  Transport& inner_;
  std::unique_ptr<State> state_;
};

/// Before CUDA's first call in this process. What the user has set stays.
void set_nccl_environment();

}  // namespace llm
