#pragma once
#include <cstdint>

namespace llm::emulator {

/// 0xABCD of a handle is stream or event number 0xABCD.
template <typename Handle>
int number_of(Handle handle) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(handle));
}
template <typename Handle>
Handle handle_of(int number) {
  return reinterpret_cast<Handle>(static_cast<std::intptr_t>(number));
}

}  // namespace llm::emulator
