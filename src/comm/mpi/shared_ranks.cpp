#include "src/comm/mpi/shared_ranks.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "src/base/error.h"
#include "tensor/shared_memory.h"

namespace llm {
namespace {

constexpr std::size_t handle_bytes = sizeof(SharedHandle);

/// The handle's owner wrote the handle into the memory: another process of the same number, in a
/// container of its own, did not.
bool sees(const std::string& handle_text) {
  SharedHandle handle;
  std::memcpy(&handle, handle_text.data(), handle_bytes);
  try {
    const SharedMemory memory(handle);
    return std::memcmp(memory.bytes(), handle_text.data(), handle_bytes) == 0;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

bool ranks_share_memory(const MpiSession& session) {
  if (session.n_ranks() == 1 || session.ranks_per_node() != session.n_ranks()) return false;
  const SharedMemory own(static_cast<std::int64_t>(handle_bytes));
  const SharedHandle handle = own.handle();
  std::memcpy(own.bytes(), &handle, handle_bytes);
  std::string all;
  for (const std::string& one :
       session.gather(std::string(reinterpret_cast<const char*>(&handle), handle_bytes))) {
    all += one;
  }
  all = session.broadcast(all);
  bool sees_all = true;
  for (std::size_t at = 0; at < all.size(); at += handle_bytes) {
    sees_all = sees_all && sees(all.substr(at, handle_bytes));
  }
  const std::vector<std::string> votes = session.gather(sees_all ? "1" : "0");
  const bool everyone =
      std::all_of(votes.begin(), votes.end(), [](const std::string& vote) { return vote == "1"; });
  return session.broadcast(everyone ? "1" : "0") == "1";
}

}  // namespace llm
