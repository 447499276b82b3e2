#include "src/train/device.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "src/base/error.h"

using namespace llm;

namespace {

std::vector<RankFacts> ranks_on(const std::vector<std::string>& hosts) {
  std::vector<RankFacts> facts;
  for (const std::string& host : hosts) facts.emplace_back().host = host;
  return facts;
}

FoundDevice device(int index, const std::string& pci_id) {
  return {.n_devices = 2,
          .index = index,
          .name = "NVIDIA H200",
          .pci_id = pci_id,
          .capability = 90,
          .why_not = ""};
}

FoundDevice none(const std::string& why_not) {
  FoundDevice found;
  found.why_not = why_not;
  return found;
}

std::string refusal(const std::string& asked, const std::vector<FoundDevice>& found,
                    const std::vector<std::string>& hosts) {
  try {
    choose_device(asked, found, ranks_on(hosts), false);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a rank takes the only device it sees, or the one of its number on the node") {
  CHECK(device_index(1, 0) == 0);
  CHECK(device_index(1, 3) == 0);
  CHECK(device_index(4, 3) == 3);
  CHECK(device_index(4, 4) == -1);
  CHECK(device_index(0, 0) == -1);
}

TEST_CASE("what a rank finds travels as text") {
  const FoundDevice found = device(1, "0000:17:00.0");
  CHECK(found_device_of(to_text(found)) == found);
  const FoundDevice nothing = none("no NVIDIA driver is here");
  CHECK(found_device_of(to_text(nothing)) == nothing);
}

TEST_CASE("ranks compute on devices where each has one of its own") {
  const auto facts = ranks_on({"a", "a", "b"});
  const std::vector<FoundDevice> found = {device(0, "0000:17:00.0"), device(1, "0000:65:00.0"),
                                          device(0, "0000:17:00.0")};  // on another node
  for (const std::string asked : {"auto", "cuda"}) {
    const DeviceChoice choice = choose_device(asked, found, facts, false);
    CHECK(choice.is_cuda);
    CHECK(choice.note == "");
  }
  CHECK_FALSE(choose_device("cpu", found, facts, false).is_cuda);
}

TEST_CASE("one rank without a device keeps all on the CPU, or refuses cuda") {
  const std::vector<FoundDevice> found = {device(0, "0000:17:00.0"), none("no driver is here")};
  const DeviceChoice choice = choose_device("auto", found, ranks_on({"a", "b"}), false);
  CHECK_FALSE(choice.is_cuda);
  CHECK(choice.note == "ranks compute on the CPU: rank 1 (b): no driver is here");
  CHECK(refusal("cuda", found, {"a", "b"}) ==
        "distributed.device: cuda, but rank 1 (b): no driver is here; write device: cpu or auto");
}

TEST_CASE("ranks that would share a device are refused unless a test lets them") {
  const std::vector<FoundDevice> found = {device(0, "0000:17:00.0"), device(0, "0000:65:00.0"),
                                          device(0, "0000:17:00.0")};
  CHECK(refusal("auto", found, {"a", "a", "a"}) ==
        "distributed.device: ranks 0 and 2 on a would share device 0000:17:00.0 (NVIDIA H200): a "
        "rank needs a device of its own; start fewer ranks on that node, or let each see another "
        "one (CUDA_VISIBLE_DEVICES), or write device: cpu");
  CHECK(choose_device("cuda", found, ranks_on({"a", "a", "a"}), true).is_cuda);
}

TEST_CASE("variables that let switches add up gradients are warned about") {
  const auto warning_with = [](const char* name, const char* value) {
    setenv(name, value, 1);
    const std::string warning = switch_sums_warning();
    unsetenv(name);
    return warning;
  };
  unsetenv("NCCL_NVLS_ENABLE");
  CHECK(switch_sums_warning().empty());
  CHECK(warning_with("NCCL_NVLS_ENABLE", "0").empty());
  CHECK(warning_with("NCCL_NVLS_ENABLE", "1") ==
        "warning: NCCL_NVLS_ENABLE=1 lets switches add up gradients, with other bits from call to "
        "call; unset it, or write collectives: plan");
  CHECK(warning_with("NCCL_COLLNET_ENABLE", "1").find("NCCL_COLLNET_ENABLE=1") !=
        std::string::npos);
}

TEST_CASE("devices of different compute capability are refused, and said which") {
  std::vector<FoundDevice> found = {device(0, "0000:17:00.0"), device(1, "0000:65:00.0"),
                                    device(0, "0000:17:00.0")};
  found[2].name = "NVIDIA A100";
  found[2].capability = 80;
  for (const std::string asked : {"auto", "cuda"}) {
    CHECK(refusal(asked, found, {"a", "a", "b"}) ==
          "distributed.device: rank 0 (a) has NVIDIA H200 of compute capability 9.0, rank 2 (b) "
          "has NVIDIA A100 of compute capability 8.0: kernels of different devices give other "
          "bits; choose nodes with devices of one kind, or write device: cpu");
  }
}
