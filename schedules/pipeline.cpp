#include "schedules/pipeline.h"

#include <algorithm>
#include <array>

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

Pipeline one_f_one_b_pairs(int n_ranks, int n_microbatches) {
  Pipeline pipeline = empty_pipeline(n_ranks, n_microbatches);
  for (int rank = 0; rank < n_ranks; ++rank) {
    Schedule& schedule = pipeline.schedules[static_cast<std::size_t>(rank)];
    const int n_warmup = std::min(2 * (n_ranks - rank) - 1, n_microbatches);
    for (int m = 0; m < n_warmup; ++m) schedule.push_back({forward, m});
    for (int m = 0; m < n_microbatches; ++m) {
      if (n_warmup + m < n_microbatches) schedule.push_back({forward, n_warmup + m, 0, true});
      schedule.push_back({backward, m});
    }
  }
  return pipeline;
}

Pipeline interleaved(const PipelineShape& shape) {
  const int p = shape.n_ranks;
  const int v = shape.n_chunks;
  CHECK_CONTRACT(v >= 1, "a rank has a chunk");
  if (v == 1) return one_f_one_b(p, shape.n_microbatches);
  Pipeline pipeline = empty_pipeline(p, shape.n_microbatches);
  pipeline.n_chunks = v;
  const int n = (shape.n_microbatches + p - 1) / p * p * v;  // a multiple of n_ranks
  for (int rank = 0; rank < p; ++rank) {
    Schedule& schedule = pipeline.schedules[static_cast<std::size_t>(rank)];
    const auto put = [&](Action::Kind kind, int k) {
      const int m = k / (p * v) * p + k % p;
      const int depth = k % (p * v) / p;
      if (m < shape.n_microbatches) {
        schedule.push_back({kind, m, kind == forward ? depth : v - 1 - depth});
      }
    };
    const int n_warmup = std::min(2 * (p - rank - 1) + (v - 1) * p, n);
    for (int k = 0; k < n + n_warmup; ++k) {
      if (k < n) put(forward, k);
      if (k >= n_warmup) put(backward, k - n_warmup);
    }
  }
  return pipeline;
}

Pipeline zero_bubble(int n_ranks, int n_microbatches) {
  Pipeline pipeline = empty_pipeline(n_ranks, n_microbatches);
  for (int rank = 0; rank < n_ranks; ++rank) {
    Schedule& schedule = pipeline.schedules[static_cast<std::size_t>(rank)];
    const int n_warmup = std::min(n_ranks - rank - 1, n_microbatches);
    for (int k = 0; k < n_microbatches + n_warmup; ++k) {
      if (k < n_microbatches) schedule.push_back({forward, k});
      if (k < n_warmup) continue;
      const int m = k - n_warmup;
      schedule.push_back({backward_input, m});
      if (m >= rank) schedule.push_back({backward_weight, m - rank});
    }
    for (int m = std::max(0, n_microbatches - rank); m < n_microbatches; ++m) {
      schedule.push_back({backward_weight, m});
    }
  }
  return pipeline;
}

namespace {

std::size_t index(Action::Kind kind, int chunk) {
  return 2 * static_cast<std::size_t>(kind) + static_cast<std::size_t>(chunk);
}

/// A rank of ZB-V as its phases put the next action of each kind and chunk.
class ZigZagRank {
 public:
  ZigZagRank(Schedule& schedule, int n_microbatches)
      : schedule_(schedule), n_microbatches_(n_microbatches) {}
  int n_done(Action::Kind kind, int chunk) const { return next_[index(kind, chunk)]; }
  void put(Action::Kind kind, int chunk) {
    const int m = next_[index(kind, chunk)]++;
    if (m < n_microbatches_) schedule_.push_back({kind, m, chunk});
  }
  void put_backward(int chunk) {
    put(backward_input, chunk);
    put(backward_weight, chunk);
  }

