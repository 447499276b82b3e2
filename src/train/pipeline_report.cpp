#include "src/train/pipeline_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "src/train/plan_report.h"

namespace llm {
namespace {

constexpr int n_columns = 120;
constexpr double bubble_max = 0.2;

std::string layers_text(const ModelConfig& model, Range layers) {
  const std::int64_t first = std::max<std::int64_t>(0, layers.begin);
  const std::int64_t last = std::min(layers.end, model.n_layers) - 1;
  std::string text = layers.begin < 0 ? "embedding, " : "";
  text += first == last ? fmt::format("block {}", first) : fmt::format("blocks {}-{}", first, last);
  return layers.end > model.n_layers ? text + ", head" : text;
}

/// A tied embedding counts where it is trained: with the head.
std::int64_t n_parameters_of(const ModelConfig& model, Range layers) {
  std::int64_t n = 0;
  for (const ParameterSpec& spec : parameters(model)) {
    const bool is_tied = model.tie_embeddings && spec.role == Role::token_embedding;
    const std::int64_t layer = is_tied ? head_layer(model) : spec.layer;
    if (layers.begin <= layer && layer < layers.end) n += spec.n_elements();
  }
  return n;
}

std::string stage_table(const Settings& s) {
  const std::vector<double> costs = stage_costs(layer_costs(s.model, s.seq_len), s.stage_layers);
  const double all = std::accumulate(costs.begin(), costs.end(), 0.0);
  std::string text = fmt::format("stages\n  {:<6} {:<6} {:<28} {:>14} {:>8}\n", "stage", "rank",
                                 "layers", "parameters", "FLOPs");
  for (int stage = 0; stage < s.pipeline.n_stages(); ++stage) {
    const auto at = static_cast<std::size_t>(stage);
    text += fmt::format("  {:<6} {:<6} {:<28} {:>14} {:>6.1f} %\n", stage,
                        s.pipeline.place_of(stage).rank, layers_text(s.model, s.stage_layers[at]),
                        n_parameters_of(s.model, s.stage_layers[at]), 100 * costs[at] / all);
  }
  return text;
}

std::int64_t bytes_of(const std::vector<LedgerEntry>& ledger, LedgerKind kind) {
  std::int64_t n_bytes = 0;
  for (const LedgerEntry& entry : ledger) n_bytes += entry.kind == kind ? entry.n_bytes : 0;
  return n_bytes;
}

std::string rank_table(const Settings& s) {
  using enum LedgerKind;
  std::string text = "MiB of each rank of a pipeline\n";
  text += fmt::format("  {:<6}{:>12}{:>12}{:>12}{:>14}{:>12}{:>12}  {}\n", "rank", "weights",
                      "gradients", "moments", "activations", "other", "sum", "held at most");
  for (int pp = 0; pp < s.grid.pp; ++pp) {
    const int rank = rank_at(s.grid, {.dp = s.grid.dp - 1, .pp = pp, .tp = 0});
    const std::vector<LedgerEntry> ledger = memory_ledger(s, rank);
    const auto column = [](std::int64_t n_bytes) {
      return fmt::format("{:.2f}", static_cast<double>(n_bytes) / (1 << 20));
    };
    std::int64_t sum = 0;
    text += fmt::format("  {:<6}", pp);
    for (const LedgerKind kind : {weights, gradients, moments, activations, other}) {
      std::int64_t n_bytes = bytes_of(ledger, kind);
      if (kind == other) n_bytes += bytes_of(ledger, threads);
      sum += n_bytes;
      text += fmt::format("{:>{}}", column(n_bytes), kind == activations ? 14 : 12);
    }
    const int peak = peak_activations(s.pipeline.schedules[static_cast<std::size_t>(pp)]);
    text += fmt::format("{:>12}  {} microbatch{}{}\n", column(sum), peak, peak == 1 ? "" : "es",
                        s.pipeline.n_chunks == 1 ? "" : " of a chunk");
  }
  return text;
}

std::string clock_text(const Settings& s) {
  const Simulation simulation = simulate(s.pipeline, pipeline_costs(s));
  const std::string picture = timeline(simulation, n_columns - 2);
  std::string text =
      fmt::format("flush of {} microbatches on a virtual clock{}\n", s.pipeline.n_microbatches,
                  picture.empty() ? ", in order: too wide to be drawn" : "");
  for (std::size_t begin = 0; begin < picture.size();) {
    const std::size_t end = picture.find('\n', begin) + 1;
    text += "  " + picture.substr(begin, end - begin);
    begin = end;
  }
  if (picture.empty()) {
    for (std::size_t rank = 0; rank < s.pipeline.schedules.size(); ++rank) {
      std::string row = fmt::format("  rank {:<6}{}", rank, to_string(s.pipeline.schedules[rank]));
      if (row.size() > n_columns) row = row.substr(0, row.rfind(' ', n_columns - 4)) + " ...";
      text += row + "\n";
    }
  }
  text += fmt::format("  makespan {:.1f} forwards of a mean stage; bubble {:.1f} %, by rank",
                      simulation.makespan, 100 * simulation.bubble());
  constexpr int n_shown = 8;
  for (int rank = 0; rank < std::min(s.grid.pp, n_shown); ++rank) {
    text += fmt::format("{} {:.0f}", rank == 0 ? "" : ",", 100 * simulation.bubble(rank));
  }
  if (s.grid.pp > n_shown) text += ", ...";
  return text + "\n";
}

/// What is left of the bubble with any number of microbatches: ranks wait for the busiest.
double least_bubble(const Settings& s, const PipelineCosts& costs) {
  std::vector<double> of_ranks(static_cast<std::size_t>(s.pipeline.n_ranks));
  for (int stage = 0; stage < s.pipeline.n_stages(); ++stage) {
    const ActionCosts& c = costs.by_stage[static_cast<std::size_t>(stage)];
    of_ranks[static_cast<std::size_t>(s.pipeline.place_of(stage).rank)] += c.forward + c.backward;
  }
  const double together = std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0);
  const double busiest = *std::max_element(of_ranks.begin(), of_ranks.end());
  return 1 - together / (busiest * static_cast<double>(of_ranks.size()));
}

/// The least number of microbatches above today's with a bubble that is small enough; 0: none.
int better_n_microbatches(const Settings& s) {
  if (!s.schedule) return 0;
  const PipelineCosts costs = pipeline_costs(s);
  if (least_bubble(s, costs) >= bubble_max) return 0;
  PipelineShape shape{.n_ranks = s.pipeline.n_ranks, .n_chunks = s.pipeline.n_chunks};
  // At 20 % of waiting a pipeline of p equal stages has about 4 p microbatches.
  const int n_max = s.pipeline.n_microbatches + 8 * s.pipeline.n_ranks;
  for (int n = s.pipeline.n_microbatches + 1; n <= n_max; ++n) {
    shape.n_microbatches = n;
    if (simulate(make_pipeline(*s.schedule, shape), costs).bubble() <= bubble_max) return n;
  }
  return 0;
}

}  // namespace

