#include "tests/support/cuda/emulated_nccl.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/support/cuda/error_of.h"

using namespace llm::emulator;

namespace {

constexpr std::size_t n_floats = 64;

__global__ void set_to(float* y, float value) {
  y[threadIdx.x] = value;
}

/// A communicator of two ranks, and a stream and memory for each.
class Pair {
 public:
  explicit Pair(std::uint64_t seed) : device_(seed) {
    current_device() = &device_;
    seed_nccl(seed);
    for (int r = 0; r < 2; ++r) {
      cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking);
      for (float*& one : memory[r]) {
        void* bytes = nullptr;
        cudaMallocAsync(&bytes, n_floats * sizeof(float), streams[r]);
        one = static_cast<float*>(bytes);
      }
      cudaHostAlloc(&host[r], n_floats * sizeof(float), cudaHostAllocDefault);
    }
    ncclGetUniqueId(&id);
  }
  ~Pair() {
    fail_nccl(ncclSuccess);
    for (ncclComm_t comm : comms) {
      if (comm != nullptr) ncclCommAbort(comm);
    }
    current_device() = nullptr;
  }
  void begin(int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CHECK(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &config) == ncclInProgress);
  }
  void begin_both() {
    begin(0);
    begin(1);
    settle();
  }
  ncclResult_t state(int rank) {
    ncclResult_t state = ncclSuccess;
    ncclCommGetAsyncError(comms[rank], &state);
    return state;
  }
  void settle() {
    while (state(0) == ncclInProgress || state(1) == ncclInProgress) {
    }
  }
  void set(int rank, int which, float value) {
    cudaLaunchConfig_t config;
    config.blockDim = {n_floats};
    config.stream = streams[rank];
    cudaLaunchKernelEx(&config, set_to, memory[rank][which], value);
  }
  void send(int rank, int which, std::size_t n = n_floats) {
    ncclSend(memory[rank][which], n, ncclFloat32, 1 - rank, comms[rank], streams[rank]);
  }
  void receive(int rank, int which, std::size_t n = n_floats, ncclDataType_t dtype = ncclFloat32) {
    ncclRecv(memory[rank][which], n, dtype, 1 - rank, comms[rank], streams[rank]);
  }
  float value(int rank, int which) {
    cudaMemcpyAsync(host[rank], memory[rank][which], n_floats * sizeof(float),
                    cudaMemcpyDeviceToHost, streams[rank]);
    cudaStreamSynchronize(streams[rank]);
    return static_cast<float*>(host[rank])[n_floats - 1];
  }

  cudaStream_t streams[2] = {};
  float* memory[2][3] = {};
  void* host[2] = {};
  ncclUniqueId id;
  ncclComm_t comms[2] = {};

 private:
  Device device_;
};

}  // namespace

TEST_CASE("messages between two ranks match in the order of the calls, whichever end is first") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    Pair pair(seed);
    pair.begin_both();
    pair.set(0, 0, 1.0f);
    pair.set(0, 1, 2.0f);
    const int first = seed % 2 == 0 ? 0 : 1;
    for (const int rank : {first, 1 - first}) rank == 0 ? pair.send(0, 0) : pair.receive(1, 0);
    pair.settle();
    for (const int rank : {1 - first, first}) {
      rank == 0 ? pair.send(0, 1) : pair.receive(1, 1);
      while (pair.state(rank) == ncclInProgress) {
      }
    }
    REQUIRE(pair.value(1, 0) == 1.0f);
    REQUIRE(pair.value(1, 1) == 2.0f);
  }
}

TEST_CASE("calls of a group go on together, and without a group they wait for each other") {
  const auto exchange = [](bool is_group) {
    Pair pair(7);
    pair.begin_both();
    for (int rank = 0; rank < 2; ++rank) {
      pair.set(rank, 0, static_cast<float>(rank + 1));
      if (is_group) ncclGroupStart();
      pair.send(rank, 0);
      if (!is_group) {
        for (int n = 0; n < 9 && pair.state(rank) == ncclInProgress; ++n) {
        }
      }
      pair.receive(rank, 1);
      if (is_group) ncclGroupEnd();
    }
    pair.settle();
    return pair.value(0, 1) == 2.0f && pair.value(1, 1) == 1.0f;
  };
  CHECK(exchange(true));
  // The first message needs both ends before the call is done, so rank 0 comes no further.
  CHECK(error_of([&] { exchange(false); }).find("while it is in progress") != std::string::npos);
}

