#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tests/support/cuda/block.h"

namespace llm::emulator {

/// An address that a kernel or a copy is given, and whether it may write there.
struct Access {
  const void* address;
  bool writes;
};

using StreamId = int;  ///< 0: the legacy default stream, which this project does not use
using EventId = int;
using GraphId = int;

/// What a step of an op came to: nothing can be done before another op's step, something was done,
/// or the op is at its end.
enum class Step : std::uint8_t { blocked, moved, done };

/// One device: memory, streams and events. What is enqueued runs when something waits for it or
/// asks for it, in an order drawn from the seed among all that the rules of streams and events
/// allow; so who relies on more gets other bits from other seeds. The device's memory can be read
/// and written by kernels and copies alone: a host that touches it gets SIGSEGV.
///
/// EmulatorError is thrown, where CUDA would be silent, for
///   - an access that is ordered neither before nor after another one of the same address by
///     streams and events, unless both read ("used before an event")
///   - memory used before its stream-ordered allocation or after its release, or released twice
///   - an event that is waited for or queried and was never recorded
///   - an asynchronous copy from or to host memory that is not pinned
///   - the default stream, and a synchronisation of the whole device
///   - a wait of the host while nothing can run any more (a deadlock)
///   - while a stream's work is captured: a wait for it or a question, an event or an op of several
///     streams in it, a release of what was not allocated in it, an allocation that it keeps; and a
///     graph that is destroyed while a launch of it has not run
class Device {
 public:
  static constexpr std::size_t memory_bytes = std::size_t{1} << 32;  ///< of addresses

  /// The host is kept from the device's memory after each so many ops: it costs a system call.
  explicit Device(std::uint64_t seed, int guards_each = 1);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// nullptr where more than limit_bytes would be in use.
  void* allocate(std::size_t n_bytes, StreamId stream);
  void release(void* memory, StreamId stream);
  void* allocate_pinned(std::size_t n_bytes);
  void release_pinned(void* memory);
  /// Bytes allocated and not released.
  std::size_t bytes_in_use() const;
  std::size_t limit_bytes = memory_bytes;
  int capability = 0;  ///< of kernels: 80 for 8.0

  StreamId create_stream();
  void destroy_stream(StreamId stream);
  EventId create_event();
  void destroy_event(EventId event);

  /// `name` is for errors.
  void launch(StreamId stream, const char* name, Launch launch,
              const std::vector<Access>& accesses);
  /// Work of a library, which is no grid: runs once, on host code that may touch the memory.
  void call(StreamId stream, const char* name, const std::vector<Access>& accesses,
            std::function<void()> work);
  void copy(StreamId stream, void* to, const void* from, std::size_t n_bytes);
  void set(StreamId stream, void* to, int byte, std::size_t n_bytes);
  /// An op that other ops have a part in: `step` is called again and again while the op is the
  /// first of its stream, until it says done.
  void put(StreamId stream, const char* name, const std::vector<Access>& accesses,
           std::function<Step()> step);
  void record(EventId event, StreamId stream);
  void wait(StreamId stream, EventId event);
  /// Runs a drawn number of ops, and says whether the event has been reached.
  bool query(EventId event);
  bool query_stream(StreamId stream);
  /// Between the moments at which two events were reached, on the host's clock.
  float elapsed_ms(EventId begin, EventId end);
  void synchronize(EventId event);
  void synchronize_stream(StreamId stream);

  /// What is put into the stream from here on is kept in a graph, and runs at its launches.
  void begin_capture(StreamId stream);
  GraphId end_capture(StreamId stream);
  void launch_graph(GraphId graph, StreamId stream);
  void destroy_graph(GraphId graph);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The device that the functions of include/cuda_runtime.h work on; nullptr: there is none, as on
/// a machine without a driver.
Device*& current_device();

}  // namespace llm::emulator
