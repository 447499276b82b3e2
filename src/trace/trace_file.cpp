#include "src/trace/trace_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include <fmt/format.h>
#include "schedules/pipeline_file.h"
#include "src/base/error.h"
#include "src/base/file.h"

namespace llm {
namespace {

constexpr int readable_version = 1;
constexpr std::string_view begin_of_events = "\"traceEvents\":[\n";
constexpr std::string_view end_of_events = "\n]}\n";

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& why) {
  throw DataError(fmt::format("{}: {}", path.string(), why));
}

/// Where the events of a file's text are.
struct EventText {
  std::size_t begin;
  std::size_t end;
};

EventText events_of(const std::filesystem::path& path, std::string_view text) {
  const std::size_t begin = text.find(begin_of_events);
  if (!text.starts_with("{\"displayTimeUnit\"") || begin == std::string_view::npos) {
    refuse(path, "is not a trace of llm-train --trace");
  }
  if (!text.ends_with(end_of_events)) {
    refuse(path, fmt::format("is cut off after {} bytes: the run that wrote it did not end well",
                             text.size()));
  }
  return {begin + begin_of_events.size(), text.size() - end_of_events.size()};
}

/// What the file says of its run.
nlohmann::json facts_of(const std::filesystem::path& path, std::string_view text) {
  const EventText events = events_of(path, text);
  const std::string header(text.substr(0, events.begin));
  const nlohmann::json json = nlohmann::json::parse(header + "]}", nullptr, false);
  const auto facts = json.is_object() ? json.value("otherData", nlohmann::json::object())
                                      : nlohmann::json::object();
  if (!facts.is_object() || !facts.contains("llm_train")) {
    refuse(path, "says nothing of its run: another program, or an older llm-train, wrote it");
  }
  const nlohmann::json& own = facts["llm_train"];
  if (own.value("version", 0) != readable_version) {
    refuse(path, fmt::format("has version {}, and this llm-trace reads {}", own.value("version", 0),
                             readable_version));
  }
  return own;
}

SliceKind kind_of(const std::string& category) {
  if (category == "compute") return SliceKind::compute;
  if (category == "op") return SliceKind::op;
  if (category == "wait") return SliceKind::wait;
  if (category == "actor") return SliceKind::actor;
  if (category == "step") return SliceKind::step;
  return SliceKind::other;
}

std::int64_t nanoseconds(double microseconds) {
  return std::llround(microseconds * 1e3);
}

/// Takes events as they are parsed, without a tree of the file. An event's own members are at depth
/// 3 (file, list, event), those of its args at 4.
class EventReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  EventReader(Timeline& timeline, RankTimeline& rank) : timeline_(timeline), rank_(rank) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override {
    return number(static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return number(static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool binary(binary_t&) override { return true; }
  bool string(string_t& value) override {
    if (!in_events_) return true;
    if (depth_ == 4) {
      (key_ == "peer" ? peer_ : args_name_) = value;
    } else if (key_ == "ph") {
      phase_ = value;
    } else if (key_ == "cat") {
      category_ = value;
    } else if (key_ == "name") {
      name_ = value;
    } else if (key_ == "id") {
      std::from_chars(value.data(), value.data() + value.size(), id_, 16);
    }
    return true;
  }
  bool start_object(std::size_t) override {
    ++depth_;
    if (in_events_ && depth_ == 3) begin_event();
    return true;
  }
  bool end_object() override {
    if (in_events_ && depth_ == 3) end_event();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    ++depth_;
    if (depth_ == 2 && key_ == "traceEvents") in_events_ = true;
    return true;
  }
  bool end_array() override {
    if (depth_ == 2) in_events_ = false;
    --depth_;
    return true;
  }
  bool key(string_t& value) override {
    key_ = value;
    return true;
  }
  bool parse_error(std::size_t at, const std::string&,
                   const nlohmann::detail::exception&) override {
    error_at_ = at;
    return false;
  }
  std::size_t error_at() const { return error_at_; }

 private:
  bool number(double value) {
    if (!in_events_) return true;
    if (depth_ == 4) {
      if (key_ == "key") event_key_ = static_cast<std::int64_t>(value);
      if (key_ == "by") by_ = static_cast<int>(value);
    } else if (key_ == "tid") {
      row_ = static_cast<int>(value);
    } else if (key_ == "ts") {
      at_us_ = value;
    } else if (key_ == "dur") {
      duration_us_ = value;
    }
    return true;
  }
  void begin_event() {
    phase_.clear();
    category_.clear();
    peer_.clear();
    id_ = 0;
    by_ = -1;
    event_key_ = 0;
    duration_us_ = 0;
  }
  void end_event() {
    if (phase_ == "X") {
      rank_.slices.push_back({.row = row_,
                              .by = by_,
                              .kind = kind_of(category_),
                              .category = timeline_.intern(category_),
                              .name = timeline_.intern(name_),
                              .peer = timeline_.intern(peer_),
                              .key = event_key_,
                              .begin_ns = nanoseconds(at_us_),
                              .end_ns = nanoseconds(at_us_ + duration_us_)});
    } else if (phase_ == "s" || phase_ == "f") {
      rank_.flows.push_back({.id = id_,
                             .row = row_,
                             .begins = phase_ == "s",
                             .is_control = category_ == "control",
                             .at_ns = nanoseconds(at_us_)});
    } else if (phase_ == "M" && name_ == "thread_name") {
      rank_.rows.push_back({row_, args_name_});
    }
  }

  Timeline& timeline_;
  RankTimeline& rank_;
  int depth_ = 0;
  bool in_events_ = false;
  std::size_t error_at_ = 0;
  std::string key_;
  std::string phase_;
  std::string category_;
  std::string name_;
  std::string peer_;
  std::string args_name_;
  std::uint64_t id_ = 0;
  int row_ = 0;
  int by_ = -1;
  std::int64_t event_key_ = 0;
  double at_us_ = 0;
  double duration_us_ = 0;
};

void take_facts(Timeline& timeline, const nlohmann::json& facts) {
  timeline.run = facts.value("run", "");
  timeline.layout = facts.value("layout", "");
  timeline.run_dir = facts.value("run_dir", "");
  timeline.n_flushes = facts.value("n_flushes", 1);
  const nlohmann::json grid = facts.value("grid", nlohmann::json::object());
  timeline.grid = {.dp = grid.value("dp", 1), .pp = grid.value("pp", 1), .tp = grid.value("tp", 1)};
  const std::string pipeline = facts.value("pipeline", "");
  if (!pipeline.empty()) timeline.pipeline = read_pipeline("the trace's pipeline", pipeline);
}

void read_events(Timeline& timeline, const std::filesystem::path& path, const std::string& text) {
  RankTimeline& rank = timeline.ranks.emplace_back();
  EventReader reader(timeline, rank);
  if (!nlohmann::json::sax_parse(text, &reader)) {
    refuse(path, fmt::format("is no JSON at byte {}: damaged", reader.error_at()));
  }
  std::sort(rank.slices.begin(), rank.slices.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.begin_ns, -a.end_ns, a.row) < std::tuple(b.begin_ns, -b.end_ns, b.row);
  });
  std::sort(rank.flows.begin(), rank.flows.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.at_ns, a.id) < std::tuple(b.at_ns, b.id);
  });
}

}  // namespace

