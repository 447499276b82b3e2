#include <cstdio>

#include "src/config/explain.h"

/// Prints configs/README.md: `config-readme > configs/README.md` after a change of the table.
int main() {
  std::fputs(llm::config_readme().c_str(), stdout);
  return 0;
}
