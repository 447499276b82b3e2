#include "schedules/pipeline_buffers.h"

#include <algorithm>
#include <vector>

#include "src/base/check.h"

namespace llm {
namespace {

/// The round in which a stage did a microbatch's forward, and the part of its backward that others
/// wait for; -1: not yet.
struct Rounds {
  explicit Rounds(const Pipeline& pipeline)
      : n_microbatches(static_cast<std::size_t>(pipeline.n_microbatches)),
        forward(static_cast<std::size_t>(pipeline.n_stages()) * n_microbatches, -1),
        backward(forward) {}
  int& at(std::vector<int>& rounds, int stage, int m) const {
    return rounds[static_cast<std::size_t>(stage) * n_microbatches + static_cast<std::size_t>(m)];
  }
  std::size_t n_microbatches;
  std::vector<int> forward;
  std::vector<int> backward;
};

bool is_backward(Action::Kind kind) {
  return kind == Action::Kind::backward || kind == Action::Kind::backward_input;
}

bool has_input(const Pipeline& pipeline, Rounds& rounds, int stage, const Action& action,
               int round) {
  const auto is_done = [&](std::vector<int>& of, int other) {
    const int done = rounds.at(of, other, action.microbatch);
    return done >= 0 && done < round;
  };
  if (action.kind == Action::Kind::forward) {
    return stage == 0 || is_done(rounds.forward, stage - 1);
  }
  if (!is_backward(action.kind)) return true;
  return stage + 1 == pipeline.n_stages() ? is_done(rounds.forward, stage)
                                          : is_done(rounds.backward, stage + 1);
}

Rounds walk(const Pipeline& pipeline) {
  Rounds rounds(pipeline);
  std::vector<std::size_t> next(pipeline.schedules.size(), 0);
  for (int round = 0;; ++round) {
    bool is_over = true;
    bool moved = false;
    for (int rank = 0; rank < pipeline.n_ranks; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      if (next[r] == pipeline.schedules[r].size()) continue;
      is_over = false;
      const Action& action = pipeline.schedules[r][next[r]];
      const int stage = pipeline.stage_of({rank, action.chunk});
      if (!has_input(pipeline, rounds, stage, action, round)) continue;
      moved = true;
      ++next[r];
      if (action.kind == Action::Kind::forward) {
        rounds.at(rounds.forward, stage, action.microbatch) = round;
      } else if (is_backward(action.kind)) {
        rounds.at(rounds.backward, stage, action.microbatch) = round;
      }
    }
    if (is_over) return rounds;
    CHECK_CONTRACT(moved, "a pipeline's schedules wait for each other in no circle");
  }
}

/// Most microbatches at a time between the backward of `from` and that of `to`, both included.
int most_between(const Pipeline& pipeline, Rounds& rounds, int from, int to) {
  int most = 1;
  for (int m = 0; m < pipeline.n_microbatches; ++m) {
    const int begun = rounds.at(rounds.backward, from, m);
    int waiting = 0;
    for (int other = 0; other < pipeline.n_microbatches; ++other) {
      waiting += rounds.at(rounds.backward, from, other) <= begun &&
                         rounds.at(rounds.backward, to, other) >= begun
                     ? 1
                     : 0;
    }
    most = std::max(most, waiting);
  }
  return most;
}

}  // namespace

PipelineBuffers pipeline_buffers(const Pipeline& pipeline) {
  Rounds rounds = walk(pipeline);
  const int last = pipeline.n_stages() - 1;
  PipelineBuffers buffers;
  for (int stage = 0; stage <= last; ++stage) {
    // On one rank, a gradient stays in its buffer from stage to stage.
    const int rank = pipeline.place_of(stage).rank;
    int end = stage;
    while (end > 0 && pipeline.place_of(end - 1).rank == rank) --end;
    const int from = std::min(stage + 1, last);
    buffers.gradients = std::max(buffers.gradients, most_between(pipeline, rounds, from, end));
  }
  buffers.embedding_gradients = most_between(pipeline, rounds, last, 0);
  return buffers;
}

}  // namespace llm
