#include "src/base/check.h"

#include <string>

#include "src/base/error.h"

namespace llm {

void contract_violation(std::string_view condition, std::string_view message, const char* file,
                        int line) {
  throw ContractBroken(std::string(file) + ":" + std::to_string(line) + ": contract broken: " +
                       std::string(condition) + ": " + std::string(message));
}

}  // namespace llm
