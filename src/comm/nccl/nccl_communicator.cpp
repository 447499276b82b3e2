#include "src/comm/nccl/nccl_communicator.h"

#include <algorithm>
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

NcclCommunicator::~NcclCommunicator() {
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

NcclCalls::Id NcclCommunicator::make_id() {
  NcclCalls::Id id{};
  check("ncclGetUniqueId", calls_.make_id(id));
  return id;
}

void NcclCommunicator::begin(const NcclCalls::Id& id, NcclCalls::Place place, int most_ctas) {
  CHECK_CONTRACT(!has_begun(), "a communicator begins once");
  check("ncclCommInitRankConfig", calls_.begin(communicator_, id, place, most_ctas));
}

void NcclCommunicator::put(const char* name, Call call, std::function<void()> done) {
  work_.push_back({name, std::move(call), std::move(done)});
}

bool NcclCommunicator::poll(std::int64_t now_ns) {
  if (!has_begun()) return false;
  bool progress = false;
  while (queue_.run_tile()) progress = true;
  if (phase_ != Phase::ready || now_ns - checked_ns_ >= check_ns) {
    checked_ns_ = now_ns;
    if (is_in_progress()) return progress;
  }
  if (phase_ == Phase::begins) phase_ = Phase::ready;
  while (phase_ == Phase::called || !work_.empty()) {
    if (phase_ == Phase::ready) call_next();
    if (is_in_progress()) return progress;
    // Only now is the work in the stream, and what is put in next behind it.
    queue_.notify([this, done = std::move(work_.front().done)] {
      --n_in_stream_;
      done();
    });
    work_.pop_front();
    ++n_in_stream_;
    while (queue_.run_tile()) {
    }
    phase_ = Phase::ready;
    progress = true;
  }
  return progress;
}

bool NcclCommunicator::is_in_progress() {
  int state = NcclCalls::success;
  check("ncclCommGetAsyncError", calls_.state(communicator_, state));
  check(phase_ == Phase::begins ? "a connection" : names_.work, state);
  return state == NcclCalls::in_progress;
}

/// NCCL is called at once, however the queue is polled: what follows depends on its answer.
void NcclCommunicator::call_next() {
  phase_ = Phase::called;
  const Work& next = work_.front();
  bool is_called = false;
  queue_.issue(next.name, [&](cudaStream_t stream) {
    is_called = true;
    check(next.name, next.call(communicator_, stream));
  });
  while (!is_called) queue_.run_tile();
}

void NcclCommunicator::check(const std::string& call, int code) {
  if (code == NcclCalls::success || code == NcclCalls::in_progress) return;
  has_failed_ = true;
  std::string more = calls_.last_error(communicator_);
  more.resize(std::min(more.size(), more.find('\n')));
  throw CommError(fmt::format("NCCL: {}{}{} ({} {})", calls_.text(code), more.empty() ? "" : ": ",
                              more, call, names_.between));
}

}  // namespace llm
