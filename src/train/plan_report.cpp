#include "src/train/plan_report.h"

#include <fmt/format.h>
#include <map>
#include "actors/gradient_reducer.h"
#include "actors/optimizer_shard.h"
#include "schedules/collective.h"
#include "src/model/decoder.h"
#include "src/train/pipeline_report.h"
#include "src/train/rank_plan.h"
#include "src/train/unit_report.h"

namespace llm {
namespace {

std::string mib(std::int64_t n_bytes) {
  return fmt::format("{:.2f} MiB", static_cast<double>(n_bytes) / (1 << 20));
}

std::string layer_table(const Settings& s) {
  std::string text =
      fmt::format("layers\n  {:<18} {:>14} {:>16}\n", "layer", "parameters", "activations");
  const std::vector<ParameterSpec> specs = parameters(s.model);
  const Range layers = all_layers(s.model);
  for (std::int64_t layer = layers.begin; layer < layers.end; ++layer) {
    std::int64_t n = 0;
    for (const ParameterSpec& spec : specs) n += spec.layer == layer ? spec.n_elements() : 0;
    const std::int64_t saved =
        saved_bytes(s.model, {layer, layer + 1}, s.partition.largest_microbatch(), s.seq_len,
                    s.recompute_blocks ? Recompute::block : Recompute::none);
    text += fmt::format("  {:<18} {:>14} {:>16}\n", layer_name(s.model, layer), n, mib(saved));
  }
  return text;
}

std::string bucket_table(const FlatLayout& layout, const ModelConfig& model) {
  std::string text = fmt::format("buckets  {} (reduced as soon as the layer's backward is done)\n",
                                 layout.buckets.size());
  constexpr std::size_t n_shown = 8;
  for (std::size_t b = 0; b < layout.buckets.size(); ++b) {
    if (b == n_shown && layout.buckets.size() > n_shown + 1) {
      text += fmt::format("  ... {} more\n", layout.buckets.size() - n_shown);
      break;
    }
    const Bucket& bucket = layout.buckets[b];
    text += fmt::format("  {:<4} {:>14}  after {}\n", b, mib(bucket.flat.size() * 4),
                        layer_name(model, bucket.ready_after_layer));
  }
  return text;
}

/// Of what lies where the rank computes, or of the rest.
std::int64_t sum_of(const std::vector<LedgerEntry>& ledger, bool is_on_host = false) {
  std::int64_t total = 0;
  for (const LedgerEntry& entry : ledger)
    total += entry.is_on_host == is_on_host ? entry.n_bytes : 0;
  return total;
}

std::string ledger_table(const std::vector<LedgerEntry>& ledger) {
  std::string text;
  for (const LedgerEntry& entry : ledger) {
    text += fmt::format("  {:<48} {:>16}\n", entry.what, mib(entry.n_bytes));
  }
  const auto sum = [](const char* of, std::int64_t n_bytes) {
    return fmt::format("  {:<48} {:>16}\n", of, mib(n_bytes));
  };
  const std::int64_t on_host = sum_of(ledger, true);
  if (on_host == 0) return text + sum("sum", sum_of(ledger));
  return text + sum("sum, on the device", sum_of(ledger)) + sum("sum, on the host", on_host);
}

/// The order of a flush where one rank has the whole model.
std::string schedule_text(const Settings& s) {
  const Pipeline& p = s.pipeline;
  if (p.n_ranks > 1) {
    return fmt::format("stages   {} on {} ranks, {} microbatches a flush\n", p.n_stages(),
                       p.n_ranks, p.n_microbatches);
  }
  std::string order = to_string(p.schedules.front());
  constexpr std::size_t n_shown = 90;
  if (order.size() > n_shown) order = order.substr(0, order.rfind(' ', n_shown)) + " ...";
  return fmt::format("stage    {} a flush\n", order);
}

/// Of the last pipeline, since the last data-parallel rank receives most.
int fullest_rank(const Settings& s) {
  int fullest = 0;
  std::int64_t most = 0;
  for (int pp = 0; pp < s.grid.pp; ++pp) {
    const int rank = rank_at(s.grid, {.dp = s.grid.dp - 1, .pp = pp, .tp = 0});
    const std::int64_t n_bytes = sum_of(memory_ledger(s, rank));
    if (n_bytes <= most) continue;
    most = n_bytes;
    fullest = rank;
  }
  return fullest;
}

/// The first ranks of a pipeline and the last, and the last rank of all.
std::vector<int> traffic_ranks(const Settings& s) {
  std::vector<int> ranks;
  for (int pp = 0; pp < s.grid.pp; ++pp) {
    if (pp < 7 || pp == s.grid.pp - 1) ranks.push_back(pp);
  }
  if (s.grid.dp > 1) ranks.push_back(s.grid.n_ranks() - 1);
  return ranks;
}

std::string batch_text(const Settings& s) {
  std::string samples;
  const std::vector<std::int64_t>& sizes = s.partition.microbatch_samples;
  constexpr std::size_t n_shown_alone = 8;
  for (std::size_t begin = 0, end = 0; begin < sizes.size(); begin = end) {
    while (end < sizes.size() && sizes[end] == sizes[begin]) ++end;
    if (sizes.size() <= n_shown_alone) end = begin + 1;
    samples += (begin == 0 ? "" : " + ") +
               (end == begin + 1 ? "" : std::to_string(end - begin) + " of ") +
               std::to_string(sizes[begin]);
  }
  return fmt::format(
      "batch    global {} samples = ({}) x {} accumulation step{} x dp {}; {} microbatches a rank, "
      "{} "
      "tokens a step\n",
      s.partition.global_batch(), samples, s.partition.n_accumulation_steps,
      s.partition.n_accumulation_steps == 1 ? "" : "s", s.partition.dp,
      s.partition.n_microbatches(), s.tokens_per_step());
}

/// What the data-parallel ranks of this grid could share out, side by side.
std::string sharing_table(const Settings& s) {
  std::string text = fmt::format("zero_stage  {:>13} {:>13} {:>13} {:>13} {:>13} {:>13}\n",
                                 "weights", "gradients", "moments", "activations", "other", "sum");
  for (const int zero_stage : {0, 1, 2, 3}) {
    Settings other = s;
    other.zero_stage = zero_stage;
    const std::vector<LedgerEntry> ledger = memory_ledger(other, fullest_rank(other));
    std::map<LedgerKind, std::int64_t> by_kind;
    for (const LedgerEntry& entry : ledger) {
      by_kind[entry.kind] += entry.is_on_host ? 0 : entry.n_bytes;
    }
    text += fmt::format("  {:<9} {:>13} {:>13} {:>13} {:>13} {:>13} {:>13}{}\n", zero_stage,
                        mib(by_kind[LedgerKind::weights]), mib(by_kind[LedgerKind::gradients]),
                        mib(by_kind[LedgerKind::moments]), mib(by_kind[LedgerKind::activations]),
                        mib(by_kind[LedgerKind::other] + by_kind[LedgerKind::threads]),
                        mib(sum_of(ledger)), zero_stage == s.zero_stage ? "  this one" : "");
  }
  if (s.device != Device::cpu) return text;
  return text +
         "  zero_stage 2 and 3 give gradients back once they are summed: less until the next "
         "backward\n";
}

std::string recommendation(const Settings& s, std::int64_t ranks_per_node,
                           std::int64_t node_bytes) {
  const std::int64_t n_ranks = std::min<std::int64_t>(ranks_per_node, s.grid.n_ranks());
  const std::int64_t rank_bytes = node_bytes / n_ranks;
  std::string text =
      fmt::format("memory   {} on a node, {} for each of its {} rank{}: ", mib(node_bytes),
                  mib(rank_bytes), n_ranks, n_ranks == 1 ? "" : "s");
  const auto fits = [&](int zero_stage, std::int64_t unit_min_parameters) {
    Settings other = s;
    other.zero_stage = zero_stage;
    other.unit_min_parameters = unit_min_parameters;
    return sum_of(memory_ledger(other, fullest_rank(other))) <= rank_bytes;
  };
  // The peak of 2 is that of 1.
  for (const int zero_stage : {0, 1, 3}) {
    if (fits(zero_stage, s.unit_min_parameters)) {
      return text + fmt::format("zero_stage {} fits\n", zero_stage);
    }
  }
  if (fits(3, block_parameters(s.model))) {
    return text + fmt::format("zero_stage 3 with fsdp_auto_wrap_min_params: {} fits\n",
                              block_parameters(s.model));
  }
  return text +
         "no zero_stage fits; lower training.batch_size or cut it by "
         "distributed.pp_n_microbatches, "
         "or start more ranks in pipelines (parallel_strategy: pp)\n";
}

}  // namespace

std::string tensor_parallel_warning(const Settings& s, const std::vector<int>& node_of) {
  const auto tp = static_cast<std::size_t>(s.grid.tp);
  for (std::size_t first = 0; first + tp <= node_of.size(); first += tp) {
    if (node_of[first] == node_of[first + tp - 1]) continue;
    const auto n_here = std::count(node_of.begin(), node_of.end(), node_of[first]);
    return fmt::format(
        "warning: distributed.tp_size is {}, but nodes have {} rank{}: ranks of different nodes "
        "wait for each other four times in each block; use a divisor of {}",
        tp, n_here, n_here == 1 ? "" : "s", n_here);
  }
  return "";
}

std::string library_sums_line(const Settings& s) {
  if (!s.sums_by_library()) return "";
  return "gradients are added up by NCCL's collectives: the same bits at every start of this "
         "layout, not across layouts (collectives: plan gives those)";
}

std::string plan_text(const Settings& s, std::int64_t ranks_per_node, std::int64_t node_bytes) {
  const std::int64_t n_ranks = s.grid.n_ranks();
  const std::int64_t n_nodes = (n_ranks + ranks_per_node - 1) / ranks_per_node;
  std::string text = fmt::format("grid     [dp {}][pp {}][tp {}]: {} rank{} on {} node{} of {}\n",
                                 s.grid.dp, s.grid.pp, s.grid.tp, n_ranks, n_ranks == 1 ? "" : "s",
                                 n_nodes, n_nodes == 1 ? "" : "s", ranks_per_node);
  std::vector<int> node_of;
  for (std::int64_t rank = 0; rank < n_ranks; ++rank) {
    node_of.push_back(static_cast<int>(rank / ranks_per_node));
  }
  const std::string spans = tensor_parallel_warning(s, node_of);
  if (!spans.empty()) text += spans + "\n";
  text += batch_text(s);
  text += schedule_text(s);
  if (const std::string pairs = pairs_warning(s); !pairs.empty()) text += pairs + "\n";
  text += fmt::format("model    {} parameters in {} tensors, {:.2f} MFLOP a token\n",
                      n_parameters(s.model), parameters(s.model).size(),
                      flops_per_token(s.model, s.seq_len) * 1e-6);
  if (s.n_steps > 0) text += fmt::format("steps    {}\n", s.n_steps);
  text += layer_table(s);
  if (s.shares_parameters()) {
    text += unit_table(s);
    const std::string warning = unit_warning(s);
    if (!warning.empty()) text += warning + "\n";
  }
  if (s.grid.pp > 1) text += pipeline_report(s);
  const int fullest = fullest_rank(s);
  text += bucket_table(layout_of(s, fullest), s.model);
  text += "bytes per rank\n";
  if (s.grid.pp > 1) text += fmt::format("  rank {}, which holds most\n", fullest);
  text += ledger_table(memory_ledger(s, fullest));
  if (s.grid.dp > 1) text += sharing_table(s);
  text += "messages per step\n";
  if (s.sums_in_place()) {
    text += "  gradients are added up where they lie, in memory that all ranks map\n";
  }
  if (s.sums_by_library()) {
    text += "  " + library_sums_line(s) + "\n  NCCL's own messages are not counted\n";
  }
  if (s.spreads_experts) text += "  bytes are of rows as if all experts were visited alike\n";
  for (const int rank : traffic_ranks(s)) {
    const StepTraffic traffic = step_traffic(s, rank);
    text +=
        fmt::format("  rank {:<4} sends {} tensor messages, {}, and {} control messages\n", rank,
                    traffic.n_tensor_messages, mib(traffic.n_bytes), traffic.n_control_messages);
  }
  if (node_bytes > 0) text += recommendation(s, ranks_per_node, node_bytes);
  return text;
}

std::string out_of_memory_text(const Settings& s, int rank, std::int64_t bytes_asked_for,
                               std::int64_t bytes_held) {
  const std::vector<LedgerEntry> ledger = memory_ledger(s, rank);
  return fmt::format(
      "out of memory: {} asked for, {} of the {} planned are held; what helps most: a smaller "
      "training.batch_size, or the same cut by distributed.pp_n_microbatches (activations); "
      "numerics.accumulation: sequential (gradient buffers); optimization.amp_dtype: bfloat16 "
      "(activations). The plan of this rank:\n{}",
      mib(bytes_asked_for), mib(bytes_held), mib(sum_of(ledger)), ledger_table(ledger));
}

}  // namespace llm
