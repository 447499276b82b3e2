// A queue on a device: what is issued, in which order the loop hears of it, and what is refused.
#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "tensor/alternation.h"
#include "tensor/cuda/op_graphs.h"
#include "tensor/ops/adamw.h"
#include "tensor/ops/dropout.h"
#include "tensor/ops/elementwise.h"
#include "tensor/ops/linear.h"
#include "tensor/queue.h"
#include "tensor/storage.h"
#include "tests/cuda/emulated_module.h"
#include "tests/support/cuda/error.h"

namespace llm {
namespace {

constexpr std::int64_t n = 1000;

Storage numbers(float first) {
  Storage storage = Storage::pinned(n * 4);
  float* const x = storage.view(Dtype::f32, {n}).as<float>();
  std::iota(x, x + n, first);
  return storage;
}

std::vector<float> copied(View x) {
  return {x.as<float>(), x.as<float>() + x.n_elements()};
}

TEST_CASE("an op's scratch that a device has no memory for is out of memory, of so many bytes") {
  test::EmulatedModule emulated(1);
  cuda::module().runtime.use_library(false);
  {
    const Storage x(n * 8 * 4, Device::cuda), dweight(8 * 8 * 4, Device::cuda),
        dbias(8 * 4, Device::cuda);
    emulated.device().limit_bytes = emulated.device().bytes_in_use();
    Queue queue(Device::cuda);
    const View rows = x.view(Dtype::f32, {n, 8});
    linear_backward_weight(queue, rows, rows, Write::set, dweight.view(Dtype::f32, {8, 8}),
                           dbias.view(Dtype::f32, {8}));
    CHECK_THROWS_WITH(queue.finish(), Catch::Matches("out of memory: [1-9][0-9]* bytes asked for"));
  }
  cuda::module().runtime.use_library(true);
}

TEST_CASE("memory of a device begins as zeros, is counted, and is given back") {
  test::EmulatedModule emulated(1);
  const std::int64_t before = storage_bytes_in_use(Device::cuda);
  {
    const Storage storage(n * 4, Device::cuda);
    CHECK(storage_bytes_in_use(Device::cuda) == before + n * 4);
    CHECK(storage.view(Dtype::f32, {n}).device() == Device::cuda);
    storage.discard(0, n * 4);
    Queue queue(Device::cuda);
    queue.read_back("read", storage.view(Dtype::f32, {n}),
                    [](View x) { CHECK(copied(x) == std::vector<float>(n, 0.0f)); });
    queue.finish();
  }
  CHECK(storage_bytes_in_use(Device::cuda) == before);
  CHECK(emulated.device().bytes_in_use() == 0);
}

TEST_CASE("a queue of a device runs ops in order and tells when they have run") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    test::EmulatedModule emulated(seed);
    const Storage from = numbers(0);
    const Storage to = Storage::pinned(n * 4);
    const Storage there(n * 4, Device::cuda);
    const MutView x = there.view(Dtype::f32, {n});
    Queue queue(Device::cuda);
    std::vector<std::string> heard;
    copy(queue, from.view(Dtype::f32, {n}), x);
    add(queue, x, x);
    queue.read_back("read", x, [&](View values) {
      heard.push_back("read");
      CHECK(values.as<float>()[n - 1] == 2 * (n - 1));
    });
    fill(queue, 7, x);
    queue.notify([&] { heard.push_back("filled"); });
    copy(queue, x, to.view(Dtype::f32, {n}));
    queue.notify([&] {
      heard.push_back("copied");
      CHECK(to.view(Dtype::f32, {n}).as<float>()[0] == 7);
    });
    CHECK(heard.empty());
    queue.finish();
    CHECK(queue.empty());
    CHECK(heard == std::vector<std::string>{"read", "filled", "copied"});
  }
}

TEST_CASE("what is put in after a wait is not issued before it opens") {
  test::EmulatedModule emulated(3);
  const Storage there(n * 4, Device::cuda);
  const MutView x = there.view(Dtype::f32, {n});
  Queue queue(Device::cuda);
  bool is_open = false;
  bool is_reached = false;
  float seen = -1;
  queue.notify([&] { is_reached = true; });
  queue.wait([&] { return is_open; });
  fill(queue, 3, x);
  queue.read_back("read", x, [&](View values) { seen = values.as<float>()[0]; });
  queue.finish();
  CHECK(is_reached);
  CHECK(seen == -1);
  CHECK_FALSE(queue.empty());
  is_open = true;
  queue.finish();
  CHECK(seen == 3);
}

