#include "src/train/rank_plan.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "tensor/ops/adamw.h"

namespace llm {
namespace {

// Tags of tensor messages between stages; the reducers' lie below.
constexpr int stage_tag = 4096;

const Schedule& schedule_of(const Settings& settings, int rank) {
  const int pp = place_of(settings.grid, rank).pp;
  return settings.pipeline.schedules[static_cast<std::size_t>(pp)];
}

}  // namespace

ModelConfig model_of(const Settings& settings, int rank) {
  ModelConfig model = settings.model;
  const GridPlace place = place_of(settings.grid, rank);
  model.tp = {.size = settings.grid.tp,
              .rank = place.tp,
              .cuts_rows = settings.sequence_parallel && settings.grid.tp > 1};
  if (settings.spreads_experts) model.ep = {.size = settings.grid.dp, .rank = place.dp};
  return model;
}

LayerRanges layers_of(const Settings& settings, int rank) {
  const int pp = place_of(settings.grid, rank).pp;
  LayerRanges ranges;
  for (int chunk = 0; chunk < settings.pipeline.n_chunks; ++chunk) {
    const int stage = settings.pipeline.stage_of({pp, chunk});
    ranges.push_back(settings.stage_layers[static_cast<std::size_t>(stage)]);
  }
  return ranges;
}

CollectiveForm shard_form(const Settings& settings) {
  // Sums in place and a library's leave piece k with rank k.
  const bool is_in_order = settings.sums_in_place() || settings.sums_by_library();
  return is_in_order ? CollectiveForm::direct : best_form(settings.grid.dp);
}

std::vector<int> pieces_of_ranks(const Settings& settings) {
  if (settings.zero_stage == 0) return {0};
  std::vector<int> pieces;
  for (int member = 0; member < settings.grid.dp; ++member) {
    pieces.push_back(piece_of_rank(shard_form(settings), member, settings.grid.dp));
  }
  return pieces;
}

std::vector<Unit> units_of(const Settings& settings, int rank) {
  const ModelConfig model = model_of(settings, rank);
  const std::vector<ParameterSpec> specs = parameters(model);
  const LayerRanges ranges = layers_of(settings, rank);
  std::map<std::int64_t, std::int64_t> n_parameters;  // by layer
  for (const std::size_t i : owned_parameters(model_of(settings, rank), ranges)) {
    const bool is_gathered = !settings.spreads_experts || !is_of_experts(model, specs[i].role);
    n_parameters[specs[i].layer] += is_gathered ? specs[i].n_elements() : 0;
  }
  if (borrows_embedding(model_of(settings, rank), ranges)) {
    n_parameters[embedding_layer] += specs.front().n_elements();
  }
  std::vector<LayerParameters> layers;
  for (const auto& [layer, n] : n_parameters) layers.push_back({layer, n});
  return make_units(layers, settings.unit_min_parameters);
}

FlatLayout layout_of(const Settings& settings, int rank) {
  return model_layout(
      model_of(settings, rank), layers_of(settings, rank), settings.bucket_bytes,
      settings.shares_parameters() ? units_of(settings, rank) : std::vector<Unit>{});
}

namespace {

/// Of the rank that embeds with a tied table which another one updates.
BorrowedTable borrowed_table(const Settings& settings, int rank) {
  BorrowedTable table;
  if (!borrows_embedding(model_of(settings, rank), layers_of(settings, rank))) return table;
  const FlatLayout owners = layout_of(settings, embedding_holders(settings, rank).owner);
  // The first parameter of all is the last of the layout, which is in reversed order.
  const auto tensor = static_cast<std::int64_t>(owners.tensors.size()) - 1;
  table.unit = unit_of(units_of(settings, rank), embedding_layer);
  table.element_bytes = static_cast<std::int64_t>(size_of(model_of(settings, rank).compute));
  table.cuts = tensor_cuts(owners, tensor, settings.grid.dp, norm_chunk_elements);
  return table;
}

/// Validation microbatches of the data-parallel rank that has most.
std::int64_t most_validations(const Settings& settings) {
  std::int64_t n = 0;
  for (int dp = 0; dp < settings.grid.dp; ++dp) {
    n = std::max(n, settings.validation.microbatches(dp, settings.grid.dp).size());
  }
  return n;
}

/// By use of a list of layers: the units that it reads.
std::vector<std::vector<int>> units_read(const Settings& settings, const std::vector<Unit>& units,
                                         const std::vector<std::int64_t>& layers) {
  const std::vector<ParameterSpec> specs = parameters(settings.model);
  std::map<std::int64_t, std::vector<int>> of_layer;
  for (const ParameterUse& use : parameter_uses(settings.model)) {
    if (std::count(layers.begin(), layers.end(), use.layer) == 0) continue;
    std::vector<int>& read = of_layer[use.layer];
    const int unit = unit_of(units, specs[use.parameter].layer);
    if (std::count(read.begin(), read.end(), unit) == 0) read.push_back(unit);
  }
  std::vector<std::vector<int>> by_use;
  for (const std::int64_t layer : layers) by_use.push_back(of_layer[layer]);
  return by_use;
}

}  // namespace

UsePlan use_plan(const Settings& settings, int rank) {
  UsePlan plan;
  const std::vector<Unit> units = units_of(settings, rank);
  const UnitLayout layout =
      unit_layout(layout_of(settings, rank),
                  compute_layout(model_of(settings, rank), layers_of(settings, rank)),
                  state_shape(settings, rank).unit_shape());
  const auto list_of = [&](LayerUses uses) {
    GatherPlan gathers = plan_gathers(units_read(settings, units, uses.layers), layout.n_bytes,
                                      settings.gather_policy, std::move(uses.done_with));
    return UseList{std::move(uses.layers), std::move(gathers)};
  };
  const LayerRanges chunks = layers_of(settings, rank);
  LayerUses uses;
  for (int flush = 0; flush < settings.partition.n_accumulation_steps; ++flush) {
    add_uses(model_of(settings, rank), chunks, schedule_of(settings, rank), uses);
  }
  plan.step = list_of(std::move(uses));
  for (const Range& chunk : chunks) {
    plan.chunks.push_back(list_of({layers_validated(model_of(settings, rank), chunk), {}}));
  }
  plan.validation = settings.validation;
  plan.first_step = settings.first_step;
  plan.n_steps = settings.n_steps;
  if (settings.validation.n_samples == 0) return plan;
  // As many as the rank of its group that has most: it gathers from all of them.
  const GridPlace place = place_of(settings.grid, rank);
  const std::int64_t n = most_validations(settings);
  const std::int64_t n_own = settings.validation.microbatches(place.dp, settings.grid.dp).size();
  for (const ValidationPart& part : validation_order(settings.pipeline, place.pp, n)) {
    plan.order.push_back(part.chunk);
    plan.is_own.push_back(settings.spreads_experts || part.microbatch < n_own);
  }
  return plan;
}

StateShape state_shape(const Settings& settings, int rank) {
  StateShape shape;
  shape.ranges = layers_of(settings, rank);
  shape.bucket_bytes = settings.bucket_bytes;
  shape.n_gradient_buffers =
      accumulation_plan(settings.accumulation, settings.partition.n_microbatches()).n_buffers();
  shape.shares_gradients = settings.sums_in_place();
  shape.device = settings.device;
  const std::vector<int> pieces = pieces_of_ranks(settings);
  shape.n_pieces = static_cast<int>(pieces.size());
  const int member = shape.n_pieces == 1 ? 0 : place_of(settings.grid, rank).dp;
  shape.piece = pieces[static_cast<std::size_t>(member)];
  if (settings.shares_parameters()) {
    shape.units = units_of(settings, rank);
    shape.table = borrowed_table(settings, rank);
    shape.is_offloaded = settings.offloads();
  }
  return shape;
}

std::vector<std::vector<std::int64_t>> piece_cuts(const Settings& settings,
                                                  const FlatLayout& layout) {
  std::vector<std::vector<std::int64_t>> cuts;
  if (settings.zero_stage == 0) return cuts;
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    cuts.push_back(shard_cuts(layout, b, settings.grid.dp, norm_chunk_elements));
  }
  return cuts;
}