std::vector<std::filesystem::path> trace_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (std::size_t rank = 0;; ++rank) {
    const std::filesystem::path path = folder / fmt::format("rank-{}.json", rank);
    if (!std::filesystem::exists(path)) break;
    files.push_back(path);
  }
  if (files.empty()) {
    throw FileError(fmt::format(
        "{}: no rank-0.json is here; llm-train --trace {} writes one file for each rank",
        folder.string(), folder.string()));
  }
  return files;
}

Timeline read_timeline(const std::filesystem::path& folder) {
  const std::vector<std::filesystem::path> files = trace_files(folder);
  Timeline timeline;
  for (std::size_t rank = 0; rank < files.size(); ++rank) {
    const std::string text = read_file(files[rank]);
    const nlohmann::json facts = facts_of(files[rank], text);
    const std::string run = facts.value("run", "");
    if (rank == 0) take_facts(timeline, facts);
    if (run != timeline.run) {
      refuse(files[rank], fmt::format("is of run {}, and rank-0.json of run {}: remove what an "
                                      "older run left in the folder",
                                      run, timeline.run));
    }
    if (facts.value("rank", -1) != static_cast<int>(rank)) {
      refuse(files[rank], fmt::format("is of rank {}", facts.value("rank", -1)));
    }
    const auto n_ranks = facts.value("n_ranks", std::size_t{0});
    if (n_ranks != files.size() && rank + 1 == files.size()) {
      refuse(folder, fmt::format("has the traces of {} ranks, and the run had {}: copy those of "
                                 "all nodes into one folder",
                                 files.size(), n_ranks));
    }
    read_events(timeline, files[rank], text);
    timeline.ranks.back().clock_uncertainty_us = facts.value("clock_uncertainty_us", 0.0);
  }
  return timeline;
}

void merge_traces(const std::filesystem::path& folder, const std::filesystem::path& merged) {
  const std::vector<std::filesystem::path> files = trace_files(folder);
  write_file_atomically(merged, [&files](OutputFile& out) {
    out.append("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    for (std::size_t rank = 0; rank < files.size(); ++rank) {
      const std::string text = read_file(files[rank]);
      const EventText events = events_of(files[rank], text);
      out.append(
          fmt::format("{{\"ph\":\"M\",\"pid\":{0},\"name\":\"process_sort_index\","
                      "\"args\":{{\"sort_index\":{0}}}}},\n",
                      rank));
      out.append(std::string_view(text).substr(events.begin, events.end - events.begin));
      out.append(rank + 1 < files.size() ? ",\n" : "");
    }
    out.append(end_of_events);
  });
}

}  // namespace llm
