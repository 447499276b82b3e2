#include "tensor/cuda/device_stream.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "tensor/cuda/module.h"

namespace llm {
namespace {

const cuda::RuntimeCalls& runtime() {
  return cuda::module().runtime;
}

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

DeviceStream::DeviceStream() : stream_(runtime().create_stream()) {}

DeviceStream::~DeviceStream() {
  drop();
  for (const auto& events : free_events_) {
    for (const cudaEvent_t event : events) runtime().destroy_event(event);
  }
  if (origin_ != nullptr) runtime().destroy_event(origin_);
  runtime().destroy_stream(stream_);
}

cudaEvent_t DeviceStream::take_event(bool is_timed) {
  std::vector<cudaEvent_t>& free = free_events_[is_timed ? 1 : 0];
  if (free.empty()) return runtime().create_event(is_timed);
  const cudaEvent_t event = free.back();
  free.pop_back();
  return event;
}

void DeviceStream::put(cudaEvent_t event, std::function<void()> done, cudaEvent_t begin) {
  runtime().record(event, stream_);
  pending_.push_back({event, std::move(done), begin});
}

void DeviceStream::give_back(const Pending& one) {
  const bool is_timed = one.begin != nullptr;
  if (is_timed) free_events_[1].push_back(one.begin);
  free_events_[is_timed ? 1 : 0].push_back(one.event);
}

void DeviceStream::call(std::function<void()> done) {
  put(take_event(false), std::move(done));
}

Storage DeviceStream::take_pinned(std::int64_t n_bytes) {
  const auto found =
      std::find_if(free_pinned_.begin(), free_pinned_.end(),
                   [n_bytes](const Storage& one) { return one.n_bytes() >= n_bytes; });
  if (found == free_pinned_.end()) return Storage::pinned(n_bytes);
  Storage one = std::move(*found);
  free_pinned_.erase(found);
  return one;
}

void DeviceStream::reserve(std::int64_t n_bytes, int n) {
  for (int i = 0; i < n; ++i) free_pinned_.push_back(Storage::pinned(n_bytes));
}

void DeviceStream::read_back(View x, const std::function<void(View)>& then) {
  const auto pinned = std::make_shared<Storage>(take_pinned(x.n_bytes()));
  const MutView there = pinned->view(x.dtype(), x.shape());
  runtime().copy(stream_, x.data(), there.data(), x.n_bytes());
  call([this, pinned, there, then] {
    then(there);
    free_pinned_.push_back(std::move(*pinned));
  });
}

void DeviceStream::observe(const char* op, const Queue::Observer* observer) {
  observer_ = observer != nullptr && *observer ? observer : nullptr;
  if (observer_ == nullptr) return;
  if (origin_ == nullptr) {
    origin_ = runtime().create_event(true);
    runtime().record(origin_, stream_);
    runtime().synchronize(stream_);
    origin_ns_ = now_ns();
  }
  op_ = op;
  begin_ = take_event(true);
  runtime().record(begin_, stream_);
}

void DeviceStream::end_observed() {
  if (observer_ == nullptr) return;
  const cudaEvent_t end = take_event(true);
  const auto tell = [this, op = op_, observer = observer_, begin = begin_, end] {
    const std::int64_t begin_ns = origin_ns_ + runtime().elapsed_ns(origin_, begin);
    (*observer)(op, begin_ns, begin_ns + runtime().elapsed_ns(begin, end));
  };
  put(end, tell, begin_);
  observer_ = nullptr;
}

bool DeviceStream::poll() {
  if (pending_.empty() || !runtime().is_reached(pending_.front().event)) return false;
  // It may put new work in: take it off first.
  const Pending one = std::move(pending_.front());
  pending_.pop_front();
  one.done();
  give_back(one);
  return true;
}

void DeviceStream::wait() {
  while (!runtime().is_reached(pending_.front().event)) {
  }
}

void DeviceStream::synchronize() {
  runtime().synchronize(stream_);
}

void DeviceStream::drop() {
  synchronize();  // first: what is pending has memory that the device writes
  for (const Pending& one : pending_) give_back(one);
  pending_.clear();
}

}  // namespace llm
