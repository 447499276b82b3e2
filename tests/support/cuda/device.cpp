#include "tests/support/cuda/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <utility>

#include "tests/support/cuda/error.h"

namespace llm::emulator {
namespace {

constexpr std::size_t arena_bytes = Device::memory_bytes;  // pages come as they are used
constexpr std::size_t alignment = 256;
constexpr int fresh_byte = 0xFF;  // a NaN in every floating-point type

/// How far each stream was when something happened: what must have run before it.
using Clock = std::map<StreamId, std::int64_t>;

void merge(Clock& into, const Clock& from) {
  for (const auto& [stream, n] : from) into[stream] = std::max(into[stream], n);
}

/// An op's place.
struct Moment {
  StreamId stream = 0;
  std::int64_t number = 0;
  std::string name;
  bool before(const Clock& clock) const {
    const auto found = clock.find(stream);
    return found != clock.end() && found->second >= number;
  }
};

struct Op {
  std::function<void()> run;  // empty: a mark
  std::function<Step()> step;
  std::string name;              // of one with steps
  std::optional<EventId> waits;  // for the event's record number `n_record`
  std::optional<EventId> records;
  std::int64_t n_record = 0;
};

struct Stream {
  std::deque<Op> ops;
  Clock clock;  // of its last op that was put in
};

struct Event {
  std::int64_t n_recorded = 0;  // how often it was put into a stream
  std::int64_t n_reached = 0;
  std::chrono::steady_clock::time_point reached_at;
  Clock clock;  // of the last record
};

/// What a launch puts into a stream, again and again.
struct Graph {
  std::vector<std::function<void(StreamId)>> ops;
  std::map<std::byte*, std::size_t> blocks;  // that it allocates
  std::size_t n_released = 0;                // of them
  std::int64_t n_launched = 0;
  std::int64_t n_run = 0;  // of the launches
};

struct Allocation {
  std::size_t n_bytes;
  Moment allocated;
  std::optional<Moment> released;
};

/// The last accesses of an address.
struct Uses {
  std::optional<Moment> write;
  std::vector<Moment> reads;  // since the write, one a stream
};

}  // namespace

struct Device::State {
  State(std::uint64_t seed, int guards_each_) : guards_each(guards_each_), random(seed) {
    void* const memory =
        mmap(nullptr, arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    arena = static_cast<std::byte*>(memory);
  }
  ~State() { munmap(arena, arena_bytes); }

  bool is_device(const void* address) const {
    const auto* const byte = static_cast<const std::byte*>(address);
    return arena <= byte && byte < arena + arena_bytes;
  }
  bool is_pinned(const void* address, std::size_t n_bytes) const {
    const auto* const byte = static_cast<const std::byte*>(address);
    const auto after = pinned.upper_bound(const_cast<std::byte*>(byte));
    if (after == pinned.begin()) return false;
    const auto& [begin, size] = *std::prev(after);
    return byte + n_bytes <= begin + size;
  }
  void open(bool is_open) { mprotect(arena, used, is_open ? PROT_READ | PROT_WRITE : PROT_NONE); }

  /// Device memory can be touched while one lives.
  struct Opened {
    explicit Opened(State& state_) : state(state_) {
      if (state.n_open_bytes < state.used) state.open(true);
      state.n_open_bytes = state.used;
    }
    ~Opened() {
      if (++state.n_opened % state.guards_each != 0) return;
      state.open(false);
      state.n_open_bytes = 0;
    }
    State& state;
  };

  /// The graph that the stream's work goes to; nullptr: to the stream.
  Graph* capturing(StreamId id) {
    const auto found = captures.find(id);
    return found == captures.end() ? nullptr : &found->second;
  }
  void expect_not_capturing(StreamId id, const char* what) {
    if (capturing(id) != nullptr) {
      throw EmulatorError(std::string(what) + " in a stream whose work is captured");
    }
  }
  /// Addresses of a block that is not there yet.
  std::byte* take_addresses(std::size_t n_bytes) {
    const std::size_t size =
        (std::max<std::size_t>(n_bytes, 1) + alignment - 1) / alignment * alignment;
    if (used + size > arena_bytes) throw EmulatorError("the emulated device's memory is used up");
    std::byte* const begin = arena + used;
    used += size + alignment;
    return begin;
  }
  void allocate_at(std::byte* begin, std::size_t n_bytes, StreamId id) {
    blocks.insert_or_assign(begin, Allocation{n_bytes, next(id, "an allocation"), {}});
    Op op;
    op.run = [begin, n_bytes] { std::memset(begin, fresh_byte, n_bytes); };
    stream(id).ops.push_back(std::move(op));
  }

  Stream& stream(StreamId id) {
    if (id == 0) {
      throw EmulatorError("the default stream is used; it waits for all others, use a stream");
    }
    const auto found = streams.find(id);
    if (found == streams.end()) throw EmulatorError("a stream that is not there is used");
    return found->second;
  }
  Event& event(EventId id) {
    const auto found = events.find(id);
    if (found == events.end()) throw EmulatorError("an event that is not there is used");
    return found->second;
  }
  Event& recorded(EventId id, const char* what) {
    Event& one = event(id);
    if (one.n_recorded == 0)
      throw EmulatorError(std::string(what) + " an event that was never recorded");
    return one;
  }

  /// The next op's moment in its stream.
  Moment next(StreamId id, const std::string& name) {
    Stream& own = stream(id);
    merge(own.clock, host);
    return {id, ++own.clock[id], name};
  }

  void check_memory(const void* address, const Moment& now, const Clock& clock) {
    if (!is_device(address)) return;
    const auto* const byte = static_cast<const std::byte*>(address);
    const auto after = blocks.upper_bound(const_cast<std::byte*>(byte));
    if (after == blocks.begin() ||
        byte >= std::prev(after)->first + std::prev(after)->second.n_bytes) {
      throw EmulatorError(now.name + " is given memory that was never allocated");
    }
    const Allocation& block = std::prev(after)->second;
    if (block.released) {
      throw EmulatorError(now.name + " is given memory that was released");
    }
    if (!block.allocated.before(clock)) {
      throw EmulatorError(
          now.name +
          " uses memory before its allocation: another stream allocates it; wait for an "
          "event");
    }
  }

  void check_order(const Access& access, const Moment& now, const Clock& clock) {
    Uses& uses = uses_of[access.address];
    const auto check = [&](const Moment& other, const char* did) {
      if (other.before(clock)) return;
      throw EmulatorError(now.name + " uses memory before an event that says " + other.name +
                          ", on another stream, has " + did + " it; record one and wait for it");
    };
    if (uses.write) check(*uses.write, "written");
    if (!access.writes) {
      std::erase_if(uses.reads, [&](const Moment& read) { return read.stream == now.stream; });
      uses.reads.push_back(now);
      return;
    }
    for (const Moment& read : uses.reads) check(read, "read");
    uses.reads.clear();
    uses.write = now;
  }

  void put(StreamId id, const std::string& name, const std::vector<Access>& accesses,
           std::function<void()> run) {
    Op op;
    op.run = std::move(run);
    put_op(id, name, accesses, std::move(op));
  }

  void put_op(StreamId id, const std::string& name, const std::vector<Access>& accesses, Op op) {
    const Moment now = next(id, name);
    Stream& own = stream(id);
    for (const Access& access : accesses) {
      check_memory(access.address, now, own.clock);
      check_order(access, now, own.clock);
    }
    own.ops.push_back(std::move(op));
    // Sometimes a device is fast.
    if (random() % 2 == 0) run_some();
  }

  bool can_run(const Stream& one) {
    if (one.ops.empty()) return false;
    const Op& op = one.ops.front();
    return !op.waits || event(*op.waits).n_reached >= op.n_record;
  }

  /// Runs one op that can, or a step of it; false where there is none.
  bool run_one() {
    std::vector<Stream*> ready;
    for (auto& [id, one] : streams) {
      if (can_run(one)) ready.push_back(&one);
    }
    while (!ready.empty()) {
      const auto drawn = ready.begin() + static_cast<std::ptrdiff_t>(random() % ready.size());
      if (run_first(**drawn)) return true;
      ready.erase(drawn);
    }
    return false;
  }

  /// Of a stream's first op, that can run. False where its step waits for others.
  bool run_first(Stream& one) {
    if (one.ops.front().step) {
      const Opened opened(*this);
      const Step step = one.ops.front().step();
      if (step == Step::done) one.ops.pop_front();
      return step != Step::blocked;
    }
    const Op op = std::move(one.ops.front());
    one.ops.pop_front();
    if (op.records) {
      Event& own = event(*op.records);
      own.n_reached = std::max(own.n_reached, op.n_record);
      own.reached_at = std::chrono::steady_clock::now();
    }
    if (op.run) {
      const Opened opened(*this);
      op.run();
    }
    return true;
  }

  /// Nothing can run while the host waits.
  EmulatorError deadlock(const char* what) const {
    std::string text = what;
    for (const auto& [id, one] : streams) {
      if (one.ops.empty() || !one.ops.front().step) continue;
      text += "; stream " + std::to_string(id) + " waits in " + one.ops.front().name;
    }
    return EmulatorError(text);
  }

  void run_some() {
    for (std::uint64_t n = random() % 4; n > 0 && run_one(); --n) {
    }
  }

  const int guards_each;
  int n_opened = 0;
  std::size_t n_open_bytes = 0;  ///< the first of the arena
  std::mt19937_64 random;
  std::byte* arena = nullptr;
  std::size_t used = 0;
  std::map<std::byte*, Allocation> blocks;
  std::map<std::byte*, std::size_t> pinned;
  std::map<std::byte*, std::unique_ptr<std::byte[]>> pinned_memory;
  std::map<StreamId, Stream> streams;
  std::map<StreamId, Graph> captures;
  std::map<GraphId, Graph> graphs;
  std::map<EventId, Event> events;
  std::map<const void*, Uses> uses_of;
  Clock host;  ///< what the host has waited for
  int n_created = 0;
};

Device::Device(std::uint64_t seed, int guards_each)
    : state_(std::make_unique<State>(seed, guards_each)) {}

Device::~Device() = default;

// Memory is never given out twice, so that what uses it after its release is found; but a graph's
// is the same at each launch.
void* Device::allocate(std::size_t n_bytes, StreamId stream) {
  State& s = *state_;
  const bool is_limited = limit_bytes < memory_bytes;  // counting is slow
  if (is_limited && bytes_in_use() + n_bytes > limit_bytes) return nullptr;
  std::byte* const begin = s.take_addresses(n_bytes);
  if (Graph* const graph = s.capturing(stream)) {
    graph->blocks.emplace(begin, n_bytes);
    graph->ops.emplace_back(
        [&s, begin, n_bytes](StreamId in) { s.allocate_at(begin, n_bytes, in); });
  } else {
    s.allocate_at(begin, n_bytes, stream);
  }
  return begin;
}

void Device::release(void* memory, StreamId stream) {
  State& s = *state_;
  if (Graph* const graph = s.capturing(stream)) {
    if (graph->blocks.count(static_cast<std::byte*>(memory)) == 0) {
      throw EmulatorError("memory that a graph did not allocate is released in it");
    }
    ++graph->n_released;
    graph->ops.emplace_back([this, memory](StreamId in) { release(memory, in); });
    return;
  }
  const auto found = s.blocks.find(static_cast<std::byte*>(memory));
  if (found == s.blocks.end()) throw EmulatorError("memory that was never allocated is released");
  if (found->second.released) throw EmulatorError("memory is released twice");
  const Moment now = s.next(stream, "a release");
  const Clock clock = s.stream(stream).clock;
  for (auto use = s.uses_of.lower_bound(memory);
       use != s.uses_of.end() &&
       use->first < static_cast<std::byte*>(memory) + found->second.n_bytes;
       ++use) {
    s.check_order({use->first, true}, now, clock);
  }
  found->second.released = now;
  std::byte* const begin = found->first;
  Op op;
  op.run = [begin, n = found->second.n_bytes] { std::memset(begin, fresh_byte, n); };
  s.stream(stream).ops.push_back(std::move(op));
}

void* Device::allocate_pinned(std::size_t n_bytes) {
  auto memory = std::make_unique<std::byte[]>(n_bytes);
  std::byte* const begin = memory.get();
  std::memset(begin, fresh_byte, n_bytes);
  state_->pinned.emplace(begin, n_bytes);
  state_->pinned_memory.emplace(begin, std::move(memory));
  return begin;
}

void Device::release_pinned(void* memory) {
  if (state_->pinned.erase(static_cast<std::byte*>(memory)) == 0) {
    throw EmulatorError("pinned memory that is not there is released");
  }
  state_->pinned_memory.erase(static_cast<std::byte*>(memory));
}

std::size_t Device::bytes_in_use() const {
  std::size_t sum = 0;
  for (const auto& [begin, block] : state_->blocks) sum += block.released ? 0 : block.n_bytes;
  return sum;
}

StreamId Device::create_stream() {
  const StreamId id = ++state_->n_created;
  state_->streams[id].clock[id] = 0;
  return id;
}

void Device::destroy_stream(StreamId stream) {
  synchronize_stream(stream);
  state_->streams.erase(stream);
}

EventId Device::create_event() {
  const EventId id = ++state_->n_created;
  state_->events[id];
  return id;
}

void Device::destroy_event(EventId event) {
  if (state_->events.erase(event) == 0)
    throw EmulatorError("an event that is not there is destroyed");
}

void Device::launch(StreamId stream, const char* name, Launch launch,
                    const std::vector<Access>& accesses) {
  if (Graph* const graph = state_->capturing(stream)) {
    graph->ops.emplace_back([=, this](StreamId in) { this->launch(in, name, launch, accesses); });
    return;
  }
  const std::uint64_t seed = state_->random();
  state_->put(stream, name, accesses,
              [launch = std::move(launch), seed] { run_grid(launch, seed); });
}

void Device::call(StreamId stream, const char* name, const std::vector<Access>& accesses,
                  std::function<void()> work) {
  if (Graph* const graph = state_->capturing(stream)) {
    graph->ops.emplace_back([=, this](StreamId in) { call(in, name, accesses, work); });
    return;
  }
  state_->put(stream, name, accesses, std::move(work));
}

void Device::copy(StreamId stream, void* to, const void* from, std::size_t n_bytes) {
  if (Graph* const graph = state_->capturing(stream)) {
    graph->ops.emplace_back([=, this](StreamId in) { copy(in, to, from, n_bytes); });
    return;
  }
  for (const void* const end : {static_cast<const void*>(to), from}) {
    if (state_->is_device(end) || state_->is_pinned(end, n_bytes)) continue;
    throw EmulatorError("an asynchronous copy of " + std::to_string(n_bytes) +
                        " bytes has an end in host memory that is not pinned; it would wait");
  }
  state_->put(stream, "a copy", {{from, false}, {to, true}},
              [=] { std::memcpy(to, from, n_bytes); });
}

void Device::set(StreamId stream, void* to, int byte, std::size_t n_bytes) {
  if (Graph* const graph = state_->capturing(stream)) {
    graph->ops.emplace_back([=, this](StreamId in) { set(in, to, byte, n_bytes); });
    return;
  }
  state_->put(stream, "a fill", {{to, true}}, [=] { std::memset(to, byte, n_bytes); });
}

void Device::put(StreamId stream, const char* name, const std::vector<Access>& accesses,
                 std::function<Step()> step) {
  state_->expect_not_capturing(stream, name);
  Op op;
  op.step = std::move(step);
  op.name = name;
  state_->put_op(stream, name, accesses, std::move(op));
}

void Device::record(EventId event, StreamId stream) {
  state_->expect_not_capturing(stream, "an event is recorded");
  Event& one = state_->event(event);
  Stream& own = state_->stream(stream);
  Op op;
  op.records = event;
  op.n_record = ++one.n_recorded;
  one.clock = own.clock;
  own.ops.push_back(std::move(op));
}

void Device::wait(StreamId stream, EventId event) {
  state_->expect_not_capturing(stream, "an event is waited for");
  const Event& one = state_->recorded(event, "a stream waits for");
  Stream& own = state_->stream(stream);
  Op op;
  op.waits = event;
  op.n_record = one.n_recorded;
  merge(own.clock, one.clock);
  own.ops.push_back(std::move(op));
}

bool Device::query(EventId event) {
  const Event& one = state_->recorded(event, "the host asks for");
  state_->run_some();
  if (one.n_reached < one.n_recorded) return false;
  merge(state_->host, one.clock);
  return true;
}

bool Device::query_stream(StreamId stream) {
  state_->expect_not_capturing(stream, "the host asks for work");
  state_->run_some();
  if (!state_->stream(stream).ops.empty()) return false;
  merge(state_->host, state_->stream(stream).clock);
  return true;
}

float Device::elapsed_ms(EventId begin, EventId end) {
  const Event& first = state_->recorded(begin, "the host asks for the time of");
  const Event& last = state_->recorded(end, "the host asks for the time of");
  for (const Event* one : {&first, &last}) {
    if (one->n_reached < one->n_recorded) {
      throw EmulatorError("the host asks for the time of an event that is not reached yet");
    }
  }
  return std::chrono::duration<float, std::milli>(last.reached_at - first.reached_at).count();
}

void Device::synchronize(EventId event) {
  const Event& one = state_->recorded(event, "the host waits for");
  while (one.n_reached < one.n_recorded) {
    if (!state_->run_one())
      throw state_->deadlock("the host waits for an event that is never reached");
  }
  merge(state_->host, one.clock);
}

void Device::synchronize_stream(StreamId stream) {
  state_->expect_not_capturing(stream, "the host waits for work");
  while (!state_->stream(stream).ops.empty()) {
    if (!state_->run_one())
      throw state_->deadlock("the host waits for a stream that waits for ever");
  }
  merge(state_->host, state_->stream(stream).clock);
}

void Device::begin_capture(StreamId stream) {
  state_->stream(stream);
  state_->expect_not_capturing(stream, "a capture begins");
  state_->captures[stream];
}

GraphId Device::end_capture(StreamId stream) {
  State& s = *state_;
  const auto found = s.captures.find(stream);
  if (found == s.captures.end()) throw EmulatorError("a capture ends that never began");
  const GraphId id = ++s.n_created;
  const auto graph = s.graphs.emplace(id, std::move(found->second)).first;
  s.captures.erase(found);
  if (graph->second.n_released < graph->second.blocks.size()) {
    throw EmulatorError("a graph keeps memory that it allocates; it could be launched once only");
  }
  return id;
}

void Device::launch_graph(GraphId graph, StreamId stream) {
  const auto found = state_->graphs.find(graph);
  if (found == state_->graphs.end()) throw EmulatorError("a graph that is not there is launched");
  Graph& one = found->second;
  ++one.n_launched;
  for (const auto& op : one.ops) op(stream);
  state_->put(stream, "the end of a graph", {}, [&one] { ++one.n_run; });
}

void Device::destroy_graph(GraphId graph) {
  const auto found = state_->graphs.find(graph);
  if (found == state_->graphs.end()) throw EmulatorError("a graph that is not there is destroyed");
  if (found->second.n_run < found->second.n_launched) {
    throw EmulatorError("a graph is destroyed while a launch of it has not run");
  }
  state_->graphs.erase(found);
}

Device*& current_device() {
  static Device* device = nullptr;
  return device;
}

}  // namespace llm::emulator
