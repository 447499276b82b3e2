#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <numeric>
#include <set>
#include <string>

#include "tests/support/cuda/error_of.h"

using namespace llm::emulator;

namespace {

constexpr std::uint32_t all_lanes = 0xFFFFFFFFu;

/// Runs a kernel on host memory, without streams.
template <typename Kernel>
void run(Dim3 grid, Dim3 block, std::uint64_t seed, Kernel kernel) {
  Launch launch;
  launch.grid = grid;
  launch.block = block;
  launch.kernel = kernel;
  run_grid(launch, seed);
}

/// A tree over shared memory; the barrier between its levels is left out on wish.
void block_sum(const float* x, float* y, bool has_barrier) {
  __shared__ float part[64];
  part[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (unsigned n = blockDim.x / 2; n > 0; n /= 2) {
    if (threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
    if (has_barrier) __syncthreads();
  }
  if (threadIdx.x == 0) *y = part[0];
}

/// A device with two streams.
class Rig {
 public:
  explicit Rig(std::uint64_t seed = 1) : device_(seed) {
    current_device() = &device_;
    for (cudaStream_t& stream : streams) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  }
  ~Rig() { current_device() = nullptr; }
  float* device_floats(std::size_t n, int stream = 0) {
    void* memory = nullptr;
    cudaMallocAsync(&memory, n * sizeof(float), streams[stream]);
    return static_cast<float*>(memory);
  }
  float* pinned_floats(std::size_t n) {
    void* memory = nullptr;
    cudaHostAlloc(&memory, n * sizeof(float), cudaHostAllocDefault);
    return static_cast<float*>(memory);
  }
  template <typename... Parameters, typename... Arguments>
  void launch(int stream, void (*kernel)(Parameters...), Arguments... arguments) {
    cudaLaunchConfig_t config;
    config.gridDim = {4};
    config.blockDim = {32};
    config.stream = streams[stream];
    cudaLaunchKernelEx(&config, kernel, arguments...);
  }
  Device& device() { return device_; }

  cudaStream_t streams[2] = {};
  cudaEvent_t event = nullptr;

 private:
  Device device_;
};

constexpr std::size_t n_floats = 128;

__global__ void set_to(float* y, float value) {
  y[blockIdx.x * blockDim.x + threadIdx.x] = value;
}
__global__ void add_to(const float* x, float* y) {
  y[blockIdx.x * blockDim.x + threadIdx.x] += x[blockIdx.x * blockDim.x + threadIdx.x];
}

}  // namespace

TEST_CASE("every thread of every block runs once, whatever the order") {
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    std::multiset<unsigned> ran;
    run({3, 2, 2}, {5, 3, 2}, seed, [&] {
      const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      ran.insert(block * 30 + thread);
    });
    REQUIRE(ran.size() == 12 * 30);
    for (unsigned i = 0; i < 12 * 30; ++i) REQUIRE(ran.count(i) == 1);
  }
}

TEST_CASE(
    "a sum over shared memory is right with its barriers, and not for all seeds without one") {
  std::vector<float> x(64);
  std::iota(x.begin(), x.end(), 1.0f);
  int n_wrong = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    float y = 0;
    run({1}, {64}, seed, [&] { block_sum(x.data(), &y, true); });
    REQUIRE(y == 64 * 65 / 2);
    run({1}, {64}, seed, [&] { block_sum(x.data(), &y, false); });
    n_wrong += y != 64 * 65 / 2 ? 1 : 0;
  }
  CHECK(n_wrong > 15);
}

TEST_CASE("a warp that runs ahead is found to write what others have not read") {
  for (const bool has_barrier : {true, false}) {
    int n_wrong = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      run({1}, {128}, seed, [&] {
        __shared__ unsigned part[4];
        for (unsigned round = 1; round <= 3; ++round) {
          if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = round;
          __syncthreads();
          const unsigned sum = part[0] + part[1] + part[2] + part[3];
          if (has_barrier) __syncthreads();
          __syncwarp();
          n_wrong += sum != 4 * round ? 1 : 0;
        }
      });
    }
    CHECK((n_wrong > 0) == !has_barrier);
  }
}

