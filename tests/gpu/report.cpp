#include "tests/gpu/report.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>

namespace llm::gpu {

void Report::line(std::string_view name, double figure, std::string_view unit, Limit limit) {
  const bool is_held = limit.kind == Limit::Kind::none ||
                       (limit.kind == Limit::Kind::at_most && figure <= limit.value) ||
                       (limit.kind == Limit::Kind::at_least && figure >= limit.value);
  const bool is_ok = is_held && std::isfinite(figure);
  std::string bound;
  if (limit.kind == Limit::Kind::at_most) bound = fmt::format(" (at most {:.4g})", limit.value);
  if (limit.kind == Limit::Kind::at_least) bound = fmt::format(" (at least {:.4g})", limit.value);
  if (!is_ok) failed_.emplace_back(name);
  if (is_ok && limit.kind != Limit::Kind::none) passed_.emplace_back(name);
  fmt::print("{:<52} {:>10.5g} {}{}{}\n", name, figure, unit, bound, is_ok ? "" : " FAILED");
  std::fflush(stdout);
}

void Report::note(std::string_view text) {
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void Report::failure(std::string_view name, std::string_view reason) {
  failed_.emplace_back(name);
  fmt::print("{}: {} FAILED\n", name, reason);
  std::fflush(stdout);
}

}  // namespace llm::gpu
