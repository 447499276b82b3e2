#pragma once
#include <stdexcept>

namespace llm::emulator {

/// What CUDA leaves undefined, or what this project forbids itself on devices.
class EmulatorError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace llm::emulator