TEST_CASE("a shuffle gives another lane's value, and its own outside of the warp") {
  std::vector<unsigned> down(48);
  std::vector<unsigned> swapped(48);
  std::vector<float> first(48);
  run({1}, {48}, 3, [&] {
    const unsigned t = threadIdx.x;
    down[t] = __shfl_down_sync(all_lanes, t, 1);
    swapped[t] = __shfl_xor_sync(all_lanes, t, 3);
    first[t] = __shfl_sync(all_lanes, static_cast<float>(t) + 0.5f, 0);
  });
  for (unsigned t = 0; t < 48; ++t) {
    const bool is_last = t == 31 || t == 47;
    CHECK(down[t] == (is_last ? t : t + 1));
    CHECK(swapped[t] == (t ^ 3u));
    CHECK(first[t] == (t < 32 ? 0.5f : 32.5f));
  }
}

TEST_CASE("a ballot has a bit for each lane that says so") {
  std::uint32_t bits = 0;
  run({1}, {32}, 3, [&] { bits = __ballot_sync(all_lanes, threadIdx.x % 3 == 0); });
  for (unsigned lane = 0; lane < 32; ++lane) CHECK((bits >> lane & 1u) == (lane % 3 == 0 ? 1 : 0));
}

TEST_CASE("threads that do not meet are an error with the places where they stand") {
  const std::string text = error_of([] {
    run({2}, {64}, 1, [] {
      if (threadIdx.x >= 60) return;
      __syncthreads();
    });
  });
  CHECK(text.find("do not meet: 60 at __syncthreads in line ") != std::string::npos);
  CHECK(text.find("4 at the kernel's end") != std::string::npos);
  CHECK(error_of([] {
          run({1}, {64}, 1, [] {
            if (threadIdx.x < 32) {
              __syncthreads();
            } else {
              __syncthreads();
            }
          });
        }).find("32 at ") != std::string::npos);
  CHECK(error_of([] {
          run({1}, {32}, 1, [] { __syncwarp(threadIdx.x < 16 ? 0xFFFFu : all_lanes); });
        }).find("do not meet") != std::string::npos);
  CHECK(error_of([] {
          run({1}, {32}, 1, [] { __syncwarp(0xFFFFu); });
        }).find("with a mask that leaves it out") != std::string::npos);
  CHECK(error_of([] { run({1}, {1025}, 1, [] {}); }).find("blocks have 1 to 1024") !=
        std::string::npos);
}

TEST_CASE("shared memory that nobody wrote is no number") {
  bool was_nan = true;
  for (int n = 0; n < 2; ++n) {
    run({2}, {8}, 1, [&] {
      __shared__ float part[8];
      was_nan = was_nan && std::isnan(part[threadIdx.x]);
      part[threadIdx.x] = 1;
    });
  }
  CHECK(was_nan);
}

TEST_CASE("what streams and events order has one result, in every order that they allow") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Rig rig(seed);
    float* const x = rig.device_floats(n_floats);
    float* const y = rig.device_floats(n_floats);
    float* const out = rig.pinned_floats(n_floats);
    rig.launch(0, set_to, x, 1.0f);
    rig.launch(0, set_to, y, 2.0f);
    cudaEventRecord(rig.event, rig.streams[0]);
    cudaStreamWaitEvent(rig.streams[1], rig.event);
    rig.launch(1, add_to, x, y);
    cudaMemcpyAsync(out, y, n_floats * 4, cudaMemcpyDeviceToHost, rig.streams[1]);
    cudaEventRecord(rig.event, rig.streams[1]);
    while (cudaEventQuery(rig.event) == cudaErrorNotReady) {
    }
    REQUIRE(out[0] == 3);
    REQUIRE(out[n_floats - 1] == 3);
    cudaFreeAsync(x, rig.streams[1]);
    cudaFreeAsync(y, rig.streams[1]);
    CHECK(rig.device().bytes_in_use() == 0);
  }
}

TEST_CASE("what the host reads before it has waited is not there") {
  int n_early = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Rig rig(seed);
    float* const x = rig.device_floats(n_floats);
    float* const out = rig.pinned_floats(n_floats);
    rig.launch(0, set_to, x, 1.0f);
    cudaMemcpyAsync(out, x, n_floats * 4, cudaMemcpyDeviceToHost, rig.streams[0]);
    n_early += std::isnan(out[0]) ? 0 : 1;
    cudaStreamSynchronize(rig.streams[0]);
    REQUIRE(out[0] == 1);
  }
  CHECK(n_early < 15);  // and sometimes a device is fast
}

