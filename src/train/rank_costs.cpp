#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "actors/gradient_reducer.h"
#include "actors/optimizer_shard.h"
#include "actors/parameter_gatherer.h"
#include "schedules/collective.h"
#include "src/train/plan_report.h"
#include "src/train/rank_plan.h"
#include "tensor/ops/adamw.h"
#include "tensor/ops/attention.h"
#include "tensor/ops/grouped_linear.h"
#include "tensor/ops/grouped_rows.h"
#include "tensor/ops/linear.h"

namespace llm {
namespace {

std::string several(int n, const char* what, const char* plural) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : plural);
}

void add(std::vector<LedgerEntry>& ledger, LedgerKind kind, std::string what,
         std::int64_t n_bytes) {
  if (n_bytes > 0) ledger.push_back({kind, std::move(what), n_bytes});
}

/// Of a run on devices: what lies in the memory of the node.
void add_on_host(std::vector<LedgerEntry>& ledger, const Settings& s, LedgerKind kind,
                 std::string what, std::int64_t n_bytes) {
  const bool is_apart = s.device != Device::cpu;
  add(ledger, kind, what + (is_apart ? ", on the host" : ""), n_bytes);
  if (is_apart && n_bytes > 0) ledger.back().is_on_host = true;
}

/// What a rank owns, wherever that lies.
void add_owned(std::vector<LedgerEntry>& ledger, const Settings& s, LedgerKind kind,
               std::string what, std::int64_t n_bytes) {
  if (s.offloads()) {
    add_on_host(ledger, s, kind, std::move(what), n_bytes);
  } else {
    add(ledger, kind, std::move(what), n_bytes);
  }
}

/// What a checkpoint is written from while training goes on, and where its tensors are put
/// together.
void add_save(std::vector<LedgerEntry>& ledger, const Settings& s, int rank, std::int64_t n_owned) {
  const bool copies = s.saves.interval_steps > 0 || s.owned_device() != Device::cpu;
  if (!s.saves.enabled || !copies) return;
  const std::vector<MasterPieces> sources = master_pieces(s);
  const bool is_source = std::any_of(sources.begin(), sources.end(),
                                     [rank](const auto& source) { return source.rank == rank; });
  if (is_source) {
    add_on_host(ledger, s, LedgerKind::other, "copy for checkpoints", 3 * n_owned * 4);
  }
  if (rank != 0 || s.saves_sharded || sources.size() == 1) return;
  std::int64_t most = 0;
  for (const ParameterSpec& spec : parameters(s.model)) most = std::max(most, spec.n_elements());
  add_on_host(ledger, s, LedgerKind::other, "one whole tensor of checkpoints",
              (s.grid.tp > 1 || model_of(s, rank).ep.size > 1 ? 2 : 1) * most * 4);
}

