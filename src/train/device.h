#pragma once
#include <memory>
#include <string>
#include <vector>

#include "src/comm/library_sums.h"
#include "src/comm/transport.h"
#include "src/train/rank_facts.h"

namespace llm {

/// What a rank finds when distributed.device is looked for on its node.
struct FoundDevice {
  int n_devices = 0;    ///< that this rank sees
  int index = -1;       ///< the one it would take; -1: none
  std::string name;     ///< "NVIDIA H200"
  std::string pci_id;   ///< "0000:17:00.0"
  int capability = 0;   ///< 90 for 9.0
  std::string why_not;  ///< one line where there is none
  bool operator==(const FoundDevice&) const = default;
};
std::string to_text(const FoundDevice& found);
FoundDevice found_device_of(const std::string& text);

/// The device that a rank takes of n that it sees: the only one, or the one of its number among the
/// ranks of its node; -1 where that many are not there.
int device_index(int n_devices, int rank_on_node);

/// Looks for this rank's device: opens the module of CUDA unless `asked` is "cpu".
FoundDevice find_device(const std::string& asked, int rank_on_node);

/// What all ranks do, from what each has found.
struct DeviceChoice {
  bool is_cuda = false;
  std::string note;  ///< why ranks stay on the CPU where nobody wrote so; empty: nothing to say
};

/// `asked` is distributed.device. "auto" takes devices where every rank has one, and the CPU
/// otherwise. Refuses (ConfigError) "cuda" where a rank has none, ranks that would share a device
/// unless `may_share` (tests: LLM_SHARE_DEVICE=1), and devices of different compute capability,
/// whose products and kernels have other bits: all name ranks, hosts and the way out.
DeviceChoice choose_device(const std::string& asked, const std::vector<FoundDevice>& found,
                           const std::vector<RankFacts>& facts, bool may_share);

/// Makes the found device this process's.
void take_device(const FoundDevice& found);

/// Where a process of one rank computes: finds, chooses and takes its device. A ConfigError calls
/// what asks for it `field`.
struct OwnDevice {
  Device device = Device::cpu;
  std::string note;  ///< as DeviceChoice's
};
OwnDevice own_device(const std::string& asked, const std::string& field);

/// How tensors on devices go between ranks, over `inner`; nullptr where tensors are on the CPU or
/// there is one rank. `backend` is mpi (staged through the host) or nccl.
std::unique_ptr<Transport> device_transport(Transport& inner, Device device,
                                            const std::string& backend);

/// One line where variables of NCCL let switches add, whose bits differ from call to call;
/// otherwise empty.
std::string switch_sums_warning();

/// Sums over `group` on devices by NCCL's own collectives; the backend is nccl.
std::unique_ptr<LibrarySums> device_sums(Group& group);

/// "NVIDIA H200 0000:17:00.0": for the table of bindings.
std::string device_text(const FoundDevice& found);

}  // namespace llm
