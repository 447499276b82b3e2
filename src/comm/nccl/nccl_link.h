#pragma once
#include <cstdint>
#include <deque>
#include <functional>

#include "src/comm/nccl/nccl_calls.h"
#include "tensor/queue.h"

namespace llm {

/// One end of the messages from one rank to another: a communicator of the two and a stream with
/// nothing else in it. Both ends put the same messages in the same order. Nothing blocks.
class NcclLink {
 public:
  /// Thread blocks of NCCL's kernel: a message that waits for its partner keeps them from the
  /// model's kernels, and with each come some 10 MB of buffers. Four fill PCIe, and most of an
  /// NVLink.
  static constexpr int most_ctas = 4;

  NcclLink(const NcclCalls& calls, int from, int to, bool is_sender)
      : calls_(calls), from_(from), to_(to), is_sender_(is_sender) {}
  /// Where work is left the communicator is aborted, whatever the other end does.
  ~NcclLink();
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  /// Of the sender's end, for the receiver's.
  NcclCalls::Id make_id();
  void begin(const NcclCalls::Id& id);
  bool has_begun() const { return communicator_ != nullptr; }
  /// The next message. `done` is called when the device has moved it.
  void put(void* bytes, std::int64_t n_bytes, std::function<void()> done);
  /// Goes on with what is in progress. True when anything happened. Throws CommError "NCCL: ...
  /// (... between rank a and rank b)".
  bool poll(std::int64_t now_ns);

 private:
  struct Message {
    void* bytes;
    std::int64_t n_bytes;
    std::function<void()> done;
  };
  /// What the communicator does: a message is `called` from NCCL's call until NCCL has put it into
  /// the stream.
  enum class Phase : std::uint8_t { begins, ready, called };

  bool is_in_progress();
  void check(const char* call, int code);
  void call_next();
  bool is_busy() const { return !messages_.empty() || n_in_stream_ > 0 || phase_ == Phase::begins; }

  const NcclCalls& calls_;
  int from_;
  int to_;
  bool is_sender_;
  NcclCalls::Communicator communicator_ = nullptr;
  Phase phase_ = Phase::begins;
  bool has_failed_ = false;
  std::int64_t checked_ns_ = 0;
  std::deque<Message> messages_;  ///< not in the stream yet; the first may be called
  std::int64_t n_in_stream_ = 0;
  Queue queue_{Device::cuda, nullptr, "NCCL"};
};

}  // namespace llm