void add_state(std::vector<LedgerEntry>& ledger, const Settings& s, int rank,
               const DecoderCompute::Plan& compute) {
  const LayerRanges& layers = compute.chunks;
  const FlatLayout layout = layout_of(s, rank);
  const std::int64_t flat_bytes = layout.n_elements * 4;
  const int n_buffers = compute.accumulation.n_buffers();
  const StateShape shape = state_shape(s, rank);
  const Shard shard = shard_of(layout, shape.n_pieces, shape.piece, norm_chunk_elements);
  const std::string share = shape.n_pieces == 1 ? "" : fmt::format(" of 1/{}", shape.n_pieces);
  const ComputeLayout read = compute_layout(model_of(s, rank), layers);
  const std::string parameters = fmt::format("parameters ({})", name_of(model_of(s, rank).compute));
  if (shape.units.empty()) {
    add(ledger, LedgerKind::weights, parameters, read.n_bytes());
    add(ledger, LedgerKind::weights, "copy of the tied embedding",
        borrowed_bytes(model_of(s, rank), layers));
  } else {
    add_owned(ledger, s, LedgerKind::weights, parameters + share,
              owned_bytes(layout, read, shape.unit_shape()));
    const std::vector<std::int64_t> slots = use_plan(s, rank).slot_bytes();
    add(ledger, LedgerKind::weights, fmt::format("parameters of units, {} at a time", slots.size()),
        std::accumulate(slots.begin(), slots.end(), std::int64_t{0}));
  }
  if (model_of(s, rank).compute != Dtype::f32) {
    add_owned(ledger, s, LedgerKind::weights, "masters (f32)" + share, shard.n_elements * 4);
  }
  add(ledger, LedgerKind::gradients,
      fmt::format("gradients, {} of the accumulation {}{}", several(n_buffers, "buffer", "s"),
                  s.accumulation == Accumulation::tree ? "tree" : "in sequence",
                  s.zero_stage >= 2 && s.device == Device::cpu ? ", until summed" : ""),
      n_buffers * flat_bytes);
  if (model_of(s, rank).tie_embeddings && rank == embedding_holders(s, rank).owner) {
    const int n_extra = n_extra_leaves(compute.accumulation, compute.n_pending_leaves);
    add(ledger, LedgerKind::gradients,
        "gradients of the tied embedding, " + several(n_extra, "microbatch", "es") + " waiting",
        n_extra * model_of(s, rank).local_vocab_size() * s.model.hidden_size * 4);
  }
  add_owned(ledger, s, LedgerKind::moments, "AdamW moments" + share, 2 * shard.n_elements * 4);
  if (s.offloads()) {
    add_on_host(ledger, s, LedgerKind::gradients, "summed gradients" + share, shard.n_elements * 4);
  }
  add_save(ledger, s, rank, shard.n_elements);
  std::int64_t receives = 0;
  const bool sums_by_plan = !s.sums_in_place() && !s.sums_by_library();
  for (int lane = 0; lane < s.n_reducer_lanes && sums_by_plan; ++lane) {
    receives += reducer_scratch_bytes(layout.buckets, {place_of(s.grid, rank).dp, s.grid.dp},
                                      s.n_reducer_lanes, lane, piece_cuts(s, layout));
  }
  add(ledger, LedgerKind::other, "receives of the gradient reducers", receives);
  if (s.grid.tp > 1) {
    const int n_sharers = static_cast<int>(model_of(s, rank).n_kv_sharers());
    add(ledger, LedgerKind::other, "sums of tensor-parallel layers",
        tensor_sums_bytes(s.grid.tp, n_sharers, tensor_sums_plan(s, rank)));
  }
  add_on_host(ledger, s, LedgerKind::other, "sums of squares",
              square_sum_bytes(model_of(s, rank), layers));
  if (s.device != Device::cpu) {
    add(ledger, LedgerKind::other, "sums of squares",
        square_chunk_bytes(model_of(s, rank), layers));
  }
}

void add_activations(std::vector<LedgerEntry>& ledger, const Settings& s, int rank,
                     const DecoderCompute::Plan& compute) {
  const int pp = place_of(s.grid, rank).pp;
  const Schedule& schedule = s.pipeline.schedules[static_cast<std::size_t>(pp)];
  const ComputeBytes bytes = compute_bytes(model_of(s, rank), compute);
  const int n_in_flight = peak_activations(schedule);
  add(ledger, LedgerKind::activations,
      "activations, " + several(n_in_flight, "microbatch", "es") + " in flight",
      n_in_flight * bytes.saved);
  const int n_split = peak_split_backwards(schedule);
  add(ledger, LedgerKind::activations,
      "between halves of backward, " + several(n_split, "microbatch", "es"),
      n_split * bytes.deltas);
  add(ledger, LedgerKind::activations, "recomputed activations of one block",
      bytes.n_rooms * bytes.recomputed);
  add(ledger, LedgerKind::activations, "gradients and activations between stages",
      stage_buffer_bytes(stage_plan(s, rank)));
  add(ledger, LedgerKind::other, "scratch of one layer", bytes.n_rooms * bytes.scratch);
  add(ledger, LedgerKind::other, "table of positions", position_table_bytes(model_of(s, rank)));
}

/// cuda::Products' workspace.
constexpr std::int64_t device_workspace_bytes = std::int64_t{32} << 20;