Stage::Plan stage_plan(const Settings& settings, int rank) {
  check_pipeline(settings);
  const Partition& partition = settings.partition;
  const GridPlace place = place_of(settings.grid, rank);
  const PipelineBuffers& buffers = settings.buffers;
  Stage::Plan plan;
  plan.pipeline = settings.pipeline;
  plan.rank = place.pp;
  plan.ranks = pipeline_group(settings.grid, rank);
  plan.first_tag = stage_tag;
  // One more than the schedule needs, so that one is on the wire while another is worked on.
  plan.n_gradient_buffers =
      settings.pipeline.n_ranks == 1 ? buffers.gradients : buffers.gradients + 1;
  plan.n_embedding_gradients = compute_plan(settings, rank).n_pending_leaves;
  plan.has_routers = model_of(settings, rank).is_mixture();
  plan.tied = model_of(settings, rank).tie_embeddings;
  plan.microbatch_samples = partition.microbatch_samples;
  plan.n_accumulation_steps = partition.n_accumulation_steps;
  plan.first_microbatch = place.dp * partition.n_microbatches();
  plan.n_global_microbatches = partition.n_global_microbatches();
  plan.seq_len = settings.seq_len;
  plan.width = model_of(settings, rank).hidden_size;
  plan.tp = model_of(settings, rank).tp;
  plan.dtype = model_of(settings, rank).compute;
  plan.device = settings.device;
  plan.first_step = settings.first_step;
  plan.n_steps = settings.n_steps;
  plan.validation = settings.validation;
  plan.validation_microbatches = settings.validation.microbatches(place.dp, settings.grid.dp);
  if (settings.spreads_experts) {
    plan.n_spare_validations = most_validations(settings) - plan.validation_microbatches.size();
  }
  // A microbatch's tokens stay until its labels are read, on the same rank as many stages later.
  plan.n_validation_buffers =
      settings.pipeline.n_chunks == 1 ? 2 : settings.pipeline.n_stages() + 1;
  plan.loss_scale = std::ldexp(1.0f, -loss_scale_exponent(partition, settings.seq_len));
  return plan;
}

