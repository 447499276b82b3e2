#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "src/comm/transport.h"

namespace llm {

/// Tensors on a device over a transport that knows host memory alone: they are copied through
/// pinned buffers, by streams of their own, so that copies pass kernels. Views on the CPU go
/// straight through. Each end may have its view where it likes.
///
/// A tensor goes as segments of a fixed size, each a message with the whole tensor's header, so
/// that one is copied while the one before is sent. Messages of one (peer, tag) keep their order,
/// in what they carry and in when they are told, whatever their views. Each (peer, tag) and
/// direction has a few buffers at most and waits for no other's, so no order of messages can
/// deadlock on buffers.
///
/// Counts, lanes and traces are this transport's: a tensor is one message, and the inner transport
/// counts nothing. A buffer goes back when its message and its copy are both done. With messages in
/// flight when it ends, all memory is given up, as an event's would be: the inner transport is not
/// polled again.
class StagedTransport : public Transport {
 public:
  struct Options {
    Options() : segment_bytes(std::int64_t{1} << 20), buffers(4) {}
    /// The same on all ranks. A copy of 1 MiB takes some 40 us over PCIe, ten times its start.
    std::int64_t segment_bytes;
    /// Of a (peer, tag) and direction at a time.
    std::size_t buffers;
  };

  /// `inner` is not owned, and polled by its loop, as this is from here on.
  explicit StagedTransport(Transport& inner, Options options = Options());
  ~StagedTransport() override;
  StagedTransport(const StagedTransport&) = delete;
  StagedTransport& operator=(const StagedTransport&) = delete;

  int rank() const override { return inner_.rank(); }
  int n_ranks() const override { return inner_.n_ranks(); }
  bool poll() override;
  std::string doing() const override { return "copies from and to the device"; }
  /// Pinned bytes that it holds.
  std::int64_t pinned_bytes() const;

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

}  // namespace llm
