// Sums over the ranks of an emulated communicator.
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/cuda/emulated_nccl.h"
#include "tests/support/cuda/error_of.h"

using namespace llm::emulator;

namespace {

constexpr std::size_t n_floats = 48;

__global__ void fill(float* y, float value) {
  y[threadIdx.x] = value / static_cast<float>(threadIdx.x + 3);
}

/// A communicator of some ranks, and a stream and a vector for each.
class Ranks {
 public:
  Ranks(int n_ranks, std::uint64_t seed) : device_(seed) {
    current_device() = &device_;
    seed_nccl(seed);
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    for (int r = 0; r < n_ranks; ++r) {
      Rank& own = all_.emplace_back();
      cudaStreamCreateWithFlags(&own.stream, cudaStreamNonBlocking);
      void* bytes = nullptr;
      cudaMallocAsync(&bytes, n_floats * sizeof(float), own.stream);
      own.x = static_cast<float*>(bytes);
      cudaHostAlloc(&own.host, n_floats * sizeof(float), cudaHostAllocDefault);
      ncclCommInitRankConfig(&own.comm, n_ranks, id, r, &config);
    }
    settle();
    for (int r = 0; r < n_ranks; ++r) fill_in(r, all_[static_cast<std::size_t>(r)].stream);
  }
  ~Ranks() {
    for (const Rank& own : all_) ncclCommAbort(own.comm);
    current_device() = nullptr;
  }
  struct Rank {
    cudaStream_t stream = nullptr;
    float* x = nullptr;
    void* host = nullptr;
    ncclComm_t comm = nullptr;
  };
  int size() const { return static_cast<int>(all_.size()); }
  Rank& operator[](int r) { return all_[static_cast<std::size_t>(r)]; }
  void fill_in(int r, cudaStream_t stream) {
    cudaLaunchConfig_t config;
    config.blockDim = {n_floats};
    config.stream = stream;
    cudaLaunchKernelEx(&config, fill, (*this)[r].x, value_of(r));
  }
  static float value_of(int r) { return 1.0f / static_cast<float>(3 * r + 1); }
  static float operand(int r, std::size_t i) { return value_of(r) / static_cast<float>(i + 3); }
  bool is_in_progress(int r) {
    ncclResult_t state = ncclSuccess;
    ncclCommGetAsyncError((*this)[r].comm, &state);
    return state == ncclInProgress;
  }
  void settle() {
    for (bool waits = true; waits;) {
      waits = false;
      for (int r = 0; r < size(); ++r) waits = is_in_progress(r) || waits;
    }
  }
  void all_reduce(int r, std::size_t n = n_floats) {
    const Rank& own = (*this)[r];
    ncclAllReduce(own.x, own.x, n, ncclFloat32, ncclSum, own.comm, own.stream);
  }
  void reduce_scatter(int r) {
    const Rank& own = (*this)[r];
    const std::size_t n = n_floats / static_cast<std::size_t>(size());
    ncclReduceScatter(own.x, own.x + static_cast<std::size_t>(r) * n, n, ncclFloat32, ncclSum,
                      own.comm, own.stream);
  }
  void reduce(int r, int root, std::size_t begin, std::size_t n) {
    const Rank& own = (*this)[r];
    ncclReduce(own.x + begin, own.x + begin, n, ncclFloat32, ncclSum, root, own.comm, own.stream);
  }
  std::vector<float> read(int r) {
    const Rank& own = (*this)[r];
    cudaMemcpyAsync(own.host, own.x, n_floats * sizeof(float), cudaMemcpyDeviceToHost, own.stream);
    cudaStreamSynchronize(own.stream);
    std::vector<float> values(n_floats);
    std::memcpy(values.data(), own.host, n_floats * sizeof(float));
    return values;
  }

 private:
  Device device_;
  std::deque<Rank> all_;
};

double exact_sum(int n_ranks, std::size_t i) {
  double sum = 0;
  for (int r = 0; r < n_ranks; ++r) sum += double{Ranks::operand(r, i)};
  return sum;
}

}  // namespace

TEST_CASE("sums over ranks are all ranks' values, and the same bits in every timing") {
  for (int n_ranks = 1; n_ranks <= 4; ++n_ranks) {
    std::vector<float> first;
    for (std::uint64_t seed = 0; seed < 12; ++seed) {
      Ranks ranks(n_ranks, seed);
      for (int i = 0; i < n_ranks; ++i) {
        ranks.all_reduce((i + static_cast<int>(seed)) % n_ranks);
      }
      ranks.settle();
      for (int r = 0; r < n_ranks; ++r) {
        const std::vector<float> values = ranks.read(r);
        if (first.empty()) first = values;
        REQUIRE(values == first);
        for (std::size_t i = 0; i < n_floats; ++i) {
          REQUIRE(values[i] == Approx(exact_sum(n_ranks, i)).epsilon(1e-6));
        }
      }
    }
  }
}

