// A queue on a device: what is issued, in which order the loop hears of it, and what is refused.
#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "src/base/error.h"
#include "tensor/alternation.h"
#include "tensor/ops/adamw.h"
#include "tensor/ops/elementwise.h"
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

TEST_CASE("without the module nothing can be on a device") {
  CHECK_THROWS_WITH(Storage(4, Device::cuda), Catch::Contains("needs the module of CUDA"));
  CHECK(Storage::pinned(4).n_bytes() == 4);
}

}  // namespace
}  // namespace llm
