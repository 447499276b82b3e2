#pragma once
#include <cstdint>
#include <memory>

#include "src/comm/mpi/mpi_session.h"
#include "src/comm/transport.h"

namespace llm {

/// Messages over MPI. A tensor goes as its header (32 bytes) and then its bytes in pieces, all on
/// one tag; the receiver posts all of them at once, the bytes' straight into the tensor. Control
/// messages have a communicator of their own and a ring of receives that take what comes.
///
/// A failed call, a header that is not the expected one, or a message of another length leaves
/// poll() as CommError with both sides; the transport is of no use afterwards.
class MpiTransport : public Transport {
 public:
  struct Options {
    Options() : piece_bytes(std::int64_t{1} << 30), far_piece_bytes(64'000) {}
    /// Tensors above it go in several messages; at most 1 GiB, because MPI counts in int.
    std::int64_t piece_bytes;
    /// The same between nodes: below TCP's eager limit of 64 KB, so that pieces follow each other
    /// without a round trip each. A receiver that is late keeps them in MPI's buffers meanwhile.
    std::int64_t far_piece_bytes;
  };

  /// On every rank together: makes two communicators. Polled by `loop` from here on.
  MpiTransport(const MpiSession& session, Loop& loop, Options options = Options());
  /// Takes back the receives that nothing has answered. Blocks for nothing.
  ~MpiTransport() override;
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  int rank() const override { return rank_; }
  int n_ranks() const override { return n_ranks_; }
  bool poll() override;
  std::string doing() const override { return "MPI"; }

 protected:
  void do_send(int peer, int tag, const Header& header, View tensor, Event& sent) override;
  void do_receive(int peer, int tag, const Header& expected, MutView tensor,
                  Event& received) override;
  void do_send_control(int peer, const ControlHeader& header,
                       std::span<const std::byte> payload) override;

 private:
  struct State;  // keeps mpi.h out of this header

  int rank_;
  int n_ranks_;
  std::unique_ptr<State> state_;
};

}  // namespace llm
