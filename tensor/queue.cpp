#include "tensor/queue.h"

#include <sched.h>

#include <chrono>
#include <utility>
#include <vector>

#include "tensor/cuda/device_stream.h"
#include "tensor/cuda/op_graphs.h"

namespace llm {
namespace {

// How long the loop polls at full speed for the other threads' last tiles of an op.
constexpr std::int64_t spin_ns = 20'000;

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace

Queue::Queue(Device device, ThreadPool* pool, const char* name)
    : device_(device), pool_(pool), name_(name) {}

Queue::~Queue() {
  drop();
}

void Queue::tiles(const char* op, std::int64_t n_tiles, std::function<void(std::int64_t)> run) {
  CHECK_CONTRACT(device_ == Device::cpu, "tiles run on the CPU");
  if (n_tiles > 0) ops_.push_back({op, 0, n_tiles, std::move(run), nullptr, &observer_});
}

void Queue::work(const char* op, std::function<void()> run) {
  tiles(op, 1, [run = std::move(run)](std::int64_t) { run(); });
}

void Queue::issue(const char* op, std::function<void(cudaStream_t)> put) {
  CHECK_CONTRACT(device_ == Device::cuda, "work is issued to a device");
  ops_.push_back({op, 0, 1, nullptr, nullptr, &observer_,
                  [put = std::move(put)](DeviceStream& stream) { put(stream.stream()); }});
}

void Queue::issue(const char* op, OpKey key, PutRepeated put) {
  CHECK_CONTRACT(device_ == Device::cuda, "work is issued to a device");
  Op one{op, 0, 1, nullptr, nullptr, &observer_};
  one.keyed = std::make_shared<const KeyedOp>(std::move(key), std::move(put));
  ops_.push_back(std::move(one));
}

void Queue::use_graphs(int least_ops) {
  CHECK_CONTRACT(device_ == Device::cuda && least_ops > 0, "graphs are of a device's queue");
  least_graph_ops_ = least_ops;
}

void Queue::end_graph() {
  if (!ops_.empty()) ops_.back().ends_graph = true;
}

Queue::GraphCounts Queue::graph_counts() const {
  return graphs_ ? graphs_->counts() : GraphCounts();
}

void Queue::read_back(const char* op, View x, std::function<void(View)> then) {
  CHECK_CONTRACT(x.device() == device_, "a queue reads what lies where it works");
  if (device_ == Device::cpu) {
    work(op, [x, then = std::move(then)] { then(x); });
    return;
  }
  ops_.push_back(
      {op, 0, 1, nullptr, nullptr, &observer_,
       [x, then = std::move(then)](DeviceStream& stream) { stream.read_back(x, then); }});
}

void Queue::reserve_read_back(std::int64_t n_bytes, int n) {
  if (device_ == Device::cpu) return;
  if (!stream_) stream_ = std::make_unique<DeviceStream>();
  stream_->reserve(n_bytes, n);
}

void Queue::notify(std::function<void()> done) {
  ops_.push_back({nullptr, 0, 1, [done = std::move(done)](std::int64_t) { done(); }});
}

void Queue::wait(std::function<bool()> is_open) {
  ops_.push_back({nullptr, 0, 1, nullptr, std::move(is_open)});
}

bool Queue::take_to_wait(Queue& other) {
  for (bool is_first = true; !other.ops_.empty(); is_first = false) {
    if (other.ops_.front().is_open && !is_first) return true;
    ops_.push_back(std::move(other.ops_.front()));
    other.ops_.pop_front();
  }
  return false;
}

bool Queue::empty() const {
  return ops_.empty() && (!stream_ || stream_->is_done());
}

bool Queue::issue_op() {
  if (!stream_) stream_ = std::make_unique<DeviceStream>();
  if (stream_->poll()) return true;
  if (ops_.empty()) return false;
  const std::function<bool()>& is_open = ops_.front().is_open;
  if (is_open && (!stream_->is_done() || !is_open())) return false;
  if (uses_graphs() && issue_graph()) return true;
  const Op op = std::move(ops_.front());
  ops_.pop_front();
  if (op.is_open) return true;
  if (op.name == nullptr) {
    stream_->call([run = op.run] { run(0); });
    return true;
  }
  current_op_.store(op.name, std::memory_order_relaxed);
  stream_->observe(op.name, op.observer);
  if (op.keyed) {
    op.keyed->put(stream_->stream(), nullptr);
  } else {
    op.issue(*stream_);
  }
  stream_->end_observed();
  return true;
}

bool Queue::may_be_in_graph(const Op& op) const {
  return op.keyed != nullptr && !*op.observer;
}

bool Queue::issue_graph() {
  std::vector<std::shared_ptr<const KeyedOp>> run;
  for (const Op& op : ops_) {
    if (!may_be_in_graph(op)) break;
    run.push_back(op.keyed);
    if (op.ends_graph) break;
  }
  if (static_cast<int>(run.size()) < least_graph_ops_) return false;
  current_op_.store(ops_.front().name, std::memory_order_relaxed);
  ops_.erase(ops_.begin(), ops_.begin() + static_cast<std::ptrdiff_t>(run.size()));
  if (!graphs_) graphs_ = std::make_unique<OpGraphs>(*stream_);
  graphs_->issue(run);
  return true;
}

bool Queue::run_tile() {
  waits_for_threads_ = false;
  if (device_ == Device::cuda) return issue_op();
  while (!ops_.empty() && ops_.front().is_open) {
    if (!ops_.front().is_open()) return false;
    ops_.pop_front();
  }
  if (ops_.empty()) return false;
  Op& op = ops_.front();
  if (op.name == nullptr) {
    // A notification may put new work in: take it off first.
    const std::function<void(std::int64_t)> run = std::move(op.run);
    ops_.pop_front();
    run(0);
    return true;
  }
  current_op_.store(op.name, std::memory_order_relaxed);
  if (pool_ != nullptr && pool_->n_threads() > 1 && op.n_tiles > 1) {
    run_shared_tile(op);
    return true;
  }
  const Observer& observer = *op.observer;
  const std::int64_t begin_ns = observer ? now_ns() : 0;
  op.run(op.next_tile);
  if (observer) observer(op.name, begin_ns, now_ns());
  if (++op.next_tile == op.n_tiles) ops_.pop_front();
  return true;
}

void Queue::run_shared_tile(const Op& op) {
  if (!is_shared_) {
    is_shared_ = true;
    shared_begin_ns_ = now_ns();
    pool_->begin(op.n_tiles, op.run);
  }
  if (pool_->run_tile()) {
    last_tile_ns_ = now_ns();
  } else if (!pool_->done()) {
    waits_for_threads_ = true;
    // Other threads of this rank or other ranks may need this core to get done.
    if (now_ns() - last_tile_ns_ > spin_ns) sched_yield();
  }
  if (!pool_->done()) return;
  if (*op.observer) (*op.observer)(op.name, shared_begin_ns_, now_ns());
  is_shared_ = false;
  ops_.pop_front();
  pool_->rethrow();
}

void Queue::finish() {
  while (run_tile()) {
  }
  while (stream_ && !stream_->is_done()) {
    stream_->wait();
    while (run_tile()) {
    }
  }
  if (stream_) stream_->synchronize();
}

void Queue::drop() {
  if (is_shared_) pool_->cancel();
  is_shared_ = false;
  ops_.clear();
  if (stream_) stream_->drop();
}

}  // namespace llm