TEST_CASE("streams that wait for each other's messages are a deadlock that names them") {
  Pair pair(3);
  pair.begin_both();
  pair.set(0, 0, 1.0f);
  pair.set(1, 0, 1.0f);
  ncclGroupStart();  // connects both directions
  pair.send(0, 0);
  pair.receive(0, 1);
  ncclGroupEnd();
  ncclGroupStart();
  pair.send(1, 0);
  pair.receive(1, 1);
  ncclGroupEnd();
  pair.settle();
  for (int rank = 0; rank < 2; ++rank) {
    pair.send(rank, 0);
    while (pair.state(rank) == ncclInProgress) {
    }
    pair.receive(rank, 1);
    while (pair.state(rank) == ncclInProgress) {
    }
  }
  const std::string text = error_of([&] { cudaStreamSynchronize(pair.streams[0]); });
  CHECK(text.find("waits for ever; stream ") != std::string::npos);
  CHECK(text.find("waits in ncclSend of rank 0 to rank 1; ") != std::string::npos);
  CHECK(text.find("waits in ncclSend of rank 1 to rank 0") != std::string::npos);
  for (ncclComm_t& comm : pair.comms) ncclCommAbort(std::exchange(comm, nullptr));
  CHECK(cudaStreamSynchronize(pair.streams[0]) == cudaSuccess);
}

TEST_CASE("a send and a receive that do not match are an error with both") {
  Pair pair(1);
  pair.begin_both();
  pair.set(0, 0, 1.0f);
  pair.send(0, 0, 64);
  CHECK(error_of([&] { pair.receive(1, 0, 63); }) ==
        "ncclRecv of rank 1 has 63 elements of 4 bytes, NCCL's dtype 7; its partner has 64 "
        "elements of 4 bytes, NCCL's dtype 7");
  Pair other(1);
  other.begin_both();
  other.receive(1, 0, 64, ncclInt32);
  CHECK(error_of([&] { other.send(0, 0, 64); }).find("NCCL's dtype 7; its partner has 64") !=
        std::string::npos);
}

TEST_CASE("a communicator is ready when all its ranks have begun it, not before") {
  Pair pair(5);
  pair.begin(0);
  for (int n = 0; n < 20; ++n) CHECK(pair.state(0) == ncclInProgress);
  CHECK(error_of([&] { pair.send(0, 0); }).find("in progress; poll its state") !=
        std::string::npos);
  pair.begin(1);
  pair.settle();
  CHECK(pair.state(0) == ncclSuccess);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm = nullptr;
  CHECK(error_of([&] { ncclCommInitRankConfig(&comm, 2, pair.id, 0, &config); }) ==
        "a communicator that blocks would wait for ranks of the same thread");
}

TEST_CASE("an error is reported until the communicators are gone, and work must end before") {
  Pair pair(2);
  pair.begin_both();
  pair.set(0, 0, 1.0f);
  pair.send(0, 0);
  fail_nccl(ncclRemoteError);
  CHECK(pair.state(0) == ncclRemoteError);
  CHECK(error_of([&] { pair.receive(1, 0); }).find("in error") != std::string::npos);
  fail_nccl(ncclSuccess);
  pair.receive(1, 0);
  pair.settle();
  const int n_before = n_communicators();
  ncclCommFinalize(pair.comms[0]);
  CHECK(error_of([&] { pair.send(0, 0); }).find("finalized") != std::string::npos);
  CHECK(pair.value(1, 0) == 1.0f);
  while (pair.state(0) == ncclInProgress) {
  }
  ncclCommDestroy(std::exchange(pair.comms[0], nullptr));
  CHECK(n_communicators() == n_before - 1);
}
