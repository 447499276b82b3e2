#pragma once
#include "actors/decoder_compute.h"
#include "actors/stage.h"
#include "actors/tensor_sums.h"
#include "actors/unit_gatherer.h"
#include "schedules/collective.h"
#include "src/train/masters.h"
#include "src/train/settings.h"

namespace llm {

/// The parts of the settings that one rank's actors carry out, as plans; the trainer builds actors
/// from them, --plan counts their memory.

/// The model with the rank's part of each layer.
ModelConfig model_of(const Settings& settings, int rank);
/// The layers of the rank's chunks.
LayerRanges layers_of(const Settings& settings, int rank);
/// The units of the rank's parameters, a borrowed table's with the embedding; whatever zero_stage
/// says.
std::vector<Unit> units_of(const Settings& settings, int rank);
StateShape state_shape(const Settings& settings, int rank);
FlatLayout layout_of(const Settings& settings, int rank);
/// What the rank's compute reads, and what is gathered for it, where parameters are shared out.
UsePlan use_plan(const Settings& settings, int rank);
/// The form of a data-parallel group's collectives where its ranks own a piece each (ZeRO).
CollectiveForm shard_form(const Settings& settings);
/// By rank of the data-parallel group: its piece of every bucket; {0} where each rank has all.
std::vector<int> pieces_of_ranks(const Settings& settings);
/// By bucket, for the reducers; empty where each rank has all.
std::vector<std::vector<std::int64_t>> piece_cuts(const Settings& settings,
                                                  const FlatLayout& layout);
Stage::Plan stage_plan(const Settings& settings, int rank);
DecoderCompute::Plan compute_plan(const Settings& settings, int rank);

/// The ranks of the tensor-parallel group with the same key heads.
std::vector<int> kv_group(const Settings& settings, int rank);
/// But for the tag; of a rank of a group of several.
TensorSums::Plan tensor_sums_plan(const Settings& settings, int rank);

/// Whether the rank reports the losses of its microbatches: one of those that have the head.
bool tells_loss(const Settings& settings, int rank);
/// "dp 2, pp 1, tp 1, zero_stage 0": what a checkpoint says of the run that saved it.
std::string layout_text(const Settings& settings);
/// Which rank has which masters: each element once.
std::vector<MasterPieces> master_pieces(const Settings& settings);

/// Whether the rank's stages have the head, whose losses are told and whose labels are counted.
bool has_head(const Settings& settings, int rank);
/// Whether the rank's stages read tokens (the embedding's do, and the table's owner) and labels
/// (the head, and a mixture's blocks, whose router's losses are weighed by the valid ones).
bool reads_tokens(const Settings& settings, int rank);
bool reads_labels(const Settings& settings, int rank);

/// A tied embedding that two ranks of a pipeline hold: the ranks of the run that own it and that
/// have a copy; the same rank where there is but one.
struct EmbeddingHolders {
  int owner;
  int copy;
};
EmbeddingHolders embedding_holders(const Settings& settings, int rank);

}  // namespace llm
