#include "schedules/pipeline_file.h"

#include <algorithm>
#include <sstream>

#include "schedules/simulation.h"
#include "src/base/error.h"

namespace llm {
namespace {

using enum Action::Kind;

/// Walks a rank's schedule and says the first rule that it breaks.
class RankCheck {
 public:
  RankCheck(const Pipeline& pipeline, int rank)
      : pipeline_(pipeline), schedule_(pipeline.schedules[static_cast<std::size_t>(rank)]) {
    const auto n = static_cast<std::size_t>(pipeline.n_chunks);
    next_forward_.assign(n, 0);
    next_backward_.assign(n, 0);
    next_weight_.assign(n, 0);
  }

  /// Empty where every rule holds.
  std::string fault() {
    for (std::size_t i = 0; i < schedule_.size(); ++i) {
      if (std::string text = fault_of(schedule_[i]); !text.empty()) return text;
      if (std::string text = fault_of_pair(i); !text.empty()) return text;
    }
    for (int chunk = 0; chunk < pipeline_.n_chunks; ++chunk) {
      if (std::string text = missing(chunk); !text.empty()) return text;
    }
    return "";
  }

 private:
  int& next(std::vector<int>& of_chunks, int chunk) {
    return of_chunks[static_cast<std::size_t>(chunk)];
  }

  std::string fault_of(const Action& action) {
    const auto [kind, m, chunk, is_paired] = action;
    if (m < 0 || m >= pipeline_.n_microbatches || chunk < 0 || chunk >= pipeline_.n_chunks) {
      return to_string(action) + " is none of the " + std::to_string(pipeline_.n_microbatches) +
             " microbatches of " + std::to_string(pipeline_.n_chunks) + " chunks";
    }
    if (kind == forward) {
      return turn(action, forward, next_forward_,
                  "the forwards of a chunk run in microbatch order");
    }
    if (next(next_forward_, chunk) <= m) {
      return to_string(action) + " stands before " + to_string(Action{forward, m, chunk}) +
             "; a backward follows its forward";
    }
    if (kind == backward_weight && next(next_backward_, chunk) <= m) {
      return to_string(action) + " stands before " + to_string(Action{backward_input, m, chunk}) +
             "; a weight half follows its input half";
    }
    std::string text;
    if (kind != backward_weight) {
      text = turn(action, kind, next_backward_, "the backwards of a chunk run in microbatch order");
    }
    if (kind != backward_input && text.empty()) {
      text = turn(action, backward_weight, next_weight_,
                  "the weight gradients of a chunk add up in microbatch order");
    }
    return text;
  }

  /// Of schedule_[i] and the next one, where they are a pair.
  std::string fault_of_pair(std::size_t i) {
    if (!schedule_[i].beside_next) return "";
    Schedule pair{schedule_[i]};
    if (i + 1 < schedule_.size()) pair.push_back(schedule_[i + 1]);
    const Action& first = pair.front();
    const Action& second = pair.back();
    const bool is_other = first.microbatch != second.microbatch || first.chunk != second.chunk;
    if (first.kind == forward && second.kind != forward && !second.beside_next && is_other) {
      return "";
    }
    return to_string(pair) +
           " is no pair; write a forward, and after it the backward, or a half of one, of another "
           "microbatch or chunk: F1|B0";
  }

  /// Takes `action` as the next of its row, where rows hold one action a microbatch.
  std::string turn(const Action& action, Action::Kind row, std::vector<int>& of_chunks,
                   const char* rule) {
    int& expected = next(of_chunks, action.chunk);
    if (action.microbatch < expected) {
      return to_string(action) + " stands twice; an action stands once";
    }
    if (action.microbatch > expected) {
      return to_string(action) + " stands before " +
             to_string(Action{row, expected, action.chunk}) + "; " + rule;
    }
    ++expected;
    return "";
  }

  std::string missing(int chunk) {
    const auto text = [&](Action::Kind kind, int m, const char* what) {
      return to_string(Action{kind, m, chunk}) + " is missing; " + what;
    };
    const int n = pipeline_.n_microbatches;
    if (const int m = next(next_forward_, chunk); m < n) {
      return text(forward, m, "every chunk has a forward of each microbatch");
    }
    if (const int m = next(next_backward_, chunk); m < n) {
      return text(backward, m, "every forward has a backward, or both its halves I and W");
    }
    if (const int m = next(next_weight_, chunk); m < n) {
      return text(backward_weight, m, "every input half has a weight half");
    }
    return "";
  }

