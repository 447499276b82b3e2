#include "schedules/pipeline.h"

#include <algorithm>

#include "src/base/check.h"

namespace llm {
namespace {

using enum Action::Kind;

void check_shape(PipelineShape s) {
  CHECK_CONTRACT(s.n_stages >= 1, "a pipeline has a stage");
  CHECK_CONTRACT(0 <= s.stage && s.stage < s.n_stages, "stage is one of the pipeline's");
  CHECK_CONTRACT(s.n_microbatches >= 1, "a batch has a microbatch");
}

}  // namespace

Schedule gpipe(PipelineShape shape) {
  check_shape(shape);
  Schedule schedule;
  for (int m = 0; m < shape.n_microbatches; ++m) schedule.push_back({forward, m});
  for (int m = 0; m < shape.n_microbatches; ++m) schedule.push_back({backward, m});
  return schedule;
}

Schedule one_f_one_b(PipelineShape shape) {
  check_shape(shape);
  const int n_warmup = std::min(shape.n_stages - shape.stage - 1, shape.n_microbatches);
  Schedule schedule;
  int next_forward = 0;
  int next_backward = 0;
  while (next_forward < n_warmup) schedule.push_back({forward, next_forward++});
  while (next_forward < shape.n_microbatches) {
    schedule.push_back({forward, next_forward++});
    schedule.push_back({backward, next_backward++});
  }
  while (next_backward < shape.n_microbatches) schedule.push_back({backward, next_backward++});
  return schedule;
}

int peak_activations(const Schedule& schedule) {
  int alive = 0;
  int peak = 0;
  for (const Action& action : schedule) {
    alive += action.kind == forward ? 1 : -1;
    peak = std::max(peak, alive);
  }
  return peak;
}

std::string to_string(const Schedule& schedule) {
  std::string text;
  for (const Action& action : schedule) {
    if (!text.empty()) text += ' ';
    text += action.kind == forward ? 'F' : 'B';
    text += std::to_string(action.microbatch);
  }
  return text;
}

}  // namespace llm
