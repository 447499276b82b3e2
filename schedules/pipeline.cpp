#include "schedules/pipeline.h"

#include <algorithm>

#include "src/base/check.h"

namespace llm {
namespace {

using enum Action::Kind;

Pipeline empty_pipeline(int n_ranks, int n_microbatches) {
  CHECK_CONTRACT(n_ranks >= 1, "a pipeline has a rank");
  CHECK_CONTRACT(n_microbatches >= 1, "a batch has a microbatch");
  Pipeline pipeline;
  pipeline.n_ranks = n_ranks;
  pipeline.n_microbatches = n_microbatches;
  pipeline.schedules.resize(static_cast<std::size_t>(n_ranks));
  return pipeline;
}

Schedule one_f_one_b_of(int rank, int n_ranks, int n_microbatches) {
  const int n_warmup = std::min(n_ranks - rank - 1, n_microbatches);
  Schedule schedule;
  int next_forward = 0;
  int next_backward = 0;
  while (next_forward < n_warmup) schedule.push_back({forward, next_forward++});
  while (next_forward < n_microbatches) {
    schedule.push_back({forward, next_forward++});
    schedule.push_back({backward, next_backward++});
  }
  while (next_backward < n_microbatches) schedule.push_back({backward, next_backward++});
  return schedule;
}

bool starts(const Action& action) {
  return action.kind == forward;
}
bool ends(const Action& action) {
  return action.kind == backward || action.kind == backward_weight;
}

}  // namespace

ChunkPlace Pipeline::place_of(int stage) const {
  CHECK_CONTRACT(0 <= stage && stage < n_stages(), "a stage is one of the pipeline's");
  if (placement == Placement::looped) return {stage % n_ranks, stage / n_ranks};
  return stage < n_ranks ? ChunkPlace{stage, 0} : ChunkPlace{2 * n_ranks - 1 - stage, 1};
}

int Pipeline::stage_of(ChunkPlace place) const {
  CHECK_CONTRACT(
      0 <= place.rank && place.rank < n_ranks && 0 <= place.chunk && place.chunk < n_chunks,
      "a chunk is one of the pipeline's");
  if (placement == Placement::looped) return place.chunk * n_ranks + place.rank;
  return place.chunk == 0 ? place.rank : 2 * n_ranks - 1 - place.rank;
}

Pipeline gpipe(int n_ranks, int n_microbatches) {
  Pipeline pipeline = empty_pipeline(n_ranks, n_microbatches);
  for (Schedule& schedule : pipeline.schedules) {
    for (int m = 0; m < n_microbatches; ++m) schedule.push_back({forward, m});
    for (int m = 0; m < n_microbatches; ++m) schedule.push_back({backward, m});
  }
  return pipeline;
}

Pipeline one_f_one_b(int n_ranks, int n_microbatches) {
  Pipeline pipeline = empty_pipeline(n_ranks, n_microbatches);
  for (int rank = 0; rank < n_ranks; ++rank) {
    pipeline.schedules[static_cast<std::size_t>(rank)] =
        one_f_one_b_of(rank, n_ranks, n_microbatches);
  }
  return pipeline;
}

Pipeline make_pipeline(ScheduleKind kind, const PipelineShape& shape) {
  CHECK_CONTRACT(shape.n_chunks == 1, "the schedule has this many chunks a rank");
  switch (kind) {
    case ScheduleKind::gpipe:
      return gpipe(shape.n_ranks, shape.n_microbatches);
    case ScheduleKind::one_f_one_b:
      return one_f_one_b(shape.n_ranks, shape.n_microbatches);
  }
  return {};
}

namespace {

/// The largest sum that `changes` reaches, added up over the schedule.
template <typename Changes>
int peak_of(const Schedule& schedule, Changes changes) {
  int now = 0;
  int peak = 0;
  for (const Action& action : schedule) {
    now += changes(action);
    peak = std::max(peak, now);
  }
  return peak;
}

int alive_change(const Action& action) {
  return starts(action) ? 1 : ends(action) ? -1 : 0;
}

}  // namespace

int peak_activations(const Schedule& schedule) {
  return peak_of(schedule, alive_change);
}

int peak_activations(const Schedule& schedule, int chunk) {
  return peak_of(schedule,
                 [chunk](const Action& a) { return a.chunk == chunk ? alive_change(a) : 0; });
}

int peak_split_backwards(const Schedule& schedule) {
  return peak_of(schedule, [](const Action& a) {
    return a.kind == backward_input ? 1 : a.kind == backward_weight ? -1 : 0;
  });
}

std::string to_string(const Schedule& schedule) {
  const bool has_chunks = std::any_of(schedule.begin(), schedule.end(),
                                      [](const Action& action) { return action.chunk > 0; });
  std::string text;
  for (const Action& action : schedule) {
    if (!text.empty()) text += ' ';
    text += "FBIW"[static_cast<std::size_t>(action.kind)];
    text += std::to_string(action.microbatch);
    if (has_chunks) text += '.' + std::to_string(action.chunk);
  }
  return text;
}

}  // namespace llm