TEST_CASE("lanes of a device's queue are shuffled into one stream") {
  test::EmulatedModule emulated(4);
  const Storage there(n * 4, Device::cuda);
  const MutView x = there.view(Dtype::f32, {n});
  Queue queue(Device::cuda);
  Alternation alternation(queue, {"first", "second"});
  std::vector<float> seen;
  const auto see = [&](View values) { seen.push_back(values.as<float>()[0]); };
  fill(alternation.lane(0), 1, x);
  alternation.lane(0).read_back("read", x, see);
  fill(alternation.lane(1), 2, x);
  alternation.lane(1).read_back("read", x, see);
  alternation.finish();
  queue.finish();
  CHECK(seen == std::vector<float>{1, 2});
}

TEST_CASE("ops of a device are told to an observer with the device's times") {
  test::EmulatedModule emulated(5);
  const Storage there(n * 4, Device::cuda);
  Queue queue(Device::cuda);
  std::vector<std::string> ops;
  std::int64_t last_end = 0;
  queue.observe([&](const char* op, std::int64_t begin_ns, std::int64_t end_ns) {
    ops.emplace_back(op);
    CHECK(begin_ns >= last_end - 1000);  // of a float of milliseconds
    CHECK(end_ns >= begin_ns);
    last_end = end_ns;
  });
  fill(queue, 1, there.view(Dtype::f32, {n}));
  add(queue, there.view(Dtype::f32, {n}), there.view(Dtype::f32, {n}));
  queue.finish();
  CHECK(ops == std::vector<std::string>{"fill", "add"});
}

TEST_CASE("a queue that is dropped calls nobody, and its memory may go") {
  test::EmulatedModule emulated(6);
  Queue queue(Device::cuda);
  {
    const Storage there(n * 4, Device::cuda);
    fill(queue, 1, there.view(Dtype::f32, {n}));
    queue.read_back("read", there.view(Dtype::f32, {n}), [](View) { FAIL("nobody is called"); });
    queue.notify([] { FAIL("nobody is called"); });
    queue.run_tile();
    queue.run_tile();
    queue.drop();
    CHECK(queue.empty());
  }
  queue.finish();
}

TEST_CASE("an op refuses tensors that do not lie where its queue works") {
  test::EmulatedModule emulated(7);
  const Storage there(n * 4, Device::cuda);
  const Storage here(n * 4);
  Queue on_device(Device::cuda);
  Queue on_cpu;
  CHECK_THROWS_WITH(add(on_device, here.view(Dtype::f32, {n}), there.view(Dtype::f32, {n})),
                    Catch::Contains("add works on a device, where its tensors lie"));
  CHECK_THROWS_WITH(add(on_cpu, here.view(Dtype::f32, {n}), there.view(Dtype::f32, {n})),
                    Catch::Contains("add works on the CPU, where its tensors lie"));
  CHECK_THROWS_AS(copy(on_cpu, here.view(Dtype::f32, {n}), there.view(Dtype::f32, {n})),
                  ContractBroken);
  CHECK_THROWS_AS(on_device.work("work", [] {}), ContractBroken);
  CHECK_THROWS_AS(on_cpu.issue("work", [](cudaStream_t) {}), ContractBroken);
}

TEST_CASE("copies to memory that is not pinned, and other queues without word, are found") {
  test::EmulatedModule emulated(8);
  const Storage there(n * 4, Device::cuda);
  const MutView x = there.view(Dtype::f32, {n});
  const Storage here(n * 4);
  Queue one(Device::cuda);
  Queue other(Device::cuda);
  copy(one, here.view(Dtype::f32, {n}), x);
  CHECK_THROWS_AS(one.finish(), emulator::EmulatorError);
  one.drop();
  fill(one, 1, x);
  add(other, x, x);
  one.run_tile();
  CHECK_THROWS_AS(other.run_tile(), emulator::EmulatorError);
}

/// x = 1, then three times x = x + x, and what the device has then.
float doubled_thrice(Queue& queue, const MutView& x) {
  fill(queue, 1, x);
  for (int i = 0; i < 3; ++i) add(queue, x, x);
  float seen = 0;
  queue.read_back("read", x, [&](View values) { seen = values.as<float>()[n - 1]; });
  queue.finish();
  return seen;
}

TEST_CASE("a run of ops that comes again is a graph, with what it gives op by op") {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    test::EmulatedModule emulated(seed);
    const Storage there(2 * n * 4, Device::cuda);
    const MutView x = there.view(Dtype::f32, {n});
    const MutView y = there.view(Dtype::f32, {n}, n * 4);
    Queue queue(Device::cuda);
    queue.use_graphs(4);
    for (int i = 0; i < 4; ++i) CHECK(doubled_thrice(queue, x) == 8);
    CHECK(queue.graph_counts() == Queue::GraphCounts{1, 3, 12, 4});
    // Other memory is another run.
    for (int i = 0; i < 2; ++i) CHECK(doubled_thrice(queue, y) == 8);
    CHECK(queue.graph_counts() == Queue::GraphCounts{2, 4, 16, 8});
    // So is another parameter: fill's value.
    fill(queue, 3, x);
    for (int i = 0; i < 3; ++i) add(queue, x, x);
    queue.finish();
    CHECK(queue.graph_counts() == Queue::GraphCounts{2, 4, 16, 12});
  }
}

