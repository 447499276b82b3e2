#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace llm {

/// Where a schedule is asked for: stage `stage` of `n_stages`, each flush of `n_microbatches`.
struct PipelineShape {
  int stage;
  int n_stages;
  int n_microbatches;
};

/// One unit of compute on one stage. Communication is not an action: a forward sends its output and
/// a backward its input gradient, and both wait for their own input message.
struct Action {
  enum class Kind : std::uint8_t { forward, backward };
  Kind kind;
  int microbatch;
  auto operator<=>(const Action&) const = default;
};

/// A stage's compute for one flush, in order. A value: no rank, clock or tensor is in it.
using Schedule = std::vector<Action>;

/// All forwards, then all backwards. Peak: n_microbatches activations held on every stage.
Schedule gpipe(PipelineShape shape);

/// Warm-up forwards, then one forward and one backward in turn, then the remaining backwards.
/// Peak: min(n_stages - stage, n_microbatches) activations held.
Schedule one_f_one_b(PipelineShape shape);

/// Most microbatches whose activations are alive at once (forward done, backward not done).
int peak_activations(const Schedule& schedule);

/// "F0 F1 B0 F2 B1 B2", for tests, traces and error messages.
std::string to_string(const Schedule& schedule);

}  // namespace llm
