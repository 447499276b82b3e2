#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "src/comm/nccl/nccl_calls.h"
#include "tensor/queue.h"

namespace llm {

/// One rank's end of a communicator, and a stream with nothing else in it: calls go into it one
/// after another, in the order in which they were put in. All ranks put in calls that match, in one
/// order. Nothing blocks.
class NcclCommunicator {
 public:
  using Call = std::function<int(NcclCalls::Communicator, cudaStream_t)>;

  /// For errors: "messages", "between rank 0 and rank 1".
  struct Names {
    std::string work;
    std::string between;
  };

  NcclCommunicator(const NcclCalls& calls, Names names) : calls_(calls), names_(std::move(names)) {}
  /// Where work is left the communicator is aborted, whatever the other ranks do.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// On one rank, for all.
  NcclCalls::Id make_id();
  /// `most_ctas`: thread blocks of NCCL's kernels.
  void begin(const NcclCalls::Id& id, NcclCalls::Place place, int most_ctas);
  bool has_begun() const { return communicator_ != nullptr; }
  /// The next call, which returns NCCL's code; `name` is a literal. `done` is called when the
  /// device has done what it asks for. May be put in before the communicator has begun.
  void put(const char* name, Call call, std::function<void()> done);
  /// Goes on with what is in progress. True when anything happened. Throws CommError "NCCL: ...
  /// (... between ...)".
  bool poll(std::int64_t now_ns);

 private:
  struct Work {
    const char* name;
    Call call;
    std::function<void()> done;
  };
  /// What the communicator does: work is `called` from NCCL's call until NCCL has put it into the
  /// stream.
  enum class Phase : std::uint8_t { begins, ready, called };

  bool is_in_progress();
  void check(const std::string& call, int code);
  void call_next();
  bool is_busy() const { return !work_.empty() || n_in_stream_ > 0 || phase_ == Phase::begins; }

  const NcclCalls& calls_;
  const Names names_;
  NcclCalls::Communicator communicator_ = nullptr;
  Phase phase_ = Phase::begins;
  bool has_failed_ = false;
  std::int64_t checked_ns_ = 0;
  std::deque<Work> work_;  ///< not in the stream yet; the first may be called
  std::int64_t n_in_stream_ = 0;
  Queue queue_{Device::cuda, nullptr, "NCCL"};
};

}  // namespace llm
