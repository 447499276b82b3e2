#include "src/train/unit_report.h"

#include <algorithm>

#include <fmt/format.h>
#include "schedules/grid.h"
#include "src/train/rank_plan.h"

namespace llm {
namespace {

/// Of every rank of a pipeline.
std::vector<std::vector<Unit>> units_by_rank(const Settings& s) {
  std::vector<std::vector<Unit>> units;
  for (const int rank : pipeline_group(s.grid, 0)) units.push_back(units_of(s, rank));
  return units;
}

Unit largest_unit(const Settings& s) {
  Unit largest;
  for (const std::vector<Unit>& units : units_by_rank(s)) {
    for (const Unit& unit : units) {
      if (unit.n_parameters > largest.n_parameters) largest = unit;
    }
  }
  return largest;
}

/// "embedding, blocks 0-11, final norm, head".
std::string layers_text(const ModelConfig& config, const std::vector<std::int64_t>& layers) {
  std::string text;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const auto is_block = [&](std::size_t k) {
      return layers[k] >= 0 && layers[k] < config.n_layers;
    };
    std::size_t last = i;
    while (is_block(i) && last + 1 < layers.size() && is_block(last + 1) &&
           layers[last + 1] == layers[last] + 1) {
      ++last;
    }
    text += text.empty() ? "" : ", ";
    text += last == i ? layer_name(config, layers[i])
                      : fmt::format("blocks {}-{}", layers[i], layers[last]);
    i = last;
  }
  return text;
}

std::string policy_text(const GatherPolicy& policy) {
  return fmt::format(
      "{} gathered ahead of use, {}", policy.n_ahead,
      policy.reshard ? "given back after each use" : "kept to the last use of a step");
}

}  // namespace

std::int64_t block_parameters(const ModelConfig& config) {
  std::int64_t n = 0;
  for (const ParameterSpec& spec : parameters(config)) n += spec.layer == 0 ? spec.n_elements() : 0;
  return n;
}

std::string layer_name(const ModelConfig& config, std::int64_t layer) {
  if (layer == embedding_layer) return "embedding";
  if (layer == head_layer(config)) return "final norm, head";
  return fmt::format("block {}", layer);
}

std::string unit_table(const Settings& s) {
  std::string text = fmt::format("units    {}\n  {:<40} {:>14} {:>9}\n",
                                 policy_text(s.gather_policy), "layers", "parameters", "of model");
  const std::vector<std::vector<Unit>> by_rank = units_by_rank(s);
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (by_rank.size() > 1) text += fmt::format("  rank {}\n", rank);
    for (const Unit& unit : by_rank[rank]) {
      text += fmt::format("  {:<40} {:>14} {:>7.1f} %\n", layers_text(s.model, unit.layers),
                          unit.n_parameters,
                          100.0 * static_cast<double>(unit.n_parameters) /
                              static_cast<double>(n_parameters(s.model)));
    }
  }
  return text;
}

std::string unit_line(const Settings& s) {
  if (!s.shares_parameters()) return "";
  std::size_t n_units = 0;
  const std::vector<std::vector<Unit>> by_rank = units_by_rank(s);
  for (const std::vector<Unit>& units : by_rank) n_units += units.size();
  return fmt::format("units: {}{}, the largest of {} parameters; {}", n_units,
                     by_rank.size() > 1 ? fmt::format(" on {} pipeline ranks", by_rank.size()) : "",
                     largest_unit(s).n_parameters, policy_text(s.gather_policy));
}

std::string unit_warning(const Settings& s) {
  if (!s.shares_parameters()) return "";
  const Unit largest = largest_unit(s);
  const std::int64_t n_model = n_parameters(s.model);
  if (2 * largest.n_parameters <= n_model) return "";
  const std::string unit = fmt::format(
      "warning: distributed.fsdp_auto_wrap_min_params is {}: one unit ({}) has {} of the model's "
      "{} "
      "parameters, and every rank holds it whole while it is used; ",
      s.unit_min_parameters, layers_text(s.model, largest.layers), largest.n_parameters, n_model);
  if (largest.layers.size() == 1) return unit + "no value makes a smaller one of it";
  return unit + fmt::format("{} makes each block a unit", block_parameters(s.model));
}

}  // namespace llm
