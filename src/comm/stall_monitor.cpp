#include "src/comm/stall_monitor.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include <fmt/format.h>
#include "src/base/error.h"

namespace llm {
namespace {

// Questions within a timeout: how late a rank knows that another one moves.
constexpr int n_questions = 8;
// Ranks that all ask each other: beyond, n * n tables are too many.
constexpr int most_ranks_that_ask_all = 64;
// A rank may answer late: to one of so many.
constexpr std::size_t n_questions_kept = 32;
// How exactly a table has its times.
constexpr double printed_seconds = 1e-6;
// Rank 0 tells first: the others give it this long.
constexpr std::int64_t head_start_ns = 700'000'000;
// For those that answered to write and print their tables; who is done sooner says so.
constexpr std::int64_t saying_ns = 1'500'000'000;
constexpr std::int64_t most_copy_interval_ns = 1'000'000'000;
// Between looks at the processes of ranks that do not answer.
constexpr std::int64_t look_interval_ns = 250'000'000;
// A rank that got less of its cores than another takes longer to find that nothing moves.
constexpr double most_lag_seconds = 10;
// What a disk has for a file of a few kilobytes.
constexpr double disk_seconds = 0.5;

// The key of a message: what it is, whether it is a table's last part, which question it is of.
constexpr std::int64_t last_bit = 1 << 8;
constexpr int number_shift = 16;

std::int64_t ns_of(double seconds) {
  return static_cast<std::int64_t>(seconds * 1e9);
}

std::string text_of(std::span<const std::byte> payload) {
  return std::string(reinterpret_cast<const char*>(payload.data()), payload.size());
}

}  // namespace

std::vector<int> ranks_to_ask(int rank, int n_ranks) {
  std::vector<int> ranks;
  for (int other = 0; other < n_ranks; ++other) {
    const bool is_asked = n_ranks <= most_ranks_that_ask_all || rank == 0 || other == 0;
    if (other != rank && is_asked) ranks.push_back(other);
  }
  return ranks;
}

StallMonitor::StallMonitor(Transport& transport, Options options)
    : transport_(transport),
      loop_(transport.loop()),
      options_(std::move(options)),
      asked_(ranks_to_ask(transport.rank(), transport.n_ranks())),
      done_(loop_, WaitName(end_of_run), static_cast<std::size_t>(transport.n_ranks())),
      heard_progress_ns_(loop_.idle_clock_ns()),
      begin_seconds_(time(nullptr)) {
  transport_.on_stall_message(
      [this](int peer, const ControlHeader& header, std::span<const std::byte> payload) {
        handle(peer, header, payload);
      });
  loop_.watch(this);
  copy_ = table_now();
  watchdog_.emplace(loop_, options_.timeout_seconds, [this](double seconds) { on_stuck(seconds); });
}

StallMonitor::~StallMonitor() {
  close();
}

void StallMonitor::close() {
  watchdog_.reset();
  loop_.watch(nullptr);
  transport_.on_stall_message([](int, const ControlHeader&, std::span<const std::byte>) {});
}

Task<> StallMonitor::end_together() {
  const int n = transport_.n_ranks();
  const int self = transport_.rank();
  if (self != 0) send(0, Message::done, 0, "");
  for (int rank = 0; rank < (self == 0 ? n : 1); ++rank) {
    if (rank == self) continue;
    co_await done_.take(rank);
  }
  for (int rank = 1; rank < n && self == 0; ++rank) send(rank, Message::done, 0, "");
}

void StallMonitor::send(int peer, Message message, std::int64_t number, std::string_view payload) {
  const std::int64_t key = number << number_shift | static_cast<std::int64_t>(message);
  ControlHeader header(stall_channel, 0, key);
  while (payload.size() > max_control_bytes) {
    const std::string_view part = payload.substr(0, max_control_bytes);
    transport_.send_control(peer, header, std::as_bytes(std::span(part)));
    payload.remove_prefix(part.size());
  }
  header.key |= last_bit;
  transport_.send_control(peer, header, std::as_bytes(std::span(payload)));
}

void StallMonitor::handle(int peer, const ControlHeader& header,
                          std::span<const std::byte> payload) {
  const std::int64_t number = header.key >> number_shift;
  switch (static_cast<Message>(header.key & (last_bit - 1))) {
    case Message::ask:
      return answer(peer, number);
    case Message::part_of_table:
      return keep_part(peer, number, text_of(payload), (header.key & last_bit) != 0);
    case Message::stalled:
      say_own_table();
      return send(peer, Message::said, 0, "");
    case Message::said:
      have_said_table_.insert(peer);
      return;
    case Message::done:
      return done_.put(peer, true);
  }
  throw CommError(fmt::format("a message about stalls from rank {} is damaged", peer));
}

void StallMonitor::answer(int peer, std::int64_t number) {
  send(peer, Message::part_of_table, number, to_text(table_now()));
}

void StallMonitor::keep_part(int peer, std::int64_t number, std::string_view part, bool is_last) {
  std::string& text = parts_[peer];
  text += part;
  if (!is_last) return;
  const std::optional<StallTable> table = parse_stall_table(std::exchange(text, {}));
  if (!table) throw CommError(fmt::format("a stall table from rank {} cannot be read", peer));
  // At the earliest: the answer was on its way for a while, and ranks that hear from each other
  // must not take that for a move.
  const auto asked_at = asked_at_ns_.find(number);
  if (asked_at == asked_at_ns_.end()) return;
  const std::int64_t moved_ns = asked_at->second - ns_of(table->known_seconds + printed_seconds);
  heard_progress_ns_ = std::max(heard_progress_ns_, moved_ns);
  if (number == number_) answers_.insert_or_assign(peer, *table);
}

double StallMonitor::seconds_since(std::int64_t at_ns) const {
  return static_cast<double>(loop_.idle_clock_ns() - at_ns) * 1e-9;
}

std::int64_t StallMonitor::latest_ns() const {
  return std::max(loop_.last_progress_ns(), heard_progress_ns_);
}

StallTable StallMonitor::table_now() const {
  StallTable table = stall_table(transport_, loop_, options_.forms, options_.kind_of_channel);
  table.idle_seconds = seconds_since(loop_.last_progress_ns());
  table.known_seconds = seconds_since(latest_ns());
  return table;
}

void StallMonitor::ask() {
  ++number_;
  answers_.clear();
  asked_at_ns_.emplace(number_, loop_.idle_clock_ns());
  if (asked_at_ns_.size() > n_questions_kept) asked_at_ns_.erase(asked_at_ns_.begin());
  for (const int rank : asked_) send(rank, Message::ask, number_, "");
  next_ask_ns_ = loop_.idle_clock_ns() + ns_of(options_.timeout_seconds) / n_questions;
}

void StallMonitor::idle() {
  const std::int64_t now = loop_.idle_clock_ns();
  const std::int64_t timeout_ns = ns_of(options_.timeout_seconds);
  if (now - latest_ns() < timeout_ns) {
    // Not where another rank ends the run: a stopped process that is woken to be ended moves too.
    if (std::exchange(state_, State::waiting) == State::confirming && !has_said_table_) {
      std::error_code ignored;
      std::filesystem::remove(path_of(transport_.rank()), ignored);
    }
    if (now - loop_.last_progress_ns() >= timeout_ns / n_questions && now >= next_ask_ns_) ask();
    return;
  }
  if (state_ == State::waiting) {
    // What was heard last may be old: whoever moves says so now.
    state_ = State::confirming;
    // Now, so that ranks that do not hear this one find out that it runs.
    write_file(table_now(), "");
    ask();
    deadline_ns_ = now + ns_of(options_.answer_seconds);
    next_look_ns_ = now + 2 * look_interval_ns;
  }
  if (state_ == State::confirming) confirm();
  const bool have_all_said = have_said_table_.size() >= answers_.size();
  if (state_ == State::ending && now >= deadline_ns_ &&
      (have_all_said || now >= deadline_ns_ + saying_ns)) {
    end();
  }
}

void StallMonitor::confirm() {
  const std::int64_t now = loop_.idle_clock_ns();
  if (answers_.size() < asked_.size() && now < deadline_ns_ && !all_silent_are_known()) return;
  state_ = State::ending;
  have_said_table_.clear();
  say_own_table();
  for (const int rank : asked_) send(rank, Message::stalled, 0, "");
  const bool is_first = transport_.rank() == 0 || !answers_.contains(0);
  deadline_ns_ = is_first ? now : now + head_start_ns;
}

/// Whether it is known of all that do not answer why: their process has gone or is stopped, or
/// their watchdog has written that their loop does not turn. Looked at now and then.
bool StallMonitor::all_silent_are_known() {
  const std::int64_t now = loop_.idle_clock_ns();
  if (now < next_look_ns_) return false;
  next_look_ns_ = now + look_interval_ns;
  return std::all_of(asked_.begin(), asked_.end(), [this](int rank) {
    if (answers_.contains(rank) || !options_.process_state(rank).empty()) return true;
    const std::optional<StallTable> table = parse_stall_table(read_file_of(rank));
    return table && table->stuck_seconds > 0;
  });
}

void StallMonitor::say_own_table() {
  if (std::exchange(has_said_table_, true)) return;
  const StallTable table = table_now();
  write_file(table, "");
  std::string text = fmt::format("rank {}: nothing has moved here for {:.1f} s; its actors:\n",
                                 table.rank, table.idle_seconds);
  for (const StallTable::Wait& wait : table.waits) text += "  " + to_text(wait) + "\n";
  options_.print(text);
}

std::vector<RankReport> StallMonitor::reports() const {
  std::vector<RankReport> reports;
  reports.push_back({transport_.rank(), table_now(), ""});
  for (const int rank : asked_) {
    RankReport& report = reports.emplace_back();
    report.rank = rank;
    if (const auto answer = answers_.find(rank); answer != answers_.end()) {
      report.table = answer->second;
      continue;
    }
    report.process_state = options_.process_state(rank);
    report.table = parse_stall_table(read_file_of(rank));
    report.is_from_file = report.table && report.table->stuck_seconds <= 0;
  }
  std::sort(reports.begin(), reports.end(),
            [](const RankReport& a, const RankReport& b) { return a.rank < b.rank; });
  return reports;
}

void StallMonitor::end() {
  const Diagnosis found = diagnose(reports());
  const std::string line = fmt::format(
      "stalled: nothing has moved on any rank for {:.1f} s: {}: {}{}", seconds_since(latest_ns()),
      name_of(found.kind), found.text,
      options_.folder.empty()
          ? ""
          : fmt::format("; the ranks' tables are {}/stall-rank-*.txt", options_.folder));
  write_file(table_now(), line);
  options_.fail(line);
  throw StallError(line);
}

std::string StallMonitor::path_of(int rank) const {
  return fmt::format("{}/stall-rank-{}.txt", options_.folder, rank);
}

/// Empty where there is none of this run, or the disk does not answer.
std::string StallMonitor::read_file_of(int rank) const {
  if (options_.folder.empty()) return "";
  const auto text = std::make_shared<std::string>();
  const auto read = [text, path = path_of(rank), begin = begin_seconds_] {
    struct stat status{};
    if (::stat(path.c_str(), &status) != 0 || status.st_mtime < begin) return;
    std::ifstream file(path);
    text->assign(std::istreambuf_iterator<char>(file), {});
  };
  return run_at_most(disk_seconds, read) ? *text : "";
}

/// A disk that is gone must not keep the rank from ending, so nothing forces bytes to it and nobody
/// waits for it; an error is no more than a line.
void StallMonitor::write_file(const StallTable& table, const std::string& diagnosis) const {
  if (options_.folder.empty()) return;
  const auto is_written = std::make_shared<bool>(false);
  const auto write = [is_written, folder = options_.folder, path = path_of(table.rank),
                      text = (diagnosis.empty() ? "" : diagnosis + "\n\n") + to_text(table)] {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    std::ofstream(path + ".part") << text;
    std::filesystem::rename(path + ".part", path, error);
    *is_written = !error;
  };
  if (run_at_most(disk_seconds, write) && *is_written) return;
  options_.print(fmt::format("rank {}: cannot write {}\n", table.rank, path_of(table.rank)));
}

void StallMonitor::turned() {
  const std::int64_t now = loop_.turn_ns();
  const std::int64_t interval =
      std::min(ns_of(options_.timeout_seconds) / n_questions, most_copy_interval_ns);
  if (now - last_copy_ns_ < interval) return;
  last_copy_ns_ = now;
  StallTable table = table_now();
  const std::lock_guard lock(copy_mutex_);
  copy_ = std::move(table);
}

/// On the watchdog's thread: the loop's is inside a call that has not returned.
void StallMonitor::on_stuck(double seconds) {
  StallTable table;
  {
    const std::lock_guard lock(copy_mutex_);
    table = copy_;
  }
  const std::uint64_t n_turns = loop_.n_turns();
  table.stuck_seconds = seconds;
  table.idle_seconds += seconds;
  table.known_seconds += seconds;
  table.place = loop_.place();
  write_file(table, "");
  std::string text = fmt::format(
      "rank {}: its loop has not turned for {:.1f} s: it is {}; its "
      "actors before that:\n",
      table.rank, seconds, table.place);
  for (const StallTable::Wait& wait : table.waits) text += "  " + to_text(wait) + "\n";
  options_.print(text);
  // The others find the file, tell what they make of it, and end this rank too.
  const double lag_seconds = std::min(1 + options_.timeout_seconds, most_lag_seconds);
  usleep(static_cast<unsigned>((options_.answer_seconds + lag_seconds) * 1e6));
  if (loop_.n_turns() != n_turns) {
    return options_.print(fmt::format("rank {}: its loop turns again\n", table.rank));
  }
  std::vector<RankReport> own;
  own.push_back({table.rank, table, ""});
  options_.fail("stalled: " + diagnose(own).text);
}

}  // namespace llm
