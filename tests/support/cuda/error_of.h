#pragma once
#include <string>

#include "tests/support/cuda/error.h"

namespace llm::emulator {

/// What the emulated device says to `body`; "no error" where it says nothing.
template <typename Body>
std::string error_of(Body body) {
  try {
    body();
  } catch (const EmulatorError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace llm::emulator
