#include "src/trace/report.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include <fmt/format.h>
#include "src/base/error.h"

namespace llm {
namespace {

constexpr std::size_t n_shown_sums = 10;
constexpr double shown_share = 0.005;

double ms(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-6;
}

double percent(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

/// Means over ranks, ns.
struct Means {
  std::int64_t model = 0;
  std::int64_t exposed = 0;
  std::int64_t in_flight = 0;
  std::int64_t overlapped = 0;
};

Means means_of(const StepFigures& step) {
  Means sums;
  for (const RankFigures& rank : step.ranks) {
    sums.model += rank.model_ns;
    sums.exposed += rank.exposed_all_ns();
    sums.in_flight += rank.in_flight_ns;
    sums.overlapped += rank.overlapped_ns;
  }
  const auto n = static_cast<std::int64_t>(step.ranks.size());
  return {sums.model / n, sums.exposed / n, sums.in_flight / n, sums.overlapped / n};
}

std::string bubble_text(const StepFigures& step) {
  if (step.flushes.empty()) return "-";
  std::string text = fmt::format("{:.1f} %", 100 * step.bubble());
  if (step.planned_bubble() > 0) text += fmt::format(" ({:.1f} %)", 100 * step.planned_bubble());
  return text;
}

std::string step_table(const Timeline& timeline, const std::vector<StepFigures>& steps) {
  std::string text = fmt::format("{:>6} {:>10} {:>10} {:>10} {:>9} {:>18}  {:<22} {}\n", "step",
                                 "ms", "compute", "exposed", "overlap", "bubble (planned)",
                                 "slowest rank", "most of the critical path");
  for (const StepFigures& step : steps) {
    const Means means = means_of(step);
    const std::string slowest =
        step.ranks.size() == 1
            ? "-"
            : fmt::format("rank {} by {:.1f} ms", step.slowest, ms(step.beyond_median_ns));
    const std::vector<PathSum> sums = by_length(step.path);
    const std::string most = sums.empty()
                                 ? ""
                                 : fmt::format("{:.0f} % {}", percent(sums[0].ns, step.wall_ns()),
                                               text_of(timeline, sums[0].first));
    const std::string overlap =
        means.in_flight == 0 ? "-"
                             : fmt::format("{:.0f} %", percent(means.overlapped, means.in_flight));
    text += fmt::format("{:>6} {:>10.2f} {:>10.2f} {:>10.2f} {:>9} {:>18}  {:<22} {}\n", step.step,
                        ms(step.wall_ns()), ms(means.model), ms(means.exposed), overlap,
                        bubble_text(step), slowest, most);
  }
  return text;
}

/// Where each rank's time went: ms a step, mean over steps.
std::string rank_table(const std::vector<StepFigures>& steps) {
  std::map<std::string, std::int64_t> kinds;
  for (const StepFigures& step : steps) {
    for (const RankFigures& rank : step.ranks) {
      for (const auto& [kind, ns] : rank.exposed_ns) kinds[kind] += ns;
    }
  }
  std::string text =
      fmt::format("{:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}   {}\n", "rank", "step",
                  "compute", "sums", "actors", "own waits", "other", "exposed, by message");
  const auto n = static_cast<double>(steps.size());
  for (std::size_t r = 0; r < steps.front().ranks.size(); ++r) {
    RankFigures sum;
    for (const StepFigures& step : steps) {
      const RankFigures& rank = step.ranks[r];
      sum.wall_ns += rank.wall_ns;
      sum.model_ns += rank.model_ns;
      sum.sums_ns += rank.sums_ns;
      sum.actors_ns += rank.actors_ns;
      sum.own_waits_ns += rank.own_waits_ns;
      sum.other_ns += rank.other_ns;
      for (const auto& [kind, ns] : rank.exposed_ns) sum.exposed_ns[kind] += ns;
    }
    text += fmt::format("{:>6} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f}   ", r,
                        ms(sum.wall_ns) / n, ms(sum.model_ns) / n, ms(sum.sums_ns) / n,
                        ms(sum.actors_ns) / n, ms(sum.own_waits_ns) / n, ms(sum.other_ns) / n);
    std::string exposed;
    for (const auto& [kind, all] : kinds) {
      if (sum.exposed_ns[kind] == 0) continue;
      exposed += fmt::format("{}{} {:.2f}", exposed.empty() ? "" : ", ", kind,
                             ms(sum.exposed_ns[kind]) / n);
    }
    text += (exposed.empty() ? "-" : exposed) + "\n";
  }
  return text;
}

std::string path_sums(const Timeline& timeline, const std::vector<StepFigures>& steps) {
  std::vector<PathPart> all;
  std::int64_t wall_ns = 0;
  for (const StepFigures& step : steps) {
    all.insert(all.end(), step.path.begin(), step.path.end());
    wall_ns += step.wall_ns();
  }
  std::string text;
  std::size_t n_shown = 0;
  for (const PathSum& sum : by_length(all)) {
    if (n_shown++ == n_shown_sums) break;
    text += fmt::format("{:>9.2f} ms a step {:>5.1f} %  {}\n",
                        ms(sum.ns) / static_cast<double>(steps.size()), percent(sum.ns, wall_ns),
                        text_of(timeline, sum.first));
  }
  return text;
}

std::string path_text(const Timeline& timeline, const StepFigures& step) {
  std::string text;
  std::int64_t left_ns = step.wall_ns();
  const auto min_ns = static_cast<std::int64_t>(shown_share * static_cast<double>(left_ns));
  for (const PathSum& sum : in_order(step.path, min_ns)) {
    text += fmt::format("{:>10.2f} {:>10.2f} ms {:>5.1f} %  {}\n",
                        ms(sum.first.begin_ns - step.begin_ns), ms(sum.ns),
                        percent(sum.ns, step.wall_ns()), text_of(timeline, sum.first));
    left_ns -= sum.ns;
  }
  return text + fmt::format("{:>10} {:>10.2f} ms {:>5.1f} %  in shorter pieces between these\n", "",
                            ms(left_ns), percent(left_ns, step.wall_ns()));
}

nlohmann::ordered_json json_of(const Timeline& timeline, const StepFigures& step) {
  nlohmann::ordered_json json;
  json["step"] = step.step;
  json["ms"] = ms(step.wall_ns());
  const Means means = means_of(step);
  json["compute_ms"] = ms(means.model);
  json["exposed_ms"] = ms(means.exposed);
  json["overlap"] = percent(means.overlapped, means.in_flight) / 100;
  if (!step.flushes.empty()) {
    json["bubble"] = step.bubble();
    json["planned_bubble"] = step.planned_bubble();
    json["flush_ms"] = ms(step.flushes[0].end_ns - step.flushes[0].begin_ns);
    json["planned_flush_ms"] = ms(step.flushes[0].planned_ns);
  }
  json["slowest_rank"] = step.slowest;
  json["beyond_median_ms"] = ms(step.beyond_median_ns);
  for (const RankFigures& rank : step.ranks) {
    nlohmann::ordered_json own = {{"ms", ms(rank.wall_ns)},
                                  {"compute_ms", ms(rank.model_ns)},
                                  {"sums_ms", ms(rank.sums_ns)},
                                  {"actors_ms", ms(rank.actors_ns)},
                                  {"own_waits_ms", ms(rank.own_waits_ns)},
                                  {"other_ms", ms(rank.other_ns)},
                                  {"in_flight_ms", ms(rank.in_flight_ns)},
                                  {"overlapped_ms", ms(rank.overlapped_ns)}};
    own["exposed_ms"] = nlohmann::ordered_json::object();
    for (const auto& [kind, ns] : rank.exposed_ns) own["exposed_ms"][kind] = ms(ns);
    json["ranks"].push_back(std::move(own));
  }
  constexpr std::array kinds = {"work", "message", "wait", "unknown"};
  for (const PathSum& sum : in_order(step.path)) {
    json["path"].push_back({{"kind", kinds[static_cast<std::size_t>(sum.first.kind)]},
                            {"rank", sum.first.rank},
                            {"from_rank", sum.first.from_rank},
                            {"actor", timeline.ranks[sum.first.rank].row_name(sum.first.row)},
                            {"name", timeline.name(sum.first.name)},
                            {"begin_ms", ms(sum.first.begin_ns - step.begin_ns)},
                            {"ms", ms(sum.ns)}});
  }
  return json;
}

}  // namespace

const StepFigures& shown_step(const std::vector<StepFigures>& steps, std::int64_t step) {
  if (step == 0) {
    std::vector<const StepFigures*> by_wall;
    for (const StepFigures& one : steps) by_wall.push_back(&one);
    std::sort(by_wall.begin(), by_wall.end(), [](const StepFigures* a, const StepFigures* b) {
      return a->wall_ns() < b->wall_ns();
    });
    return *by_wall[by_wall.size() / 2];
  }
  for (const StepFigures& one : steps) {
    if (one.step == step) return one;
  }
  throw UsageError(fmt::format("--step {}: the trace has steps {} to {}", step, steps.front().step,
                               steps.back().step));
}

std::string report_text(const Timeline& timeline, const std::vector<StepFigures>& steps,
                        std::int64_t step) {
  const StepFigures& shown = shown_step(steps, step);
  std::string text =
      fmt::format("{} rank{}, {} step{}; {}\nclocks of two ranks agree within {:.1f} us\n\n",
                  timeline.ranks.size(), timeline.ranks.size() == 1 ? "" : "s", steps.size(),
                  steps.size() == 1 ? "" : "s", timeline.layout, timeline.clock_uncertainty_us());
  text += "steps: ms, means over ranks\n" + step_table(timeline, steps);
  text += "\nranks: ms a step, means over steps\n" + rank_table(steps);
  text += "\nwhat the critical paths consist of\n" + path_sums(timeline, steps);
  text += fmt::format("\ncritical path of step {}: begin, duration, share\n", shown.step);
  return text + path_text(timeline, shown);
}

std::string report_json(const Timeline& timeline, const std::vector<StepFigures>& steps) {
  nlohmann::ordered_json json;
  json["run"] = timeline.run;
  json["layout"] = timeline.layout;
  json["n_ranks"] = timeline.ranks.size();
  json["clock_uncertainty_us"] = timeline.clock_uncertainty_us();
  json["steps"] = nlohmann::ordered_json::array();
  for (const StepFigures& step : steps) json["steps"].push_back(json_of(timeline, step));
  return json.dump();
}

}  // namespace llm
