#pragma once
#include <filesystem>
#include <string_view>

namespace llm {

/// This process's own log, for what a launcher mixes with other ranks' lines or loses: warnings,
/// notes, errors. What is said before it is opened is kept, up to a few kilobytes. Each line has
/// the time, and is in the file when the call returns. Callable from any thread.

/// Appends to `path` from here on, whose folder is made. A file that cannot be written is a warning
/// on standard error: a run does not end for it.
void open_rank_log(const std::filesystem::path& path);
/// Forgets the file and what was kept: for tests.
void close_rank_log();

/// Puts `text`, one or several lines, into the log alone.
void log_aside(std::string_view text);
/// Says `text` on standard error, in one write, and puts it into the log.
void say_aside(std::string_view text);

}  // namespace llm
