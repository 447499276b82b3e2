#pragma once
#include <cstdint>
#include <deque>
#include <functional>

#include "tensor/view.h"

namespace llm {

/// Work in order, one queue a stream of it (a CUDA stream on a device). An op called with a queue
/// puts its tiles at the end and returns at once; the views it was given must stay valid until the
/// queue has passed it. On the CPU the loop runs one tile a turn on its own thread, so that
/// messages move between tiles; tests call finish().
class Queue {
 public:
  /// Called when a tile ran: the op's name and the seconds it took. For traces.
  using Observer = std::function<void(const char* op, std::int64_t begin_ns, std::int64_t end_ns)>;

  explicit Queue(Device device = Device::cpu) : device_(device) {}
  Device device() const { return device_; }

  /// Puts tiles 0 .. n_tiles-1 of `op` at the end. A tile reads nothing that another tile of the
  /// same op writes; its cut is a function of the op's shape alone. `op` is a literal, kept by
  /// pointer.
  void tiles(const char* op, std::int64_t n_tiles, std::function<void(std::int64_t tile)> run);
  /// Puts one piece of work at the end.
  void work(const char* op, std::function<void()> run);
  /// Calls `done` on the loop's thread once everything put in before has run.
  void notify(std::function<void()> done);

  /// Runs the next tile; false when there is none. An exception of the tile leaves through here.
  bool run_tile();
  /// Runs everything that is in the queue.
  void finish();
  bool empty() const { return ops_.empty(); }
  void observe(Observer observer) { observer_ = std::move(observer); }

 private:
  struct Op {
    const char* name;  // nullptr: a notification
    std::int64_t next_tile;
    std::int64_t n_tiles;
    std::function<void(std::int64_t)> run;
  };
  Device device_;
  std::deque<Op> ops_;
  Observer observer_;
};

}  // namespace llm