DecoderCompute::Plan compute_plan(const Settings& settings, int rank) {
  DecoderCompute::Plan plan;
  plan.chunks = layers_of(settings, rank);
  plan.accumulation = accumulation_plan(settings.accumulation, settings.partition.n_microbatches());
  plan.largest_microbatch = settings.partition.largest_microbatch();
  if (settings.validation.n_samples > 0) {
    plan.largest_microbatch =
        std::max(plan.largest_microbatch, settings.validation.microbatch_samples);
  }
  plan.seq_len = settings.seq_len;
  plan.seed = settings.seed;
  plan.recompute = settings.recompute_blocks ? Recompute::block : Recompute::none;
  plan.splits_backwards = peak_split_backwards(schedule_of(settings, rank)) > 0;
  plan.has_pairs = has_pairs(schedule_of(settings, rank));
  // One more than the schedule needs: while it is on its way from the first stage.
  plan.n_pending_leaves =
      settings.buffers.embedding_gradients + (settings.pipeline.n_ranks > 1 ? 1 : 0);
  return plan;
}

namespace {

/// What the rank owns and counts.
MasterPieces master_pieces_of(const Settings& settings, int rank) {
  MasterPieces source;
  source.rank = rank;
  const ModelConfig model = model_of(settings, rank);
  source.tp = model.tp;
  source.ep = model.ep;
  // Without ZeRO all data-parallel ranks have the rest; the first writes it.
  const bool only_experts = settings.zero_stage == 0 && place_of(settings.grid, rank).dp > 0;
  const StateShape shape = state_shape(settings, rank);
  const std::vector<std::size_t> canonical = owned_parameters(model, shape.ranges);
  const std::vector<ParameterSpec> specs = parameters(model);
  const Shard shard =
      shard_of(layout_of(settings, rank), shape.n_pieces, shape.piece, norm_chunk_elements);
  for (const std::vector<OwnedPiece>& pieces : shard.pieces) {
    for (OwnedPiece piece : pieces) {
      const std::size_t spec =
          canonical[canonical.size() - 1 - static_cast<std::size_t>(piece.tensor)];
      piece.elements.end = std::min(piece.elements.end, specs[spec].n_counted);
      if (only_experts && !is_of_experts(model, specs[spec].role)) continue;
      if (!piece.elements.empty()) source.pieces.push_back({spec, piece});
    }
  }
  return source;
}

}  // namespace