/// What the rank's products and attention take beside their operands.
std::int64_t op_bytes(const Settings& s, int rank) {
  const ModelConfig m = model_of(s, rank);
  const std::int64_t batch = compute_plan(s, rank).largest_microbatch;
  const std::int64_t n = batch * s.seq_len;
  std::vector<OpScratch> products{linear_scratch(m.compute, n, m.hidden_size, m.qkv_width()),
                                  linear_scratch(m.compute, n, m.attention_width(), m.hidden_size)};
  std::int64_t of_mixture = 0;
  if (m.is_mixture()) {
    const RouterShape router{n, s.seq_len, m.n_experts, m.top_k, m.routed_experts()};
    const std::int64_t n_local = m.local_experts().size();
    const std::int64_t n_rows = m.ep.size > 1 ? m.most_arrivals(n) : router.n_rows();
    products.push_back(linear_scratch(m.compute, n, m.hidden_size, m.n_experts));
    of_mixture =
        router_scratch_bytes(router) + combine_scratch_bytes(m.hidden_size) +
        grouped_linear_scratch(m.compute, n_local, n_rows, m.hidden_size, m.intermediate_size)
            .thread_bytes +
        grouped_linear_scratch(m.compute, n_local, n_rows, m.intermediate_size, m.hidden_size)
            .thread_bytes;
  } else {
    const std::int64_t width = m.local_intermediate_size();
    products.push_back(linear_scratch(m.compute, n, m.hidden_size, width));
    products.push_back(linear_scratch(m.compute, n, width, m.hidden_size));
  }
  if (has_head(s, rank)) {
    const std::int64_t n_rows = std::min(n, head_chunk_rows(m));
    products.push_back(linear_scratch(m.compute, n_rows, m.hidden_size, m.local_vocab_size()));
  }
  OpScratch most = attention_scratch(m.compute, {.batch = batch,
                                                 .seq_len = s.seq_len,
                                                 .n_heads = m.n_local_heads(),
                                                 .n_kv_heads = m.n_local_kv_heads(),
                                                 .head_dim = m.head_dim()});
  std::int64_t of_product = 0;
  for (const OpScratch& product : products) {
    most.shared_bytes = std::max(most.shared_bytes, product.shared_bytes);
    of_product = std::max(of_product, product.thread_bytes);
  }
  return most.shared_bytes + s.threads_per_rank * (most.thread_bytes + of_product + of_mixture);
}

}  // namespace

std::vector<LedgerEntry> memory_ledger(const Settings& s, int rank) {
  const DecoderCompute::Plan compute = compute_plan(s, rank);
  std::vector<LedgerEntry> ledger;
  add_state(ledger, s, rank, compute);
  add_activations(ledger, s, rank, compute);
  std::int64_t samples = 2 * s.partition.global_batch() / s.partition.dp;
  if (s.validation.n_samples > 0) {
    samples += stage_plan(s, rank).n_validation_buffers * s.validation.microbatch_samples;
  }
  const int n_halves = (reads_tokens(s, rank) ? 1 : 0) + (reads_labels(s, rank) ? 1 : 0);
  add(ledger, LedgerKind::other, "tokens and labels", n_halves * samples * s.seq_len * 4);
  if (s.device == Device::cpu) {
    add(ledger, LedgerKind::threads, "scratch of ops", op_bytes(s, rank));
  } else {
    add_on_host(ledger, s, LedgerKind::other, "tokens and labels",
                n_halves * samples * s.seq_len * 4);
    add(ledger, LedgerKind::threads, "workspace of products", device_workspace_bytes);
  }
  return ledger;
}

namespace {

/// A tied embedding's new values, to the rank that embeds with it.
void count_table(StepTraffic& traffic, const Settings& s, int rank) {
  const auto element_bytes = static_cast<std::int64_t>(size_of(model_of(s, rank).compute));
  if (!s.shares_parameters()) {
    ++traffic.n_tensor_messages;
    traffic.n_bytes += model_of(s, rank).local_vocab_size() * s.model.hidden_size * element_bytes;
    return;
  }
  const StateShape shape = state_shape(s, rank);
  const auto k = static_cast<std::size_t>(shape.piece);
  const int copy = embedding_holders(s, rank).copy;
  for (const std::vector<std::int64_t>& cuts : state_shape(s, copy).table.cuts) {
    if (cuts[k] == cuts[k + 1]) continue;
    ++traffic.n_tensor_messages;
    traffic.n_bytes += (cuts[k + 1] - cuts[k]) * element_bytes;
  }
}

}  // namespace

