#include "src/comm/stall_table.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

namespace llm {
namespace {

// Lanes of a report at most: those with an open receive go first.
constexpr std::size_t most_lanes = 400;
constexpr std::string_view first_word = "stall table";
constexpr std::string_view last_line = "end of the stall table";

/// The rank that "rank 3" names, or -1.
int rank_named(std::string_view peer) {
  constexpr std::string_view prefix = "rank ";
  int rank = -1;
  if (!peer.starts_with(prefix)) return rank;
  const char* const end = peer.data() + peer.size();
  const auto result = std::from_chars(peer.data() + prefix.size(), end, rank);
  return result.ec == std::errc() && result.ptr == end ? rank : -1;
}

StallTable::Wait wait_of(const WaitLine& line, const KeyForms& forms) {
  StallTable::Wait wait{.actor = line.actor,
                        .background = line.background,
                        .kind = line.kind,
                        .what = std::to_string(line.key),
                        .peer = line.peer,
                        .peer_rank = rank_named(line.peer),
                        .seconds = line.seconds};
  const auto form = forms.find(line.kind);
  if (form == forms.end()) return wait;
  if (!form->second.parts.empty()) wait.what = form->second.text(line.key);
  if (form->second.rank_of) wait.peer_rank = form->second.rank_of(line.key);
  return wait;
}

StallTable::Lane lane_of(Transport::ByPeer at, const LaneCounts& counts) {
  StallTable::Lane lane{.peer = at.first,
                        .tag = at.second,
                        .sent = counts.sent,
                        .awaited = counts.awaited,
                        .arrived = counts.arrived,
                        .last_sent = counts.sent > 0 ? to_string(counts.last_sent) : "",
                        .next = ""};
  const std::int64_t n_open = counts.awaited - counts.arrived;
  if (n_open > 0) lane.next = to_string(*(counts.open.end() - n_open));
  return lane;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

std::vector<std::string> columns_of(std::string_view line) {
  std::vector<std::string> columns;
  while (true) {
    const std::size_t bar = line.find('|');
    columns.emplace_back(trimmed(line.substr(0, bar)));
    if (bar == std::string_view::npos) return columns;
    line.remove_prefix(bar + 1);
  }
}

/// The number in "3.2 s", "rank 1", "17": what stands before and after it is for people.
template <typename T>
T number_in(std::string_view text) {
  T value{};
  const std::size_t begin = text.find_first_of("-0123456789");
  if (begin != std::string_view::npos) {
    std::from_chars(text.data() + begin, text.data() + text.size(), value);
  }
  return value;
}

bool read_line(const std::vector<std::string>& c, StallTable& table) {
  if (c[0] == "wait" && c.size() == 8) {
    table.waits.push_back({.actor = c[1],
                           .background = c[2] == "service",
                           .kind = c[3],
                           .what = c[4],
                           .peer = c[5],
                           .peer_rank = number_in<int>(c[6]),
                           .seconds = number_in<double>(c[7])});
  } else if (c[0] == "tensors" && c.size() == 8) {
    table.lanes.push_back({.peer = number_in<int>(c[1]),
                           .tag = number_in<int>(c[2]),
                           .sent = number_in<std::int64_t>(c[3]),
                           .awaited = number_in<std::int64_t>(c[4]),
                           .arrived = number_in<std::int64_t>(c[5]),
                           .last_sent = c[6],
                           .next = c[7]});
  } else if (c[0] == "control" && c.size() == 6) {
    table.channels.push_back({.peer = number_in<int>(c[1]),
                              .channel = number_in<int>(c[2]),
                              .kind = c[3],
                              .sent = number_in<std::int64_t>(c[4]),
                              .arrived = number_in<std::int64_t>(c[5])});
  } else if (c[0] == first_word && c.size() == 8) {
    table.rank = number_in<int>(c[1]);
    table.process = number_in<int>(c[2]);
    table.host = c[3];
    table.idle_seconds = number_in<double>(c[4]);
    table.known_seconds = number_in<double>(c[5]);
    table.stuck_seconds = number_in<double>(c[6]);
    table.place = c[7];
  } else {
    return c[0].starts_with('#');
  }
  return true;
}

}  // namespace

std::string KeyForm::text(std::int64_t key) const {
  std::string text;
  for (std::size_t i = parts.size(); i-- > 0;) {
    const Part& part = parts[i];
    const std::int64_t value = part.n > 0 && i > 0 ? key % part.n : key;
    if (part.n > 0 && i > 0) key /= part.n;
    text = fmt::format("{} {}{}{}", part.name, value, text.empty() ? "" : ", ", text);
  }
  return text;
}

StallTable stall_table(const Transport& transport, const Loop& loop, const KeyForms& forms,
                       const std::function<std::string(int channel)>& kind_of_channel) {
  StallTable table;
  table.rank = transport.rank();
  table.process = getpid();
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) == 0) table.host = host.data();
  for (const WaitLine& line : loop.waits()) table.waits.push_back(wait_of(line, forms));
  for (const auto& [at, counts] : transport.lanes()) table.lanes.push_back(lane_of(at, counts));
  if (table.lanes.size() > most_lanes) {
    std::partition(table.lanes.begin(), table.lanes.end(),
                   [](const StallTable::Lane& lane) { return !lane.next.empty(); });
    table.lanes.resize(most_lanes);
  }
  for (const auto& [at, counts] : transport.channels()) {
    table.channels.push_back({.peer = at.first,
                              .channel = at.second,
                              .kind = kind_of_channel(at.second),
                              .sent = counts.sent,
                              .arrived = counts.arrived});
  }
  return table;
}

