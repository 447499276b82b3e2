#include "src/train/device.h"

#include <fmt/format.h>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "src/base/error.h"
#include "src/comm/nccl/nccl_sums.h"
#include "src/comm/nccl/nccl_transport.h"
#include "src/comm/staged_transport.h"
#include "tensor/cuda/module.h"
#include "tensor/cuda/open_module.h"

namespace llm {
namespace {

/// The first two ranks of one node that would take one device; {-1, -1}: none.
std::pair<int, int> sharing_ranks(const std::vector<FoundDevice>& found,
                                  const std::vector<RankFacts>& facts) {
  std::map<std::pair<std::string, std::string>, int> taken;
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    const auto [at, is_new] =
        taken.emplace(std::pair(facts[rank].host, found[rank].pci_id), static_cast<int>(rank));
    if (!is_new) return {at->second, static_cast<int>(rank)};
  }
  return {-1, -1};
}

const NcclCalls& nccl_calls() {
  using Entry = const NcclCalls* (*)();
  const auto entry = reinterpret_cast<Entry>(cuda::module_symbol("llm_nccl_calls"));
  if (entry == nullptr) {
    throw ConfigError(
        "distributed.backend: nccl, but the module of CUDA has no NCCL; write backend: mpi");
  }
  return *entry();
}

/// Both the library's products and this project's kernels are chosen by it.
void check_one_kind(const std::vector<FoundDevice>& found, const std::vector<RankFacts>& facts) {
  const auto said = [&](std::size_t rank) {
    const int capability = found[rank].capability;
    return fmt::format("rank {} ({}) has {} of compute capability {}.{}", rank, facts[rank].host,
                       found[rank].name, capability / 10, capability % 10);
  };
  for (std::size_t rank = 1; rank < found.size(); ++rank) {
    if (found[rank].capability == found[0].capability) continue;
    throw ConfigError(fmt::format(
        "distributed.device: {}, {}: kernels of different devices give other bits; choose nodes "
        "with devices of one kind, or write device: cpu",
        said(0), said(rank)));
  }
}

}  // namespace

std::string to_text(const FoundDevice& found) {
  return nlohmann::json{
      {"n_devices", found.n_devices}, {"index", found.index},           {"name", found.name},
      {"pci_id", found.pci_id},       {"capability", found.capability}, {"why_not", found.why_not}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

FoundDevice found_device_of(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  return {.n_devices = json.at("n_devices"),
          .index = json.at("index"),
          .name = json.at("name"),
          .pci_id = json.at("pci_id"),
          .capability = json.at("capability"),
          .why_not = json.at("why_not")};
}

int device_index(int n_devices, int rank_on_node) {
  if (n_devices == 1) return 0;
  return rank_on_node < n_devices ? rank_on_node : -1;
}

FoundDevice find_device(const std::string& asked, int rank_on_node) {
  FoundDevice found;
  if (asked == "cpu") return found;
  set_nccl_environment();
  found.why_not = cuda::open_module();
  if (!found.why_not.empty()) return found;
  const cuda::RuntimeCalls& runtime = cuda::module().runtime;
  found.n_devices = runtime.n_devices();
  found.index = device_index(found.n_devices, rank_on_node);
  if (found.index < 0) {
    found.why_not = fmt::format(
        "it is rank {} of its node counted from 0, which shows it {} devices; start no more ranks "
        "on a node than it has devices",
        rank_on_node, found.n_devices);
    return found;
  }
  runtime.select(found.index);
  const cuda::DeviceFacts facts = runtime.facts(found.index);
  found.name = facts.name;
  found.pci_id = facts.pci_id;
  found.capability = facts.capability;
  return found;
}

DeviceChoice choose_device(const std::string& asked, const std::vector<FoundDevice>& found,
                           const std::vector<RankFacts>& facts, bool may_share) {
  if (asked == "cpu") return {};
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    if (found[rank].index >= 0) continue;
    const std::string why =
        fmt::format("rank {} ({}): {}", rank, facts[rank].host, found[rank].why_not);
    if (asked == "auto") return {false, "ranks compute on the CPU: " + why};
    throw ConfigError(
        fmt::format("distributed.device: cuda, but {}; write device: cpu or auto", why));
  }
  const auto [first, second] = sharing_ranks(found, facts);
  if (first >= 0 && !may_share) {
    const FoundDevice& one = found[static_cast<std::size_t>(first)];
    throw ConfigError(fmt::format(
        "distributed.device: ranks {} and {} on {} would share device {} ({}): a rank needs a "
        "device of its own; start fewer ranks on that node, or let each see another one "
        "(CUDA_VISIBLE_DEVICES), or write device: cpu",
        first, second, facts[static_cast<std::size_t>(first)].host, one.pci_id, one.name));
  }
  check_one_kind(found, facts);
  return {true, ""};
}

OwnDevice own_device(const std::string& asked, const std::string& field) {
  if (asked == "cpu") return {};
  const FoundDevice found = find_device(asked, 0);
  if (found.index >= 0) {
    take_device(found);
    return {Device::cuda, ""};
  }
  if (asked == "auto") return {Device::cpu, "the model computes on the CPU: " + found.why_not};
  throw ConfigError(fmt::format("{}: cuda, but {}; write cpu or auto", field, found.why_not));
}

void take_device(const FoundDevice& found) {
  cuda::module().runtime.select(found.index);
}

std::unique_ptr<Transport> device_transport(Transport& inner, Device device,
                                            const std::string& backend) {
  if (device == Device::cpu || inner.n_ranks() == 1) return nullptr;
  if (backend != "nccl") return std::make_unique<StagedTransport>(inner);
  return std::make_unique<NcclTransport>(inner, nccl_calls());
}

std::string switch_sums_warning() {
  for (const char* const name : {"NCCL_NVLS_ENABLE", "NCCL_COLLNET_ENABLE"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || std::string_view(value) == "0") continue;
    return fmt::format(
        "warning: {}={} lets switches add up gradients, with other bits from call to call; unset "
        "it, or write collectives: plan",
        name, value);
  }
  return "";
}

std::unique_ptr<LibrarySums> device_sums(Group& group) {
  return std::make_unique<NcclSums>(group, nccl_calls());
}

std::string device_text(const FoundDevice& found) {
  return found.name + " " + found.pci_id;
}

}  // namespace llm
