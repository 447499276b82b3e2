#pragma once
#include <cstdint>
#include <deque>
#include <memory>

#include "src/comm/loopback/loopback.h"
#include "src/comm/nccl/nccl_transport.h"
#include "src/comm/staged_transport.h"
#include "tests/cuda/emulated_module.h"
#include "tests/support/cuda/emulated_nccl.h"
#include "tests/support/queue_poller.h"

extern "C" const llm::NcclCalls* llm_nccl_calls();

namespace llm::test {

enum class Way : std::uint8_t { staged, nccl };

/// Ranks of this process on an emulated device, over a loopback network.
struct DeviceRanks {
  /// Segments of 64 bytes, so that few elements are many.
  DeviceRanks(Way way_, int n_ranks, std::uint64_t seed, std::int64_t segment_bytes = 64)
      : way(way_), emulated(seed), loop(options()), network(loop, n_ranks, seed) {
    emulator::seed_nccl(seed);
    for (int r = 0; r < n_ranks; ++r) {
      if (way == Way::nccl) {
        nccl.push_back(std::make_unique<NcclTransport>(network.rank(r), *llm_nccl_calls()));
      } else {
        StagedTransport::Options cut;
        cut.segment_bytes = segment_bytes;
        staged.push_back(std::make_unique<StagedTransport>(network.rank(r), cut));
      }
    }
  }
  static Loop::Options options() {
    Loop::Options options;
    options.stall_timeout_seconds = 10;
    return options;
  }
  Transport& rank(int r) {
    const auto place = static_cast<std::size_t>(r);
    if (way == Way::nccl) return *nccl[place];
    return *staged[place];
  }

  Way way;
  EmulatedModule emulated;
  Loop loop;
  LoopbackNetwork network;
  std::deque<std::unique_ptr<StagedTransport>> staged;
  std::deque<std::unique_ptr<NcclTransport>> nccl;
};

}  // namespace llm::test