 private:
  Schedule& schedule_;
  int n_microbatches_;
  std::array<int, 8> next_{};
};

void fill_zig_zag(ZigZagRank& out, int rank, int n_ranks, int n) {
  for (int i = 0; i < 2 * (n_ranks - rank) - 1; ++i) out.put(forward, 0);
  for (int i = 0; i < rank; ++i) {
    out.put(forward, 1);
    out.put(forward, 0);
  }
  for (int i = 0; i < n_ranks - rank; ++i) {
    out.put(forward, 1);
    out.put_backward(1);
  }
  while (out.n_done(forward, 1) < n) {
    if (out.n_done(forward, 0) < n) out.put(forward, 0);
    out.put_backward(0);
    out.put(forward, 1);
    out.put_backward(1);
  }
  for (int i = 0; i < rank; ++i) {
    out.put(backward_input, 0);
    out.put(backward_input, 1);
  }
  for (int i = 0; i < n_ranks - rank; ++i) out.put_backward(0);
  while (out.n_done(backward_weight, 1) < n) out.put(backward_weight, 1);
  while (out.n_done(backward_weight, 0) < n) out.put(backward_weight, 0);
}

}  // namespace

Pipeline zero_bubble_v(int n_ranks, int n_microbatches) {
  Pipeline pipeline = empty_pipeline(n_ranks, n_microbatches);
  pipeline.n_chunks = 2;
  pipeline.placement = Placement::zig_zag;
  const int n = std::max(2 * n_ranks - 1, n_microbatches);
  for (int rank = 0; rank < n_ranks; ++rank) {
    ZigZagRank out(pipeline.schedules[static_cast<std::size_t>(rank)], n_microbatches);
    fill_zig_zag(out, rank, n_ranks, n);
  }
  return pipeline;
}

Pipeline make_pipeline(ScheduleKind kind, const PipelineShape& shape) {
  const bool has_chunks = kind == ScheduleKind::interleaved || kind == ScheduleKind::zero_bubble_v;
  CHECK_CONTRACT(has_chunks || shape.n_chunks == 1, "this schedule has one chunk a rank");
  switch (kind) {
    case ScheduleKind::gpipe:
      return gpipe(shape.n_ranks, shape.n_microbatches);
    case ScheduleKind::one_f_one_b:
      return one_f_one_b(shape.n_ranks, shape.n_microbatches);
    case ScheduleKind::one_f_one_b_pairs:
      return one_f_one_b_pairs(shape.n_ranks, shape.n_microbatches);
    case ScheduleKind::interleaved:
      return interleaved(shape);
    case ScheduleKind::zero_bubble:
      return zero_bubble(shape.n_ranks, shape.n_microbatches);
    case ScheduleKind::zero_bubble_v:
      CHECK_CONTRACT(shape.n_chunks == 2, "a zig-zag has two chunks a rank");
      return zero_bubble_v(shape.n_ranks, shape.n_microbatches);
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

bool has_pairs(const Schedule& schedule) {
  return std::any_of(schedule.begin(), schedule.end(),
                     [](const Action& action) { return action.beside_next; });
}

int peak_split_backwards(const Schedule& schedule) {
  return peak_of(schedule, [](const Action& a) {
    return a.kind == backward_input ? 1 : a.kind == backward_weight ? -1 : 0;
  });
}

namespace {

std::string name_of(const Action& action, bool with_chunk) {
  std::string name(1, "FBIW"[static_cast<std::size_t>(action.kind)]);
  name += std::to_string(action.microbatch);
  return with_chunk ? name + '.' + std::to_string(action.chunk) : name;
}

}  // namespace

std::string to_string(const Action& action) {
  return name_of(action, action.chunk > 0);
}

std::string to_string(const Schedule& schedule) {
  const bool has_chunks = std::any_of(schedule.begin(), schedule.end(),
                                      [](const Action& action) { return action.chunk > 0; });
  std::string text;
  const char* between = "";
  for (const Action& action : schedule) {
    text += between + name_of(action, has_chunks);
    between = action.beside_next ? "|" : " ";
  }
  return text;
}

}  // namespace llm
