#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "tensor/queue.h"
#include "tensor/storage.h"

using cudaEvent_t = struct CUevent_st*;

namespace llm {

/// A queue's stream, and what the loop calls once the stream has come so far: each an event, in
/// order, of which only the oldest is asked for.
class DeviceStream {
 public:
  DeviceStream();
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  cudaStream_t stream() const { return stream_; }
  /// Calls `done` from poll() once everything issued before has run.
  void call(std::function<void()> done);
  /// Takes pinned memory for n read_backs.
  void reserve(std::int64_t n_bytes, int n);
  /// Copies x to pinned memory, and calls `then` with it from poll().
  void read_back(View x, const std::function<void(View)>& then);
  /// What is issued from here to end_observed() is an op for the observer, if there is one.
  void observe(const char* op, const Queue::Observer* observer);
  void end_observed();
  /// Calls what the stream has come to; false where there is nothing.
  bool poll();
  /// Nothing is left to be called.
  bool is_done() const { return pending_.empty(); }
  /// Until the stream has come to the next one to be called.
  void wait();
  void synchronize();
  /// Calls nothing any more, and waits until the device is done.
  void drop();

 private:
  struct Pending {
    cudaEvent_t event;
    std::function<void()> done;
    cudaEvent_t begin;  ///< of an op that is observed
  };
  cudaEvent_t take_event(bool is_timed);
  Storage take_pinned(std::int64_t n_bytes);
  void put(cudaEvent_t event, std::function<void()> done, cudaEvent_t begin = nullptr);
  void give_back(const Pending& one);

  cudaStream_t stream_;
  std::deque<Pending> pending_;
  std::vector<cudaEvent_t> free_events_[2];  // without and with time
  std::vector<Storage> free_pinned_;
  // Of the op that is observed.
  const char* op_ = nullptr;
  const Queue::Observer* observer_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  // The stream's beginning on the device's clock and on the host's.
  cudaEvent_t origin_ = nullptr;
  std::int64_t origin_ns_ = 0;
};

}  // namespace llm