StepTraffic stage_traffic(const Settings& s, int rank) {
  StepTraffic traffic;
  const Stage::Plan plan = stage_plan(s, rank);
  const std::int64_t row_bytes =
      model_of(s, rank).hidden_size * static_cast<std::int64_t>(size_of(model_of(s, rank).compute));
  std::int64_t step_rows = 0;
  for (const std::int64_t samples : s.partition.microbatch_samples) {
    step_rows += s.partition.n_accumulation_steps * plan.tp.rows(samples * s.seq_len).size();
  }
  const auto send_step = [&] {  // of every microbatch
    traffic.n_tensor_messages += s.partition.n_microbatches();
    traffic.n_bytes += step_rows * row_bytes;
  };
  const auto is_elsewhere = [&](int stage) {
    return 0 <= stage && stage < plan.pipeline.n_stages() &&
           plan.pipeline.place_of(stage).rank != plan.rank;
  };
  for (int chunk = 0; chunk < plan.pipeline.n_chunks; ++chunk) {
    const int stage = plan.pipeline.stage_of({plan.rank, chunk});
    if (is_elsewhere(stage + 1)) send_step();  // activations
    if (is_elsewhere(stage - 1)) send_step();  // their gradients
  }
  const EmbeddingHolders holders = embedding_holders(s, rank);
  if (model_of(s, rank).tie_embeddings && holders.owner != holders.copy) {
    if (rank == holders.copy) send_step();
    if (rank == holders.owner) count_table(traffic, s, rank);
  }
  // Sums of squares, to the other ranks of the pipeline.
  const auto n_owned =
      static_cast<std::int64_t>(owned_parameters(model_of(s, rank), layers_of(s, rank)).size());
  traffic.n_tensor_messages += s.grid.pp - 1;
  traffic.n_bytes += (s.grid.pp - 1) * n_owned * 8;
  return traffic;
}

namespace {

void count(StepTraffic& traffic, const std::vector<Transfer>& sends, std::int64_t element_bytes) {
  for (const Transfer& send : sends) {
    if (send.range.empty()) continue;
    ++traffic.n_tensor_messages;
    traffic.n_bytes += send.range.size() * element_bytes;
  }
}

/// What ranks tell each other of a library's sums: its id, then each bucket's.
void count_announcements(StepTraffic& traffic, int member, int dp, const FlatLayout& layout) {
  for (const GatherRound& round : broadcast_plan(member, dp, 0, sums_id_bytes)) {
    traffic.n_start_messages += static_cast<std::int64_t>(round.sends.size());
  }
  std::int64_t n = 0;
  for (const Bucket& bucket : layout.buckets) n += bucket.is_own ? 0 : n_announcements(dp);
  traffic.n_tensor_messages += n;
  traffic.n_bytes += n * announcement_bytes;
}

/// Gradients to the ranks that add them up, and back where every rank has all sums.
void count_reductions(StepTraffic& traffic, const Settings& s, int member,
                      const FlatLayout& layout) {
  const int dp = s.grid.dp;
  if (s.sums_in_place()) {  // a handle of each lane; then each bucket's "ready" and "summed"
    traffic.n_start_messages = std::int64_t{s.n_reducer_lanes} * (dp - 1);
    for (const Bucket& bucket : layout.buckets) {
      traffic.n_tensor_messages += bucket.is_own ? 0 : 2 * (dp - 1);
    }
    return;
  }
  if (s.sums_by_library()) return count_announcements(traffic, member, dp, layout);
  const CollectiveForm form = best_form(dp);
  const auto pieces = piece_cuts(s, layout);
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    if (layout.buckets[b].is_own) continue;
    const std::int64_t size = layout.buckets[b].flat.size();
    const CollectiveShape shape{
        member, dp,
        pieces.empty() ? even_cuts(size, dp, FlatLayout::alignment_elements) : pieces[b]};
    for (const ReduceRound& round : reduce_scatter_plan(form, shape).rounds) {
      count(traffic, round.sends, 4);
    }
    if (!pieces.empty()) continue;
    for (const GatherRound& round : all_gather_plan(form, shape)) count(traffic, round.sends, 4);
  }
}

/// Parameters: once each after their update, or as often as the rank's units are gathered.
void count_gathers(StepTraffic& traffic, const Settings& s, int rank, const FlatLayout& layout) {
  const int member = place_of(s.grid, rank).dp;
  const auto count_gather = [&](const std::vector<std::int64_t>& cuts) {
    for (const GatherRound& round : all_gather_plan(shard_form(s), {member, s.grid.dp, cuts})) {
      count(traffic, round.sends, 1);
    }
  };
  const ComputeLayout compute = compute_layout(model_of(s, rank), layers_of(s, rank));
  if (!s.shares_parameters()) {
    for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
      if (!layout.buckets[b].is_own) count_gather(compute_cuts(layout, compute, b, s.grid.dp));
    }
    return;
  }
  const StateShape shape = state_shape(s, rank);
  std::map<int, std::int64_t> n_gathers;  // by unit: each gather of it sends the same
  for (const UnitGather& gather : use_plan(s, rank).step.gathers.gathers) ++n_gathers[gather.unit];
  for (const auto& [unit, n] : n_gathers) {
    const StepTraffic before = traffic;
    for (const UnitPart& part : unit_parts(layout, compute, shape.unit_shape(), unit)) {
      count_gather(part.cuts);
    }
    traffic.n_tensor_messages += (n - 1) * (traffic.n_tensor_messages - before.n_tensor_messages);
    traffic.n_bytes += (n - 1) * (traffic.n_bytes - before.n_bytes);
  }
}