TEST_CASE("a ring's order is not that of a tree over the ranks") {
  Ranks ranks(4, 1);
  for (int r = 0; r < 4; ++r) ranks.all_reduce(r);
  ranks.settle();
  const std::vector<float> values = ranks.read(0);
  int n_other = 0;
  for (std::size_t i = 0; i < n_floats; ++i) {
    const float left = Ranks::operand(0, i) + Ranks::operand(1, i);
    const float right = Ranks::operand(2, i) + Ranks::operand(3, i);
    n_other += values[i] != left + right ? 1 : 0;
  }
  CHECK(n_other > 5);
}

TEST_CASE("a piece's sum is with its owner, and the others' vectors are what they were") {
  for (const bool scatters : {true, false}) {
    Ranks ranks(3, 4);
    const std::size_t cuts[] = {0, scatters ? n_floats / 3 : 5, scatters ? 2 * n_floats / 3 : 5,
                                n_floats};
    for (int r = 0; r < 3; ++r) {
      if (scatters) {
        ranks.reduce_scatter(r);
        continue;
      }
      ncclGroupStart();
      ranks.reduce(r, 0, 0, 5);
      ranks.reduce(r, 2, 5, n_floats - 5);
      ncclGroupEnd();
    }
    ranks.settle();
    for (int r = 0; r < 3; ++r) {
      const std::vector<float> values = ranks.read(r);
      for (std::size_t i = 0; i < n_floats; ++i) {
        const bool is_owned = cuts[r] <= i && i < cuts[r + 1];
        REQUIRE(values[i] ==
                (is_owned ? Approx(exact_sum(3, i)).epsilon(1e-6) : Approx(Ranks::operand(r, i))));
      }
    }
  }
}

TEST_CASE("sums that differ between ranks, or come in another order, are an error with both") {
  Ranks ranks(2, 2);
  ranks.all_reduce(0, 40);
  CHECK(error_of([&] { ranks.all_reduce(1, 24); }) ==
        "sum 0 of a communicator is ncclAllReduce of 24 elements on rank 1 and ncclAllReduce of 40 "
        "elements on rank 0");
  Ranks other(2, 2);
  ncclGroupStart();
  other.reduce(0, 0, 0, 24);
  other.reduce(0, 1, 24, 24);
  ncclGroupEnd();
  ncclGroupStart();
  other.reduce(1, 1, 24, 24);
  other.reduce(1, 0, 0, 24);
  CHECK(
      error_of([&] { ncclGroupEnd(); }) ==
      "sum 0 of a communicator is ncclReduce of 24 elements to rank 1 on rank 1 and ncclReduce of "
      "24 elements to rank 0 on rank 0");
  Ranks third(2, 2);
  third.all_reduce(0);
  CHECK(error_of([&] { third.reduce_scatter(1); }).find("is ncclReduceScatter of 24 elements") !=
        std::string::npos);
}

TEST_CASE("a sum that not all ranks call is never done, and who waits for it is told so") {
  Ranks ranks(3, 6);
  ranks.all_reduce(0);
  ranks.all_reduce(1);
  for (int n = 0; n < 20; ++n) CHECK(ranks.is_in_progress(0));
  ranks.all_reduce(2);
  ranks.settle();
  ranks.all_reduce(0);  // connected, so it is put in
  while (ranks.is_in_progress(0)) {
  }
  CHECK(error_of([&] { ranks.read(0); }).find("waits in ncclAllReduce of 48 elements of rank 0") !=
        std::string::npos);
}

TEST_CASE("a sum of what another stream still writes, and one that overlaps, are errors") {
  Ranks ranks(2, 8);
  cudaStream_t other = nullptr;
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  cudaStreamSynchronize(ranks[0].stream);
  ranks.fill_in(0, other);
  const std::string text = error_of([&] {
    for (int r = 0; r < 2; ++r) ranks.all_reduce(r);
    ranks.settle();
  });
  CHECK(text.find("ncclAllReduce of 48 elements of rank 0 uses memory before an event") !=
        std::string::npos);
  Ranks third(2, 8);
  const Ranks::Rank& own = third[1];
  CHECK(error_of([&] {
          ncclReduceScatter(own.x, own.x, n_floats / 2, ncclFloat32, ncclSum, own.comm, own.stream);
        }) ==
        "ncclReduceScatter of 24 elements of rank 1 has its result in its operand, and not in "
        "place");
}