TEST_CASE("graphs end at notifications, where they are told to, and are not made of few ops") {
  test::EmulatedModule emulated(11);
  const Storage there(n * 4, Device::cuda);
  const MutView x = there.view(Dtype::f32, {n});
  Queue queue(Device::cuda);
  queue.use_graphs(2);
  std::vector<Queue::GraphCounts> told;
  for (int i = 0; i < 2; ++i) {
    add(queue, x, x);
    add(queue, x, x);
    queue.notify([&] { told.push_back(queue.graph_counts()); });
    add(queue, x, x);
    queue.end_graph();
    for (int k = 0; k < 3; ++k) add(queue, x, x);
    queue.finish();
  }
  CHECK(queue.graph_counts() == Queue::GraphCounts{2, 2, 5, 5});
  CHECK(told.size() == 2);
}

TEST_CASE("ops that are observed, and AdamW's, are in no graph") {
  test::EmulatedModule emulated(12);
  const Storage there(n * 4, Device::cuda);
  const MutView x = there.view(Dtype::f32, {n});
  Queue queue(Device::cuda);
  queue.use_graphs(1);
  AdamwStep step{};
  step.t = 1;
  for (int i = 0; i < 2; ++i) adamw(queue, step, x, x, x, x);
  queue.finish();
  queue.observe([](const char*, std::int64_t, std::int64_t) {});
  for (int i = 0; i < 2; ++i) doubled_thrice(queue, x);
  CHECK(queue.graph_counts() == Queue::GraphCounts{});
}

TEST_CASE("a graph reads dropout's step and samples anew") {
  test::EmulatedModule emulated(13);
  const Storage there(2 * n * 4, Device::cuda);
  const MutView x = there.view(Dtype::f32, {10, n / 10});
  const MutView y = there.view(Dtype::f32, {10, n / 10}, n * 4);
  Queue with(Device::cuda);
  Queue without(Device::cuda);
  with.use_graphs(2);
  const auto masks = [&](Queue& queue, std::int64_t step) {
    std::vector<float> seen;
    fill(queue, 1, x);
    for (const std::int64_t first_sample : {step, step + 7, step}) {
      const Dropout dropout{.p = 0.5f, .seed = 3, .step = step, .first_sample = first_sample};
      dropout_forward(queue, dropout, 5, x, y, y);
    }
    queue.read_back("read", y, [&](View values) { seen = copied(values); });
    fill(queue, 0, y);
    queue.finish();
    return seen;
  };
  for (std::int64_t step = 0; step < 4; ++step) CHECK(masks(with, step) == masks(without, step));
  CHECK(with.graph_counts() == Queue::GraphCounts{1, 3, 12, 4});
}

TEST_CASE("the runs used last are kept, and graphs go when the device is done with them") {
  test::EmulatedModule emulated(14);
  const std::int64_t n_runs = static_cast<std::int64_t>(OpGraphs::most_runs) + 10;
  const Storage there(n_runs * 64, Device::cuda);
  Queue queue(Device::cuda);
  queue.use_graphs(1);
  const auto use = [&](std::int64_t run) {
    fill(queue, 1, there.view(Dtype::f32, {1}, run * 64));
    queue.notify([] {});
  };
  for (std::int64_t run = 0; run < n_runs; ++run) {
    use(run);
    use(run);
  }
  queue.finish();
  CHECK(queue.graph_counts().n_captured == n_runs);
  use(n_runs - 1);
  use(0);
  queue.finish();
  CHECK(queue.graph_counts().n_launched == n_runs + 1);
}

TEST_CASE("an op that cannot be in a graph says so, and the queue can end") {
  test::EmulatedModule emulated(15);
  Queue queue(Device::cuda);
  queue.use_graphs(1);
  const auto put = [](cudaStream_t stream, const std::int64_t*) {
    cuda::module().runtime.synchronize(stream);
  };
  queue.issue("work", OpKey{"key", {}}, put);
  queue.finish();
  queue.issue("work", OpKey{"key", {}}, put);
  CHECK_THROWS_WITH(queue.finish(), Catch::Contains("whose work is captured"));
}

TEST_CASE("without the module nothing can be on a device") {
  CHECK_THROWS_WITH(Storage(4, Device::cuda), Catch::Contains("needs the module of CUDA"));
  CHECK(Storage::pinned(4).n_bytes() == 4);
}

}  // namespace
}  // namespace llm