  const Pipeline& pipeline_;
  const Schedule& schedule_;
  std::vector<int> next_forward_;  // by chunk, the microbatch whose turn it is
  std::vector<int> next_backward_;
  std::vector<int> next_weight_;
};

std::string fault_of_rank(const Pipeline& pipeline, int rank) {
  const std::string fault = RankCheck(pipeline, rank).fault();
  return fault.empty() ? "" : "rank " + std::to_string(rank) + ": " + fault;
}

std::string fault_of_all(const Pipeline& pipeline) {
  const Simulation simulation = simulate(pipeline);
  return simulation.finished() ? "" : "the ranks wait for ever: " + simulation.deadlock;
}

/// One line of a file without its comment.
struct Line {
  int number;
  std::string text;
};

std::vector<Line> lines_of(const std::string& text) {
  std::vector<Line> lines;
  std::istringstream in(text);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    line.resize(std::min(line.find('#'), line.size()));
    if (line.find_first_not_of(" \t\r") != std::string::npos) lines.push_back({number, line});
  }
  return lines;
}

std::string shown(const std::string& word) {
  std::string out;
  for (const char c : word.substr(0, 20)) out += c >= 0x20 && c < 0x7F ? c : '?';
  return word.size() > 20 ? out + "..." : out;
}

/// Digits from `at` on, which moves behind them; -1: none, or more than a million.
int number_at(const std::string& word, std::size_t& at) {
  int number = -1;
  for (; at < word.size() && word[at] >= '0' && word[at] <= '9'; ++at) {
    number = std::max(number, 0) * 10 + (word[at] - '0');
    if (number > 1'000'000) return -1;
  }
  return number;
}

/// The action that stands in `word` from `begin` to `end`.
Action action_of(const std::string& whole, std::size_t begin, std::size_t end,
                 const std::string& place) {
  const std::string word = whole.substr(begin, end - begin);
  const std::string kinds = "FBIW";
  const std::size_t kind = word.empty() ? std::string::npos : kinds.find(word[0]);
  std::size_t at = 1;
  const int microbatch = number_at(word, at);
  int chunk = 0;
  if (at < word.size() && word[at] == '.') chunk = number_at(word, ++at);
  if (kind == std::string::npos || microbatch < 0 || chunk < 0 || at != word.size()) {
    throw ConfigError(place + shown(whole) +
                      " is no action; write F, B, I or W with a microbatch, and a chunk where a "
                      "rank has several: F0, B3.1, or as a pair F1|B0");
  }
  return {static_cast<Action::Kind>(kind), microbatch, chunk};
}

Placement placement_of(const std::string& word, const std::string& place) {
  if (word == "looped") return Placement::looped;
  if (word == "zig_zag") return Placement::zig_zag;
  throw ConfigError(place + "placement: " + shown(word) + " is not one of looped, zig_zag");
}

/// Takes a rank's line, and makes room for the chunks and microbatches in it.
void add_rank(Pipeline& pipeline, std::istringstream& words, const std::string& place) {
  Schedule& schedule = pipeline.schedules.emplace_back();
  for (std::string word; words >> word;) {
    for (std::size_t begin = 0; begin <= word.size();) {
      const std::size_t end = std::min(word.find('|', begin), word.size());
      Action action = action_of(word, begin, end, place);
      action.beside_next = end < word.size();
      pipeline.n_chunks = std::max(pipeline.n_chunks, action.chunk + 1);
      pipeline.n_microbatches = std::max(pipeline.n_microbatches, action.microbatch + 1);
      schedule.push_back(action);
      begin = end + 1;
    }
  }
  ++pipeline.n_ranks;
}

}  // namespace

void check(const Pipeline& pipeline) {
  for (int rank = 0; rank < pipeline.n_ranks; ++rank) {
    const std::string fault = fault_of_rank(pipeline, rank);
    if (!fault.empty()) throw ConfigError(fault);
  }
  const std::string fault = fault_of_all(pipeline);
  if (!fault.empty()) throw ConfigError(fault);
}

Pipeline read_pipeline(const std::string& name, const std::string& text) {
  Pipeline pipeline;
  pipeline.n_ranks = 0;
  std::vector<int> line_of_rank;
  const auto place = [&name](int line) { return name + ":" + std::to_string(line) + ": "; };
  for (const Line& line : lines_of(text)) {
    std::istringstream words(line.text);
    std::string word;
    words >> word;
    if (word == "placement:" && pipeline.schedules.empty()) {
      word.clear();
      words >> word;
      pipeline.placement = placement_of(word, place(line.number));
      continue;
    }
    line_of_rank.push_back(line.number);
    std::istringstream all_words(line.text);
    add_rank(pipeline, all_words, place(line.number));
  }
  if (pipeline.schedules.empty()) {
    throw ConfigError(name + ": no schedule; write one line a rank, as F0 B0 F1 B1");
  }
  if (pipeline.placement == Placement::zig_zag && pipeline.n_chunks != 2) {
    throw ConfigError(name + ": placement: zig_zag has two chunks a rank, but there are " +
                      std::to_string(pipeline.n_chunks));
  }
  for (int rank = 0; rank < pipeline.n_ranks; ++rank) {
    const std::string fault = fault_of_rank(pipeline, rank);
    if (fault.empty()) continue;
    throw ConfigError(place(line_of_rank[static_cast<std::size_t>(rank)]) + fault);
  }
  const std::string fault = fault_of_all(pipeline);
  if (!fault.empty()) throw ConfigError(name + ": " + fault);
  return pipeline;
}

std::string pipeline_text(const Pipeline& pipeline) {
  std::string text = pipeline.placement == Placement::zig_zag ? "placement: zig_zag\n" : "";
  for (const Schedule& schedule : pipeline.schedules) text += to_string(schedule) + "\n";
  return text;
}

}  // namespace llm
