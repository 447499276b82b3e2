#include "src/comm/nccl/nccl_link.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/rt/clock.h"

namespace llm {
namespace {

// How often an idle communicator is asked for errors.
constexpr std::int64_t check_ns = 5'000'000;
// A communicator without work ends in milliseconds.
constexpr std::int64_t end_ns = 1'000'000'000;

}  // namespace

NcclLink::~NcclLink() {
  if (communicator_ == nullptr) return;
  int code = NcclCalls::in_progress;
  if (!has_failed_ && !is_busy()) {
    const std::int64_t begin_ns = now_ns();
    code = calls_.finalize(communicator_);
    while (code == NcclCalls::in_progress && now_ns() - begin_ns < end_ns) {
      calls_.state(communicator_, code);
    }
  }
  code == NcclCalls::success ? calls_.destroy(communicator_) : calls_.abort(communicator_);
}

NcclCalls::Id NcclLink::make_id() {
  NcclCalls::Id id{};
  check("ncclGetUniqueId", calls_.make_id(id));
  return id;
}

void NcclLink::begin(const NcclCalls::Id& id) {
  CHECK_CONTRACT(!has_begun(), "a link begins once");
  const int rank = is_sender_ ? NcclCalls::sender : NcclCalls::receiver;
  check("ncclCommInitRankConfig", calls_.begin(communicator_, id, rank, most_ctas));
}

void NcclLink::put(void* bytes, std::int64_t n_bytes, std::function<void()> done) {
  messages_.push_back({bytes, n_bytes, std::move(done)});
}

bool NcclLink::poll(std::int64_t now_ns) {
  if (!has_begun()) return false;
  bool progress = false;
  while (queue_.run_tile()) progress = true;
  if (phase_ != Phase::ready || now_ns - checked_ns_ >= check_ns) {
    checked_ns_ = now_ns;
    if (is_in_progress()) return progress;
  }
  if (phase_ == Phase::begins) phase_ = Phase::ready;
  while (phase_ == Phase::called || !messages_.empty()) {
    if (phase_ == Phase::ready) call_next();
    if (is_in_progress()) return progress;
    // Only now is the message in the stream, and what is put in next behind it.
    queue_.notify([this, done = std::move(messages_.front().done)] {
      --n_in_stream_;
      done();
    });
    messages_.pop_front();
    ++n_in_stream_;
    while (queue_.run_tile()) {
    }
    phase_ = Phase::ready;
    progress = true;
  }
  return progress;
}

bool NcclLink::is_in_progress() {
  int state = NcclCalls::success;
  check("ncclCommGetAsyncError", calls_.state(communicator_, state));
  check(phase_ == Phase::begins ? "a connection" : "messages", state);
  return state == NcclCalls::in_progress;
}

/// NCCL is called at once, however the queue is polled: what follows depends on its answer.
void NcclLink::call_next() {
  phase_ = Phase::called;
  const Message& message = messages_.front();
  bool is_called = false;
  queue_.issue(is_sender_ ? "ncclSend" : "ncclRecv", [&](cudaStream_t stream) {
    is_called = true;
    if (is_sender_) {
      check("ncclSend", calls_.send(message.bytes, message.n_bytes, communicator_, stream));
    } else {
      check("ncclRecv", calls_.receive(message.bytes, message.n_bytes, communicator_, stream));
    }
  });
  while (!is_called) queue_.run_tile();
}

void NcclLink::check(const char* call, int code) {
  if (code == NcclCalls::success || code == NcclCalls::in_progress) return;
  has_failed_ = true;
  std::string more = calls_.last_error(communicator_);
  more.resize(std::min(more.size(), more.find('\n')));
  throw CommError(fmt::format("NCCL: {}{}{} ({} between rank {} and rank {})", calls_.text(code),
                              more.empty() ? "" : ": ", more, call, from_, to_));
}

}  // namespace llm
