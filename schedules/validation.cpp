#include "schedules/validation.h"

#include <tuple>

namespace llm {

std::vector<ValidationPart> validation_order(const Pipeline& pipeline, int rank, std::int64_t n) {
  std::vector<ValidationPart> parts;
  for (std::int64_t i = 0; i < n; ++i) {
    for (int chunk = 0; chunk < pipeline.n_chunks; ++chunk) parts.push_back({i, chunk});
  }
  const auto stage = [&](const ValidationPart& part) {
    return pipeline.stage_of({rank, part.chunk});
  };
  const auto when = [&](const ValidationPart& part) {
    const std::int64_t time =
        pipeline.n_ranks == 1 ? part.microbatch : part.microbatch + stage(part);
    return std::tuple(time, part.microbatch, stage(part));
  };
  std::sort(parts.begin(), parts.end(),
            [&](const ValidationPart& a, const ValidationPart& b) { return when(a) < when(b); });
  return parts;
}

}  // namespace llm