/// How often the ranks that share each layer do something together for a microbatch.
struct LayerCollectives {
  std::int64_t n_blocks = 0;
  std::int64_t n_sums = 0;     ///< of partial products (n, C)
  std::int64_t n_gathers = 0;  ///< of rows (n, C), under sequence parallelism
  std::int64_t n_norms = 0;    ///< vectors (C) whose gradients are summed once a step, there
};

LayerCollectives layer_collectives(const Settings& s, int rank) {
  const ModelConfig m = model_of(s, rank);
  LayerCollectives each;
  bool has_embedding = false;
  for (const Range& layers : layers_of(s, rank)) {
    each.n_blocks += std::min(layers.end, m.n_layers) - std::max<std::int64_t>(layers.begin, 0);
    has_embedding |= has_layer({layers}, embedding_layer);
  }
  // A block's two halves forward and back, the first again where it is recomputed; the embedding's
  // rows; and the head's gradient.
  each.n_sums = each.n_blocks * (s.recompute_blocks ? 5 : 4) + (has_embedding ? 1 : 0) +
                (has_head(s, rank) ? 1 : 0);
  if (!m.tp.cuts_rows) return each;
  // Both halves' inputs, and again for the gradients of their weights (and where they are
  // recomputed), and the gradients of their outputs; the head's input; the embedding's gradient.
  const EmbeddingHolders holders = embedding_holders(s, rank);
  const bool sums_embedding = has_embedding && (m.positions == Positions::learned ||
                                                !m.tie_embeddings || rank == holders.owner);
  const bool sums_table =
      m.tie_embeddings && holders.owner != holders.copy && rank == holders.owner;
  each.n_gathers = each.n_blocks * (s.recompute_blocks ? 8 : 6) + (has_head(s, rank) ? 1 : 0) +
                   (sums_embedding ? 1 : 0) + (sums_table ? 1 : 0);
  each.n_norms =
      (2 * each.n_blocks + (has_head(s, rank) ? 1 : 0)) * (m.norm == Norm::layer_norm ? 2 : 1);
  return each;
}

/// What the ranks that share each layer do together, and their sums of squares.
void count_tensor_sums(StepTraffic& traffic, const Settings& s, int rank) {
  const ModelConfig m = model_of(s, rank);
  const int tp = s.grid.tp;
  const auto count_reduce = [&](int member, int size, std::int64_t n_elements) {
    const CollectiveForm form = best_form(size);
    const CollectiveShape shape{member, size,
                                even_cuts(n_elements, size, FlatLayout::alignment_elements)};
    for (const ReduceRound& round : reduce_scatter_plan(form, shape).rounds) {
      count(traffic, round.sends, 4);
    }
    for (const GatherRound& round : all_gather_plan(form, shape)) count(traffic, round.sends, 4);
  };
  const auto count_messages = [&](std::int64_t n, std::int64_t n_bytes) {
    traffic.n_tensor_messages += n * (tp - 1);
    traffic.n_bytes += n * n_bytes;
  };
  const LayerCollectives each = layer_collectives(s, rank);
  const auto element_bytes = static_cast<std::int64_t>(size_of(m.compute));
  const bool head = has_head(s, rank);
  const std::int64_t n_flushes = s.partition.n_accumulation_steps;
  for (const std::int64_t samples : s.partition.microbatch_samples) {
    const std::int64_t n = samples * s.seq_len;
    const std::int64_t n_own = m.tp.rows(n).size();
    if (m.tp.cuts_rows) {  // others' rows of a sum to them; its own rows to each
      count_messages(each.n_sums * n_flushes, (n - n_own) * m.hidden_size * 4);
      count_messages(each.n_gathers * n_flushes, (tp - 1) * n_own * m.hidden_size * element_bytes);
    } else {
      for (std::int64_t i = 0; i < each.n_sums * n_flushes; ++i) {
        count_reduce(m.tp.rank, tp, n * m.hidden_size);
      }
    }
    // The gradients of a mixture's weights of visits.
    for (std::int64_t i = 0; m.is_mixture() && i < each.n_blocks * n_flushes; ++i) {
      count_reduce(m.tp.rank, tp, n * m.top_k);
    }
    if (!head) continue;
    const std::int64_t n_chunks = (n + head_chunk_rows(m) - 1) / head_chunk_rows(m);
    traffic.n_tensor_messages += n_flushes * n_chunks * (tp - 1);
    traffic.n_bytes += n_flushes * n * 2 * 4 * (tp - 1);
  }
  for (std::int64_t i = 0; i < each.n_norms; ++i) count_reduce(m.tp.rank, tp, m.hidden_size);
  if (m.n_kv_sharers() > 1) {
    const auto size = static_cast<int>(m.n_kv_sharers());
    const std::int64_t n_rows = m.qkv_width() - m.attention_width();
    for (std::int64_t block = 0; block < each.n_blocks; ++block) {
      count_reduce(m.tp.rank % size, size, n_rows * m.hidden_size);
      if (m.qkv_bias) count_reduce(m.tp.rank % size, size, n_rows);
    }
  }
  traffic.n_tensor_messages += tp - 1;
  traffic.n_bytes += (tp - 1) * static_cast<std::int64_t>(parameters(m).size()) * 8;
}