std::vector<MasterPieces> master_pieces(const Settings& settings) {
  std::vector<MasterPieces> sources;
  const std::size_t n_members = settings.spreads_experts
                                    ? static_cast<std::size_t>(settings.grid.dp)
                                    : pieces_of_ranks(settings).size();
  for (const int stage : pipeline_group(settings.grid, 0)) {
    for (const int first : tensor_group(settings.grid, stage)) {
      const std::vector<int> members = data_parallel_group(settings.grid, first);
      for (std::size_t member = 0; member < n_members; ++member) {
        sources.push_back(master_pieces_of(settings, members[member]));
      }
    }
  }
  return sources;
}

std::string layout_text(const Settings& settings) {
  const Grid& grid = settings.grid;
  return fmt::format("dp {}, pp {}, tp {}, zero_stage {}", grid.dp, grid.pp, grid.tp,
                     settings.zero_stage);
}

std::vector<int> kv_group(const Settings& settings, int rank) {
  const int n_sharers = static_cast<int>(model_of(settings, rank).n_kv_sharers());
  const std::vector<int> all = tensor_group(settings.grid, rank);
  const int first = place_of(settings.grid, rank).tp / n_sharers * n_sharers;
  return {all.begin() + first, all.begin() + first + n_sharers};
}

TensorSums::Plan tensor_sums_plan(const Settings& settings, int rank) {
  const ModelConfig model = model_of(settings, rank);
  TensorSums::Plan plan;
  plan.max_elements = compute_plan(settings, rank).largest_microbatch * settings.seq_len *
                      std::max(model.hidden_size, model.top_k);
  if (model.tp.cuts_rows) plan.row_width = model.hidden_size;
  if (model.n_kv_sharers() > 1) {
    plan.max_kv_elements = (model.qkv_width() - model.attention_width()) * model.hidden_size;
  }
  plan.is_low = model.compute != Dtype::f32;
  return plan;
}

EmbeddingHolders embedding_holders(const Settings& settings, int rank) {
  const std::vector<int> ranks = pipeline_group(settings.grid, rank);
  const Pipeline& pipeline = settings.pipeline;
  const auto rank_of = [&](int stage) {
    return ranks[static_cast<std::size_t>(pipeline.place_of(stage).rank)];
  };
  return {rank_of(pipeline.n_stages() - 1), rank_of(0)};
}

bool reads_tokens(const Settings& settings, int rank) {
  const EmbeddingHolders holders = embedding_holders(settings, rank);
  return rank == holders.copy || (model_of(settings, rank).tie_embeddings && rank == holders.owner);
}

bool has_head(const Settings& settings, int rank) {
  return rank == embedding_holders(settings, rank).owner;
}

bool tells_loss(const Settings& settings, int rank) {
  return has_head(settings, rank) && place_of(settings.grid, rank).tp == 0;
}

bool reads_labels(const Settings& settings, int rank) {
  return has_head(settings, rank) || settings.model.is_mixture();
}

}  // namespace llm
