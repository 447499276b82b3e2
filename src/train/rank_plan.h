#pragma once
#include "actors/decoder_compute.h"
#include "actors/stage.h"
#include "src/train/settings.h"

namespace llm {

/// The parts of the settings that one rank's actors carry out, as plans; the trainer builds actors
/// from them, --plan counts their memory.

/// The layers of the rank's chunks.
LayerRanges layers_of(const Settings& settings, int rank);
Stage::Plan stage_plan(const Settings& settings, int rank);
DecoderCompute::Plan compute_plan(const Settings& settings, int rank);

/// Whether the rank's stages read tokens (the embedding's do, and the table's owner) and labels.
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