/// Rows of a mixture to the ranks of their experts and back, as if all experts were visited alike
/// (how many messages there are does not depend on that), and what these ranks tell each other.
void count_experts(StepTraffic& traffic, const Settings& s, int rank) {
  const ModelConfig m = model_of(s, rank);
  const std::int64_t n_peers = m.ep.size - 1;
  std::int64_t n_blocks = 0;
  for (const Range& layers : layers_of(s, rank)) {
    n_blocks += std::min(layers.end, m.n_layers) - std::max<std::int64_t>(layers.begin, 0);
  }
  // Forth and back, in the forward, when that is done again, and in the backward.
  const std::int64_t n_forwards = s.recompute_blocks ? 2 : 1;
  const std::int64_t n_calls = n_blocks * s.partition.n_accumulation_steps;
  const auto row_bytes = m.hidden_size * static_cast<std::int64_t>(size_of(m.compute));
  for (const std::int64_t samples : s.partition.microbatch_samples) {
    traffic.n_tensor_messages += n_calls * n_peers * (3 * n_forwards + 2);
    const std::int64_t n_visits = samples * s.seq_len * m.top_k;
    const std::int64_t n_rows = n_visits * n_peers * m.local_experts().size() / m.n_experts;
    traffic.n_bytes += n_calls * (2 * n_forwards + 2) * n_rows * row_bytes;
    traffic.n_bytes += n_calls * n_forwards * n_peers * (m.local_experts().size() + 1) * 4;
  }
  traffic.n_tensor_messages += n_peers;
  traffic.n_bytes += n_peers * static_cast<std::int64_t>(parameters(m).size()) * 8;
}

/// The sums of squares of owned chunks.
void count_squares(StepTraffic& traffic, const Settings& s, int rank, const FlatLayout& layout) {
  const StateShape state = state_shape(s, rank);
  std::int64_t n_chunks = 0;
  const Shard shard = shard_of(layout, state.n_pieces, state.piece, norm_chunk_elements);
  for (std::size_t b = 0; b < shard.pieces.size(); ++b) {
    if (layout.buckets[b].is_own) continue;
    for (const OwnedPiece& piece : shard.pieces[b]) {
      n_chunks += (piece.elements.size() + norm_chunk_elements - 1) / norm_chunk_elements;
    }
  }
  if (n_chunks == 0) return;
  traffic.n_tensor_messages += s.grid.dp - 1;
  traffic.n_bytes += (s.grid.dp - 1) * n_chunks * 8;
}

}  // namespace

StepTraffic step_traffic(const Settings& s, int rank) {
  StepTraffic traffic = stage_traffic(s, rank);
  const bool tells_losses = rank != 0 && tells_loss(s, rank);
  traffic.n_control_messages = s.grid.n_ranks() - 1 +
                               (tells_losses ? s.partition.n_microbatches() : 0) +
                               (rank != 0 && model_of(s, rank).is_mixture() ? 1 : 0);
  const FlatLayout layout = layout_of(s, rank);
  count_reductions(traffic, s, place_of(s.grid, rank).dp, layout);
  if (s.grid.tp > 1) count_tensor_sums(traffic, s, rank);
  if (model_of(s, rank).ep.size > 1) count_experts(traffic, s, rank);
  if (s.zero_stage == 0) return traffic;
  count_gathers(traffic, s, rank, layout);
  count_squares(traffic, s, rank, layout);
  return traffic;
}

}  // namespace llm
