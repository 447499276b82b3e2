#pragma once
#include <string_view>

namespace llm {

/// Throws ContractBroken (exit code 70). For bugs of this program, never for bad input.
[[noreturn]] void contract_violation(std::string_view condition, std::string_view message,
                                     const char* file, int line);

}  // namespace llm

/// Holds in release builds too. `message` says what should hold; it is evaluated only on failure.
#define CHECK_CONTRACT(condition, message) \
  ((condition) ? void() : ::llm::contract_violation(#condition, (message), __FILE__, __LINE__))