PipelineCosts pipeline_costs(const Settings& s) {
  LayerCosts bodies = layer_costs(s.model, s.seq_len);
  const double head = bodies.head;
  bodies.head = 0;
  const std::vector<double> body = stage_costs(bodies, s.stage_layers);
  const double unit =
      std::accumulate(body.begin(), body.end(), 0.0) / 3 / static_cast<double>(body.size());
  PipelineCosts costs;
  for (std::size_t stage = 0; stage < body.size(); ++stage) {
    const double third = body[stage] / 3 / unit;
    const double before =
        (s.recompute_blocks ? third : 0) + (stage + 1 == body.size() ? head / unit : 0);
    costs.by_stage.push_back({.forward = third,
                              .backward = before + 2 * third,
                              .backward_input = before + third,
                              .backward_weight = third});
  }
  return costs;
}

std::string bubble_warning(const Settings& s) {
  if (s.grid.pp == 1) return "";
  const double bubble = simulate(s.pipeline, pipeline_costs(s)).bubble();
  if (bubble <= bubble_max) return "";
  std::string text = fmt::format(
      "warning: the ranks of a pipeline are expected to wait for {:.0f} % of the time; ",
      100 * bubble);
  const int n = better_n_microbatches(s);
  if (n == 0) {
    return text +
           "more microbatches alone do not bring it below 20 %: even stages (pp_split), "
           "fewer ranks or another pp_schedule do";
  }
  text += fmt::format("distributed.pp_n_microbatches: {} brings it below 20 %", n);
  const std::int64_t batch = s.partition.samples_per_accumulation_step();
  if (n > batch) text += fmt::format(" (with a training.batch_size of {} or more)", n);
  return text;
}

std::string pairs_warning(const Settings& s) {
  const std::vector<Schedule>& schedules = s.pipeline.schedules;
  if (!std::any_of(schedules.begin(), schedules.end(), has_pairs)) {
    if (s.schedule != ScheduleKind::one_f_one_b_pairs) return "";
    return fmt::format(
        "warning: distributed.pp_schedule 1f1b_pairs has no pairs with "
        "distributed.pp_n_microbatches "
        "{}; use 2 or more",
        s.pipeline.n_microbatches);
  }
  if (s.grid.tp > 1 || s.spreads_experts) return "";
  return fmt::format(
      "warning: the pairs of distributed.pp_schedule cost memory and hide nothing, since no layer "
      "waits for other ranks (tp_size {}, experts on one rank); use 1f1b",
      s.grid.tp);
}

std::string pipeline_report(const Settings& s) {
  std::string text = stage_table(s) + rank_table(s) + clock_text(s);
  const std::string warning = bubble_warning(s);
  return warning.empty() ? text : text + warning + "\n";
}

}  // namespace llm