std::string to_text(const StallTable& table) {
  std::string text = fmt::format(
      "{} | rank {} | process {} | {} | moved {:.6f} s ago | any rank {:.6f} s ago | loop turned "
      "{:.6f} s ago | {}\n",
      first_word, table.rank, table.process, table.host, table.idle_seconds, table.known_seconds,
      table.stuck_seconds, table.place);
  text += fmt::format("#    | {:<26} | {:<7} | {:<24} | {:<28} | {:<24} | rank | for\n", "actor",
                      "", "waits for", "of", "from");
  for (const StallTable::Wait& wait : table.waits) {
    text += fmt::format("wait | {:<26} | {:<7} | {:<24} | {:<28} | {:<24} | {:>4} | {:.3f} s\n",
                        wait.actor, wait.background ? "service" : "", wait.kind, wait.what,
                        wait.peer, wait.peer_rank, wait.seconds);
  }
  text += "#       | rank | tag | sent | awaited | arrived | last sent | next awaited\n";
  for (const StallTable::Lane& lane : table.lanes) {
    text += fmt::format("tensors | {:>4} | {:>5} | {:>6} | {:>6} | {:>6} | {} | {}\n", lane.peer,
                        lane.tag, lane.sent, lane.awaited, lane.arrived, lane.last_sent, lane.next);
  }
  text += "#       | rank | channel | messages | sent | arrived\n";
  for (const StallTable::Channel& channel : table.channels) {
    text += fmt::format("control | {:>4} | {:>3} | {:<24} | {:>6} | {:>6}\n", channel.peer,
                        channel.channel, channel.kind, channel.sent, channel.arrived);
  }
  return text + std::string(last_line) + "\n";
}

std::optional<StallTable> parse_stall_table(std::string_view text) {
  std::optional<StallTable> table;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!table && line.starts_with(first_word)) table.emplace();
    if (!table) continue;
    if (line == last_line) return table;
    if (!read_line(columns_of(line), *table)) return std::nullopt;
  }
  return std::nullopt;
}

std::string to_text(const StallTable::Wait& wait) {
  std::string from = wait.peer;
  const std::string rank = fmt::format("rank {}", wait.peer_rank);
  if (wait.peer_rank >= 0 && from != rank) from += from.empty() ? rank : ", " + rank;
  return fmt::format("{} waits for {}({}){} since {:.1f} s", wait.actor, wait.kind, wait.what,
                     from.empty() ? "" : " from " + from, wait.seconds);
}

}  // namespace llm
