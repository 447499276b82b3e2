#include "src/trace/page_data.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <tuple>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/trace/activity.h"

namespace llm {
namespace {

using nlohmann::ordered_json;
static_assert(std::endian::native == std::endian::little, "columns are written as they lie");

// Of about 13 bytes each; a browser holds them well.
constexpr std::size_t n_slices_max = 4'000'000;
constexpr int no_lane = 255;

/// Colours of page.js, by index.
enum Category : std::uint8_t {
  forward,
  backward,
  backward_input,
  backward_weight,
  validation,
  update,
  sums,
  actor,
  wait,
  call,
  pair
};

Category category_of(const std::string& action) {
  if (action.find('|') != std::string::npos) return pair;
  if (action.starts_with("F")) return forward;
  if (action.starts_with("B")) return backward;
  if (action.starts_with("I")) return backward_input;
  if (action.starts_with("W")) return backward_weight;
  return validation;
}

template <typename T>
std::string base64(const std::vector<T>& column) {
  static constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto* bytes = reinterpret_cast<const unsigned char*>(column.data());
  const std::size_t n = column.size() * sizeof(T);
  std::string out;
  out.reserve((n + 2) / 3 * 4);
  for (std::size_t i = 0; i < n; i += 3) {
    const std::uint32_t three = static_cast<std::uint32_t>(bytes[i]) << 16 |
                                (i + 1 < n ? static_cast<std::uint32_t>(bytes[i + 1]) << 8 : 0) |
                                (i + 2 < n ? static_cast<std::uint32_t>(bytes[i + 2]) : 0);
    for (std::size_t d = 0; d < 4; ++d) {
      out += d <= n - i ? digits[three >> (18 - 6 * d) & 63] : '=';
    }
  }
  return out;
}

/// One row of the page.
struct Lane {
  std::string name;
  std::string kind;  // action, plan, op, actor
  std::vector<std::uint32_t> begin = {};
  std::vector<std::uint32_t> length = {};
  std::vector<std::uint16_t> names = {};
  std::vector<std::uint8_t> categories = {};
  std::vector<std::int32_t> keys = {};
};

class PageData {
 public:
  PageData(const Timeline& timeline, const std::vector<StepFigures>& steps)
      : timeline_(timeline),
        steps_(steps),
        names_(timeline.names),
        begin_ns_(steps.front().begin_ns),
        end_ns_(steps.back().end_ns) {
    for (const StepFigures& step : steps) {
      for (const RankFigures& rank : step.ranks) {
        begin_ns_ = std::min(begin_ns_, step.end_ns - rank.wall_ns);
      }
    }
    // 2^32 ticks hold all of it.
    tick_ns_ = std::max<std::int64_t>(1, (end_ns_ - begin_ns_) / 4'000'000'000 + 1);
  }

  ordered_json json() {
    check_size();
    ordered_json json;
    json["version"] = 1;
    json["run"] = timeline_.run;
    json["layout"] = timeline_.layout;
    json["clock_us"] = timeline_.clock_uncertainty_us();
    json["tick_ns"] = tick_ns_;
    json["end"] = ticks(end_ns_);
    json["ranks"] = ordered_json::array();
    for (std::size_t rank = 0; rank < timeline_.ranks.size(); ++rank) add_rank(json, rank);
    json["messages"] = messages();
    json["steps"] = ordered_json::array();
    for (const StepFigures& step : steps_) json["steps"].push_back(step_json(step));
    json["names"] = names_;
    return json;
  }

 private:
  void check_size() const {
    std::size_t n = 0;
    for (const RankTimeline& rank : timeline_.ranks) {
      n += static_cast<std::size_t>(
          std::count_if(rank.slices.begin(), rank.slices.end(),
                        [this](const TimelineSlice& s) { return is_shown(s.begin_ns, s.end_ns); }));
    }
    if (n > n_slices_max) {
      throw DataError(
          fmt::format("--html: {} slices are more than the {} that a page shows well; choose "
                      "fewer steps with --first and --last",
                      n, n_slices_max));
    }
  }

  bool is_shown(std::int64_t begin_ns, std::int64_t end_ns) const {
    return end_ns > begin_ns_ && begin_ns < end_ns_;
  }
  std::uint32_t ticks(std::int64_t at_ns) const {
    return static_cast<std::uint32_t>((std::clamp(at_ns, begin_ns_, end_ns_) - begin_ns_) /
                                      tick_ns_);
  }
  std::uint16_t intern(const std::string& name) {
    const auto [at, is_new] = added_.try_emplace(name, static_cast<std::uint16_t>(names_.size()));
    if (is_new) names_.push_back(name);
    return at->second;
  }

  void put(Lane& lane, const TimelineSlice& slice, Category category) const {
    const std::uint32_t begin = ticks(slice.begin_ns);
    lane.begin.push_back(begin);
    lane.length.push_back(std::max<std::uint32_t>(1, ticks(slice.end_ns) - begin));
    lane.names.push_back(slice.name);
    lane.categories.push_back(category);
    lane.keys.push_back(static_cast<std::int32_t>(slice.key));
  }

  /// An op's colour is its action's; a pair has a row for each side.
  Category category_of_op(const std::vector<const TimelineSlice*>& actions, std::size_t& next,
                          const TimelineSlice& op, const std::string& row) const {
    if (row.find("of a pair") != std::string::npos) {
      return row.find("forward") != std::string::npos ? forward : backward;
    }
    while (next < actions.size() && actions[next]->end_ns <= op.begin_ns) ++next;
    const bool is_in = next < actions.size() && actions[next]->begin_ns <= op.begin_ns;
    return is_in ? category_of(timeline_.name(actions[next]->name)) : update;
  }

  void add_rank(ordered_json& json, std::size_t index) {
    const RankTimeline& rank = timeline_.ranks[index];
    std::vector<Lane> lanes = {{.name = "stage", .kind = "action"}};
    add_plan(lanes, static_cast<int>(index));
    std::map<std::pair<int, bool>, std::size_t> lane_of;  // row, and whether it is of calls
    for (const TimelineRow& row : rank.rows) {            // queues above actors
      if (row.name.find(" queue") == std::string::npos) continue;
      lane_of[{row.id, false}] = lanes.size();
      lanes.push_back({.name = row.name, .kind = "op"});
    }
    std::vector<const TimelineSlice*> actions;
    for (const TimelineSlice& slice : rank.slices) {
      if (slice.kind == SliceKind::compute) actions.push_back(&slice);
    }
    std::size_t next = 0;
    for (const TimelineSlice& slice : rank.slices) {
      if (!is_shown(slice.begin_ns, slice.end_ns) || slice.kind == SliceKind::step) continue;
      if (slice.kind == SliceKind::compute) {
        put(lanes[0], slice, category_of(timeline_.name(slice.name)));
        row_lanes_[{index, slice.row}] = 0;
        continue;
      }
      const bool is_call = slice.kind == SliceKind::other;
      const auto [found, is_new] = lane_of.try_emplace({slice.row, is_call}, lanes.size());
      const std::string& row = rank.row_name(slice.row);
      if (is_new) {
        lanes.push_back({.name = is_call ? row + " calls" : row, .kind = "actor"});
        row_lanes_.try_emplace({index, slice.row}, found->second);
      }
      Category category = is_call ? call : slice.kind == SliceKind::wait ? wait : actor;
      if (slice.kind == SliceKind::op) {
        category =
            row.starts_with("compute queue") ? category_of_op(actions, next, slice, row) : sums;
      }
      put(lanes[found->second], slice, category);
    }
    ordered_json all = ordered_json::array();
    for (const Lane& lane : lanes) all.push_back(lane_json(lane));
    json["ranks"].push_back({{"lanes", std::move(all)}});
  }

  /// The planned actions of all steps, in a lane of their own.
  void add_plan(std::vector<Lane>& lanes, int rank) {
    Lane plan{.name = "planned", .kind = "plan"};
    for (const StepFigures& step : steps_) {
      for (const FlushFigures& flush : step.flushes) {
        for (const FlushFigures::Planned& planned : flush.planned) {
          if (planned.rank != rank) continue;
          TimelineSlice slice;
          slice.name = intern(planned.name);
          slice.key = step.step;
          slice.begin_ns = planned.begin_ns;
          slice.end_ns = planned.end_ns;
          put(plan, slice, category_of(planned.name));
        }
      }
    }
    if (!plan.begin.empty()) lanes.push_back(std::move(plan));
  }

  static ordered_json lane_json(const Lane& lane) {
    return {{"name", lane.name},
            {"kind", lane.kind},
            {"n", lane.begin.size()},
            {"begin", base64(lane.begin)},
            {"length", base64(lane.length)},
            {"names", base64(lane.names)},
            {"categories", base64(lane.categories)},
            {"keys", base64(lane.keys)}};
  }

  std::uint8_t lane_of_row(std::size_t rank, int row) const {
    const auto found = row_lanes_.find({rank, row});
    const bool fits = found != row_lanes_.end() && found->second < no_lane;
    return static_cast<std::uint8_t>(fits ? found->second : no_lane);
  }

  ordered_json messages() const {
    struct Arrow {
      std::uint32_t begin, end;
      std::uint16_t from, to;
      std::uint8_t from_lane, to_lane;
    };
    const Messages sent = messages_of(timeline_);
    std::vector<Arrow> arrows;
    for (std::size_t rank = 0; rank < timeline_.ranks.size(); ++rank) {
      for (const TimelineFlow& flow : timeline_.ranks[rank].flows) {
        const auto found = sent.find(flow.id);
        if (flow.begins || found == sent.end() || !is_shown(found->second.at_ns, flow.at_ns)) {
          continue;
        }
        const Sent& from = found->second;
        arrows.push_back({ticks(from.at_ns), std::max(ticks(from.at_ns), ticks(flow.at_ns)),
                          static_cast<std::uint16_t>(from.rank), static_cast<std::uint16_t>(rank),
                          lane_of_row(from.rank, from.row), lane_of_row(rank, flow.row)});
      }
    }
    std::sort(arrows.begin(), arrows.end(), [](const Arrow& a, const Arrow& b) {
      return std::tuple(a.begin, a.end, a.from, a.to) < std::tuple(b.begin, b.end, b.from, b.to);
    });
    const auto column = [&arrows](auto member) {
      std::vector<std::decay_t<decltype(arrows.front().*member)>> values;
      for (const Arrow& arrow : arrows) values.push_back(arrow.*member);
      return base64(values);
    };
    return {{"n", arrows.size()},
            {"begin", column(&Arrow::begin)},
            {"end", column(&Arrow::end)},
            {"from", column(&Arrow::from)},
            {"to", column(&Arrow::to)},
            {"from_lane", column(&Arrow::from_lane)},
            {"to_lane", column(&Arrow::to_lane)}};
  }

  ordered_json step_json(const StepFigures& step) const {
    const auto ms = [](std::int64_t ns) {
      return std::round(static_cast<double>(ns) * 1e-3) / 1e3;
    };
    ordered_json json{{"step", step.step},         {"begin", ticks(step.begin_ns)},
                      {"end", ticks(step.end_ns)}, {"ms", ms(step.wall_ns())},
                      {"slowest", step.slowest},   {"beyond_ms", ms(step.beyond_median_ns)}};
    if (!step.flushes.empty()) {
      json["bubble"] = step.bubble();
      json["planned_bubble"] = step.planned_bubble();
    }
    json["ranks"] = ordered_json::array();
    for (const RankFigures& rank : step.ranks) {
      json["ranks"].push_back({{"compute", ms(rank.model_ns)},
                               {"sums", ms(rank.sums_ns)},
                               {"actors", ms(rank.actors_ns)},
                               {"exposed", ms(rank.exposed_all_ns())},
                               {"waits", ms(rank.own_waits_ns)},
                               {"other", ms(rank.other_ns)},
                               {"in_flight", ms(rank.in_flight_ns)},
                               {"overlapped", ms(rank.overlapped_ns)}});
      for (const auto& [kind, ns] : rank.exposed_ns) {
        json["ranks"].back()["kinds"][kind] = ms(ns);
      }
    }
    json["path"] = ordered_json::array();
    for (const PathPart& part : step.path) {
      json["path"].push_back({static_cast<int>(part.kind), part.rank, part.from_rank,
                              timeline_.ranks[part.rank].row_name(part.row), part.name,
                              ticks(part.begin_ns), ticks(part.end_ns)});
    }
    return json;
  }

  const Timeline& timeline_;
  const std::vector<StepFigures>& steps_;
  std::vector<std::string> names_;
  std::map<std::string, std::uint16_t> added_;
  std::map<std::pair<std::size_t, int>, std::size_t> row_lanes_;
  std::int64_t begin_ns_;
  std::int64_t end_ns_;
  std::int64_t tick_ns_ = 1;
};

}  // namespace

ordered_json page_data(const Timeline& timeline, const std::vector<StepFigures>& steps) {
  return PageData(timeline, steps).json();
}

}  // namespace llm
