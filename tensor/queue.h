#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "tensor/thread_pool.h"
#include "tensor/view.h"

using cudaStream_t = struct CUstream_st*;

namespace llm {

class DeviceStream;
class OpGraphs;
struct KeyedOp;
struct OpKey;

/// Work in order, one queue a stream of it (a CUDA stream on a device). An op called with a queue
/// puts its tiles at the end and returns at once; the views it was given must stay valid until the
/// queue has passed it. On the CPU the loop runs one tile a turn on its own thread, so that
/// messages move between tiles; tests call finish(). With a pool, its threads run tiles of the op
/// at the queue's head beside the loop's: still one op at a time, in order, with the same bits.
///
/// On a device the loop issues one op a turn to the queue's stream and goes on; what is to be
/// called after it (notify, read_back) is called on the loop's thread once it has seen that the
/// device has come so far. So whoever was told may give the memory to another queue or to a
/// message, and nothing but the loop orders one queue after another.
class Queue {
 public:
  /// Called on the loop's thread when a tile ran, or all tiles of an op that a pool shares: the
  /// op's name, when it began and when it was done. For traces. An op is told to the observer of
  /// the queue that it was put into first.
  using Observer = std::function<void(const char* op, std::int64_t begin_ns, std::int64_t end_ns)>;

  /// `pool` (not owned, this queue's alone) may be nullptr.
  explicit Queue(Device device = Device::cpu, ThreadPool* pool = nullptr, const char* name = "");
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  Device device() const { return device_; }
  ThreadPool* pool() const { return pool_; }
  /// What traces call its work; a literal.
  const char* name() const { return name_; }
  int n_threads() const { return pool_ == nullptr ? 1 : pool_->n_threads(); }

  /// Puts tiles 0 .. n_tiles-1 of `op` at the end. A tile reads nothing that another tile of the
  /// same op writes; its cut is a function of the op's shape alone, or one that no bit depends on.
  /// `op` is a literal, kept by pointer.
  void tiles(const char* op, std::int64_t n_tiles, std::function<void(std::int64_t tile)> run);
  /// Puts one piece of work at the end.
  void work(const char* op, std::function<void()> run);
  /// Of a device's queue: `put` puts work into the stream that it is given, and returns.
  void issue(const char* op, std::function<void(cudaStream_t stream)> put);
  /// The same for an op that a graph may repeat: ops of equal keys are the same op. `put` reads
  /// what the key leaves out, its numbers, on the device at `numbers`, unless that is nullptr.
  using PutRepeated = std::function<void(cudaStream_t stream, const std::int64_t* numbers)>;
  void issue(const char* op, OpKey key, PutRepeated put);
  /// Of a device's queue: ops with keys that come one after another, `least_ops` and more of them,
  /// go to the device as one CUDA graph once they have come before. Not while they are observed.
  void use_graphs(int least_ops);
  bool uses_graphs() const { return least_graph_ops_ > 0; }
  /// What is in the queue and what is put in after this are not in one graph.
  void end_graph();
  struct GraphCounts {
    std::int64_t n_captured = 0;
    std::int64_t n_launched = 0;
    std::int64_t n_ops_launched = 0;  ///< in those
    std::int64_t n_ops_new = 0;       ///< issued one by one, since they came for the first time
    bool operator==(const GraphCounts&) const = default;
  };
  GraphCounts graph_counts() const;
  /// Calls `then` on the loop's thread with x on the CPU, as it is when everything put in before
  /// has run; valid during the call.
  void read_back(const char* op, View x, std::function<void(View)> then);
  /// Of a device's queue: takes the memory of `n` read_backs of so many bytes at most, before work
  /// begins, since to take it may wait for the device.
  void reserve_read_back(std::int64_t n_bytes, int n);
  /// Calls `done` on the loop's thread once everything put in before has run.
  void notify(std::function<void()> done);

  /// What is put in after this waits until `is_open` says true; asked on the loop's thread, when
  /// everything put in before has run (on a device: was issued, and whom it was to tell was told).
  /// As a stream waits for an event.
  void wait(std::function<bool()> is_open);

  /// Runs the next tile, or issues the next op; false when the queue is empty, or waits. Where the
  /// pool's other threads run an op's last tiles there is none to run: then true at once, after
  /// giving the core away if that is so for longer. An exception of a tile leaves through here,
  /// once no tile of its op runs.
  bool run_tile();
  /// Whether the last run_tile had nothing to run, because other threads run an op's last tiles.
  bool waits_for_threads() const { return waits_for_threads_; }
  /// Runs everything that is in the queue, and waits for the device.
  void finish();
  /// Forgets what is in the queue, and waits for tiles that other threads run and for what was
  /// issued to the device.
  void drop();
  bool empty() const;
  /// Tiles together, notifications and waits that are in it.
  std::size_t n_ops() const { return ops_.size(); }
  /// Moves the first ops of `other`, in which none has begun, to this one's end: a wait that is the
  /// first of all, and what follows it up to the next wait. Whether there is a next. `other` stays
  /// where it is until they have run.
  bool take_to_wait(Queue& other);
  /// The op that runs or ran last, nullptr before the first. Callable from any thread.
  const char* current_op() const { return current_op_.load(std::memory_order_relaxed); }
  void observe(Observer observer) { observer_ = std::move(observer); }

 private:
  struct Op {
    const char* name;  // nullptr: a notification
    std::int64_t next_tile;
    std::int64_t n_tiles;
    std::function<void(std::int64_t)> run;
    std::function<bool()> is_open = nullptr;  // of a wait
    const Observer* observer = nullptr;
    std::function<void(DeviceStream&)> issue = nullptr;  // on a device
    std::shared_ptr<const KeyedOp> keyed = nullptr;      // instead, where a graph may repeat it
    bool ends_graph = false;
  };
  void run_shared_tile(const Op& op);
  bool issue_op();
  bool issue_graph();
  bool may_be_in_graph(const Op& op) const;

  Device device_;
  ThreadPool* pool_;
  const char* name_;
  std::deque<Op> ops_;
  Observer observer_;
  std::atomic<const char*> current_op_{nullptr};
  // Of the op at the head, where the pool shares it.
  bool is_shared_ = false;
  bool waits_for_threads_ = false;
  std::int64_t shared_begin_ns_ = 0;
  std::int64_t last_tile_ns_ = 0;         ///< end of the last tile on the loop's thread
  std::unique_ptr<DeviceStream> stream_;  // from the first op on that is issued
  int least_graph_ops_ = 0;               // 0: no graphs
  std::unique_ptr<OpGraphs> graphs_;      // from the first on; ends before its stream
};

}  // namespace llm