TEST_CASE("use before an event is an error that names what it races with") {
  const std::string before =
      "a kernel uses memory before an event that says a kernel, on another stream, has ";
  const std::string cure = " it; record one and wait for it";
  const auto race = [](bool writes_first) {
    return error_of([writes_first] {
      Rig rig;
      float* const x = rig.device_floats(n_floats);
      float* const y = rig.device_floats(n_floats);
      cudaStreamSynchronize(rig.streams[0]);
      if (writes_first) {
        rig.launch(0, set_to, x, 1.0f);
        rig.launch(1, add_to, x, y);
      } else {
        rig.launch(0, add_to, x, y);
        rig.launch(1, set_to, x, 1.0f);
      }
    });
  };
  CHECK(race(true) == before + "written" + cure);
  CHECK(race(false) == before + "read" + cure);
  CHECK(error_of([] {
          Rig rig;
          float* const x = rig.device_floats(n_floats);
          rig.launch(1, set_to, x, 1.0f);
        }).find("uses memory before its allocation: another stream allocates it") !=
        std::string::npos);
  // The host has waited: that orders them too.
  CHECK(error_of([] {
          Rig rig;
          float* const x = rig.device_floats(n_floats);
          rig.launch(0, set_to, x, 1.0f);
          cudaEventRecord(rig.event, rig.streams[0]);
          cudaEventSynchronize(rig.event);
          rig.launch(1, set_to, x, 1.0f);
        }) == "no error");
}

TEST_CASE("what CUDA passes over in silence is an error") {
  Rig rig;
  float* const x = rig.device_floats(n_floats);
  std::vector<float> plain(n_floats);
  CHECK(error_of([&] { cudaStreamWaitEvent(rig.streams[0], rig.event); }) ==
        "a stream waits for an event that was never recorded");
  CHECK(error_of([&] { cudaEventQuery(rig.event); }) ==
        "the host asks for an event that was never recorded");
  CHECK(error_of([&] {
          cudaMemcpyAsync(x, plain.data(), n_floats * 4, cudaMemcpyHostToDevice, rig.streams[0]);
        }).find("host memory that is not pinned") != std::string::npos);
  CHECK(error_of([&] { cudaMemsetAsync(x, 0, 4, nullptr); }).find("the default stream is used") !=
        std::string::npos);
  cudaFreeAsync(x, rig.streams[0]);
  CHECK(error_of([&] { rig.launch(0, set_to, x, 1.0f); }) ==
        "a kernel is given memory that was released");
  CHECK(error_of([&] { cudaFreeAsync(x, rig.streams[0]); }) == "memory is released twice");
}

