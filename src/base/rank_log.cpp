#include "src/base/rank_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <mutex>
#include <string>

#include <fmt/chrono.h>
#include <fmt/format.h>

namespace llm {
namespace {

// What is kept of the time before there is a folder.
constexpr std::size_t most_kept_bytes = 64 << 10;

std::atomic<int> descriptor = -1;

struct Kept {
  std::mutex mutex;
  std::string text;
};

/// Never destroyed: threads may say something while the process ends.
Kept& kept() {
  static Kept* const all = std::make_unique<Kept>().release();
  return *all;
}

/// Each line with the time; what follows the first is set in.
std::string stamped(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  const std::string time = fmt::format("{:%F %T} ", fmt::localtime(std::time(nullptr)));
  std::string lines;
  bool is_first = true;
  while (is_first || !text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines += (is_first ? time : std::string(time.size(), ' ')) + std::string(text.substr(0, end));
    lines += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
    is_first = false;
  }
  return lines;
}

/// One write a call: lines of several threads do not mix. A full disk loses lines, not the run.
void append(int file, std::string_view lines) {
  while (!lines.empty()) {
    const ssize_t n = write(file, lines.data(), lines.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    lines.remove_prefix(static_cast<std::size_t>(n));
  }
}

}  // namespace

void open_rank_log(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) {
    return say_aside(fmt::format("warning: no log is kept: cannot write {}: {}\n", path.string(),
                                 std::strerror(errno)));
  }
  const std::lock_guard lock(kept().mutex);
  append(file, kept().text);
  kept().text.clear();
  const int previous = descriptor.exchange(file);
  if (previous >= 0) close(previous);
}

void close_rank_log() {
  const std::lock_guard lock(kept().mutex);
  kept().text.clear();
  const int previous = descriptor.exchange(-1);
  if (previous >= 0) close(previous);
}

void log_aside(std::string_view text) {
  const std::string lines = stamped(text);
  const int file = descriptor.load();
  if (file >= 0) return append(file, lines);
  const std::lock_guard lock(kept().mutex);
  if (kept().text.size() + lines.size() <= most_kept_bytes) kept().text += lines;
}

void say_aside(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  log_aside(text);
}

}  // namespace llm
