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
/// A forward may be paired with the backward, or half of one, that follows it: both begin when both
/// have their messages, and their ops alternate where a layer waits for other ranks, so that one
/// computes while the other waits.
struct Action {
  enum class Kind : std::uint8_t { forward, backward, backward_input, backward_weight };
  Kind kind;
  int microbatch;
  int chunk = 0;             ///< of the rank
  bool beside_next = false;  ///< paired with the next action
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
  bool operator==(const Pipeline&) const = default;
};

/// All forwards, then all backwards. Peak: n_microbatches activations held on every rank.
Pipeline gpipe(int n_ranks, int n_microbatches);
/// Warm-up forwards, then one forward and one backward in turn, then the remaining backwards.
/// Peak: min(n_ranks - rank, n_microbatches) activations held.
Pipeline one_f_one_b(int n_ranks, int n_microbatches);

/// 1f1b whose forwards and backwards are paired. A pair's backward answers a forward of the pair
/// before on the next rank, so that a rank has twice the warm-up forwards and one more: no rank
/// waits longer than under 1f1b where a pair takes a forward's and a backward's time.
/// Peak: min(2 (n_ranks - rank), n_microbatches) activations held.
Pipeline one_f_one_b_pairs(int n_ranks, int n_microbatches);

struct PipelineShape {
  int n_ranks = 1;
  int n_chunks = 1;  ///< of each rank
  int n_microbatches = 1;
};

/// 1f1b over n_chunks chunks a rank (Narayanan et al. 2021): microbatches in groups of n_ranks, a
/// group through chunk after chunk. Where n_ranks does not divide n_microbatches it is the order of
/// the next multiple without the microbatches that are not there. One chunk is one_f_one_b.
/// Peak: min(2 (n_ranks - rank - 1) + (n_chunks - 1) n_ranks + 1, n_chunks n_microbatches) chunks'
/// activations held.
Pipeline interleaved(const PipelineShape& shape);
/// ZB-H1 (Qi et al. 2024): 1f1b whose backwards are split. The weight half of a microbatch waits
/// for `rank` more input halves, so that it fills the time in which the last gradients travel to
/// the first rank. Peak: min(n_ranks, n_microbatches) on every rank, 1f1b's on rank 0.
Pipeline zero_bubble(int n_ranks, int n_microbatches);
/// ZB-V (Qi et al. 2024): two chunks a rank in zig-zag, backwards split. No rank is idle between
/// its first and its last action where forward and both halves cost the same and there are
/// 2 n_ranks - 1 microbatches. With fewer it is the order of so many without those that are not
/// there. Peak: 2 min(n_ranks, n_microbatches) chunks' activations on every rank, each half a
/// rank's.
Pipeline zero_bubble_v(int n_ranks, int n_microbatches);

/// distributed.pp_schedule's names.
enum class ScheduleKind : std::uint8_t {
  gpipe,
  one_f_one_b,
  one_f_one_b_pairs,
  interleaved,
  zero_bubble,
  zero_bubble_v
};
/// Any of them. n_chunks is 1 but for interleaved, and 2 for zero_bubble_v.
Pipeline make_pipeline(ScheduleKind kind, const PipelineShape& shape);

/// Most (chunk, microbatch) activations that are alive at once: forward done, backward (both
/// halves) not.
int peak_activations(const Schedule& schedule);
/// The same of one chunk.
int peak_activations(const Schedule& schedule, int chunk);
/// Whether any two actions are paired.
bool has_pairs(const Schedule& schedule);
/// Most (chunk, microbatch) between the two halves of their backward.
int peak_split_backwards(const Schedule& schedule);

/// "F0 F1 B0 F2 B1 B2", for tests, traces and error messages. With several chunks "F0.1": chunk 1.
/// The halves of a backward are I and W, and a pair is "F1|B0".
std::string to_string(const Schedule& schedule);
/// "F0", or "F0.1" of another chunk than the first.
std::string to_string(const Action& action);

}  // namespace llm