TEST_CASE("a kernel asks before it has more than 48 KiB of shared memory, and has 227 at most") {
  Rig rig;
  float* const x = rig.device_floats(n_floats);
  cudaLaunchConfig_t config;
  config.gridDim = {4};
  config.blockDim = {32};
  config.stream = rig.streams[0];
  config.dynamicSmemBytes = 64 << 10;
  CHECK(cudaLaunchKernelEx(&config, set_to, x, 1.0f) == cudaErrorInvalidValue);
  const auto ask = [](int bytes) {
    return cudaFuncSetAttribute(set_to, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  CHECK(ask(228 << 10) == cudaErrorInvalidValue);
  CHECK(ask(64 << 10) == cudaSuccess);
  CHECK(cudaLaunchKernelEx(&config, set_to, x, 1.0f) == cudaSuccess);
}

TEST_CASE("a row of tensor cores' matrices is aligned") {
  alignas(16) static std::uint16_t rows[32 * 8 + 1] = {};
  const auto load = [](int offset) {
    run({1}, {32}, 1, [offset] {
      std::uint32_t x[4];
      load_matrices(x, rows + threadIdx.x * 8 + offset, false);
    });
  };
  CHECK(error_of([&] { load(0); }) == "no error");
  CHECK(error_of([&] { load(1); }).find("not aligned to 16 bytes") != std::string::npos);
}

TEST_CASE("a captured stream's work runs at each launch, with memory of its own, and not before") {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    Rig rig(seed);
    const cudaStream_t stream = rig.streams[0];
    float* const x = rig.device_floats(n_floats);
    float* const seen = rig.pinned_floats(n_floats);
    rig.launch(0, set_to, x, 1.0f);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    void* scratch = nullptr;
    cudaMallocAsync(&scratch, n_floats * sizeof(float), stream);
    cudaMemcpyAsync(scratch, x, n_floats * sizeof(float), cudaMemcpyDefault, stream);
    rig.launch(0, add_to, static_cast<const float*>(scratch), x);
    cudaFreeAsync(scratch, stream);
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    cudaGraphExec_t executable = nullptr;
    REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
    cudaGraphDestroy(graph);
    const std::size_t before = rig.device().bytes_in_use();
    for (int i = 0; i < 3; ++i) cudaGraphLaunch(executable, stream);
    cudaMemcpyAsync(seen, x, n_floats * sizeof(float), cudaMemcpyDefault, stream);
    cudaStreamSynchronize(stream);
    REQUIRE(seen[0] == 8);
    REQUIRE(seen[n_floats - 1] == 8);
    REQUIRE(rig.device().bytes_in_use() == before);
    // Another stream's launch is ordered by events as any work is.
    REQUIRE(error_of([&] {
              rig.launch(1, set_to, x, 2.0f);
              cudaGraphLaunch(executable, stream);
            }).find("before an event") != std::string::npos);
  }
}

TEST_CASE("while a stream is captured nothing waits for it, and a graph keeps no memory") {
  Rig rig;
  const cudaStream_t stream = rig.streams[0];
  float* const outside = rig.device_floats(n_floats);
  cudaEventRecord(rig.event, rig.streams[1]);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  const std::string captured = " in a stream whose work is captured";
  CHECK(error_of([&] { cudaStreamSynchronize(stream); }) == "the host waits for work" + captured);
  CHECK(error_of([&] { cudaStreamQuery(stream); }) == "the host asks for work" + captured);
  CHECK(error_of([&] { cudaEventRecord(rig.event, stream); }) == "an event is recorded" + captured);
  CHECK(error_of([&] { cudaStreamWaitEvent(stream, rig.event); }) ==
        "an event is waited for" + captured);
  CHECK(error_of([&] { cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal); }) ==
        "a capture begins" + captured);
  CHECK(error_of([&] { cudaFreeAsync(outside, stream); }) ==
        "memory that a graph did not allocate is released in it");
  void* kept = nullptr;
  cudaMallocAsync(&kept, 4, stream);
  cudaGraph_t graph = nullptr;
  CHECK(error_of([&] { cudaStreamEndCapture(stream, &graph); }) ==
        "a graph keeps memory that it allocates; it could be launched once only");
  CHECK(error_of([&] { cudaStreamEndCapture(stream, &graph); }) ==
        "a capture ends that never began");
}

TEST_CASE("a graph is destroyed when its launches have run") {
  Rig rig;
  const cudaStream_t stream = rig.streams[0];
  float* const x = rig.device_floats(n_floats);
  cudaGraph_t graph = nullptr;
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  rig.launch(0, set_to, x, 1.0f);
  cudaStreamEndCapture(stream, &graph);
  cudaGraphExec_t executable = nullptr;
  cudaGraphInstantiate(&executable, graph, 0);
  // Behind work of another stream that cannot run yet, the launch cannot either.
  rig.device().put(number_of(rig.streams[1]), "another's work", {}, [] { return Step::blocked; });
  cudaEventRecord(rig.event, rig.streams[1]);
  cudaStreamWaitEvent(stream, rig.event);
  cudaGraphLaunch(executable, stream);
  CHECK(error_of([&] { cudaGraphExecDestroy(executable); }) ==
        "a graph is destroyed while a launch of it has not run");
}

TEST_CASE("without a device the count stays unwritten, as without a driver") {
  int n = 7;
  CHECK(cudaGetDeviceCount(&n) == cudaErrorInsufficientDriver);
  CHECK(n == 7);
}
