#include "tensor/cuda/op_graphs.h"

#include <algorithm>

#include "tensor/cuda/module.h"

namespace llm {

/// A CUDA graph that can be launched.
struct Graph {
  explicit Graph(cudaGraphExec_t executable_) : executable(executable_) {}
  ~Graph() {
    if (executable != nullptr) cuda::module().runtime.destroy_graph(executable);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  cudaGraphExec_t executable;
};

namespace {

/// What is put into the stream while it lives becomes a graph, unless it ends by an error.
class Capture {
 public:
  explicit Capture(cudaStream_t stream) : stream_(stream) { runtime().begin_capture(stream); }
  ~Capture() {
    if (!is_ended_) runtime().cancel_capture(stream_);
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  std::shared_ptr<Graph> end() {
    is_ended_ = true;
    return std::make_shared<Graph>(runtime().end_capture(stream_));
  }

 private:
  static const cuda::RuntimeCalls& runtime() { return cuda::module().runtime; }
  cudaStream_t stream_;
  bool is_ended_ = false;
};

}  // namespace

OpGraphs::OpGraphs(DeviceStream& stream)
    : stream_(stream),
      numbers_(static_cast<std::int64_t*>(
          cuda::module().runtime.allocate(sizeof(cuda::GraphNumbers::values)))) {}

OpGraphs::~OpGraphs() {
  cuda::module().runtime.release(numbers_);
}

OpGraphs::Numbers OpGraphs::numbers_of(const Run& run) const {
  Numbers numbers;
  std::vector<std::int64_t>& all = numbers.values;
  for (const auto& op : run) {
    const std::vector<std::int64_t>& own = op->key.numbers;
    const auto found = std::search(all.begin(), all.end(), own.begin(), own.end());
    numbers.begins.push_back(static_cast<std::size_t>(found - all.begin()));
    if (found == all.end()) all.insert(all.end(), own.begin(), own.end());
  }
  return numbers;
}

std::shared_ptr<Graph> OpGraphs::capture(const Run& run, const Numbers& numbers) const {
  Capture capture(stream_.stream());
  for (std::size_t i = 0; i < run.size(); ++i) {
    const bool has_numbers = !run[i]->key.numbers.empty();
    run[i]->put(stream_.stream(), has_numbers ? numbers_ + numbers.begins[i] : nullptr);
  }
  return capture.end();
}

void OpGraphs::forget_oldest() {
  const auto oldest = std::min_element(
      seen_.begin(), seen_.end(),
      [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; });
  // The device may be working on it.
  if (oldest->second.graph) stream_.call([graph = oldest->second.graph] {});
  seen_.erase(oldest);
}

void OpGraphs::issue(const Run& run) {
  const Numbers numbers = numbers_of(run);
  OpKey key;
  for (std::size_t i = 0; i < run.size(); ++i) {
    key.bytes += run[i]->key.bytes;
    cuda::add_bytes(key, numbers.begins[i]);
  }
  const auto [at, is_new] = seen_.try_emplace(std::move(key.bytes));
  Seen& seen = at->second;
  seen.last_use = ++n_uses_;
  const auto n_ops = static_cast<std::int64_t>(run.size());
  if (is_new || numbers.values.size() > cuda::GraphNumbers::most) {
    for (const auto& op : run) op->put(stream_.stream(), nullptr);
    counts_.n_ops_new += n_ops;
    if (seen_.size() > most_runs) forget_oldest();
    return;
  }
  if (!seen.graph) {
    seen.graph = capture(run, numbers);
    ++counts_.n_captured;
  }
  if (!numbers.values.empty()) {
    cuda::GraphNumbers given;
    std::copy(numbers.values.begin(), numbers.values.end(), given.values);
    cuda::module().ops.write_numbers(stream_.stream(), given, numbers_);
  }
  cuda::module().runtime.launch_graph(seen.graph->executable, stream_.stream());
  ++counts_.n_launched;
  counts_.n_ops_launched += n_ops;
}

}  // namespace llm
