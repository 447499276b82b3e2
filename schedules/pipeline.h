#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

namespace llm {

/// One unit of compute on one chunk of a rank. Communication is not an action: a forward sends its
/// output and a backward its input gradient, and both wait for their own input message.
///   backward         all of it
///   backward_input   the half that the stage before waits for: the gradient of the chunk's input
///   backward_weight  the rest: the gradients of its matrices
struct Action {
  enum class Kind : std::uint8_t { forward, backward, backward_input, backward_weight };
  Kind kind;
  int microbatch;
  int chunk = 0;  ///< of the rank
  auto operator<=>(const Action&) const = default;
};

/// A rank's compute for one flush, in order. A value: no rank, clock or tensor is in it.
using Schedule = std::vector<Action>;

/// How the model's stages, numbered in model order, lie on the ranks of a pipeline.
///   looped   stage s is chunk s / n_ranks of rank s % n_ranks
///   zig_zag  two chunks: down the ranks and back up; the last stage is on rank 0
enum class Placement : std::uint8_t { looped, zig_zag };

/// A model chunk's place.
struct ChunkPlace {
  int rank;
  int chunk;
  bool operator==(const ChunkPlace&) const = default;
};

/// What every rank of a pipeline does in one flush. A plan: the same value on every rank.
struct Pipeline {
  int n_ranks = 1;
  int n_chunks = 1;  ///< of each rank: virtual stages
  int n_microbatches = 1;
  Placement placement = Placement::looped;
  std::vector<Schedule> schedules;  ///< by rank

  int n_stages() const { return n_ranks * n_chunks; }
  ChunkPlace place_of(int stage) const;
  int stage_of(ChunkPlace place) const;
};

/// All forwards, then all backwards. Peak: n_microbatches activations held on every rank.
Pipeline gpipe(int n_ranks, int n_microbatches);
/// Warm-up forwards, then one forward and one backward in turn, then the remaining backwards.
/// Peak: min(n_ranks - rank, n_microbatches) activations held.
Pipeline one_f_one_b(int n_ranks, int n_microbatches);

/// distributed.pp_schedule's names.
enum class ScheduleKind : std::uint8_t {
  gpipe,
  one_f_one_b,
};
struct PipelineShape {
  int n_ranks = 1;
  int n_chunks = 1;  ///< of each rank
  int n_microbatches = 1;
};
Pipeline make_pipeline(ScheduleKind kind, const PipelineShape& shape);

/// Most (chunk, microbatch) activations that are alive at once: forward done, backward (both
/// halves) not.
int peak_activations(const Schedule& schedule);
/// The same of one chunk.
int peak_activations(const Schedule& schedule, int chunk);
/// Most (chunk, microbatch) between the two halves of their backward.
int peak_split_backwards(const Schedule& schedule);

/// "F0 F1 B0 F2 B1 B2", for tests, traces and error messages. With several chunks "F0.1": chunk 1.
/// The halves of a backward are I and W.
std::string to_string(const Schedule& schedule);

}  // namespace llm
