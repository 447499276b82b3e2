#pragma once
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "src/trace/activity.h"
#include "src/trace/timeline.h"

namespace llm {

/// A piece of the chain of events that made a step as long as it is.
///   work     a rank computed, or an actor kept its loop
///   message  a rank had nothing to do until a message of another was there: from its sending on
///   wait     it waited for something of its own: a disk, a timer
///   unknown  nothing was recorded: the loop was kept off its core, or did what no trace shows
struct PathPart {
  enum class Kind : std::uint8_t { work, message, wait, unknown };
  Kind kind;
  std::size_t rank;       ///< of a message: who waited for it
  std::size_t from_rank;  ///< of a message: who sent it; otherwise `rank`
  int row;                ///< the actor
  std::uint16_t name;     ///< the action, op or kind of message; index into Timeline::names
  std::int64_t begin_ns;
  std::int64_t end_ns;
};

/// Goes back from `end_ns` on `rank` to `begin_ns`: along what the rank worked at, and where it
/// had nothing to do, along the message that ended that to what its sender did before. Parts in
/// order of time, each ending where the next begins. Each message is followed once, so clocks that
/// are apart cannot make it go in circles.
std::vector<PathPart> critical_path(const std::vector<Activity>& activities,
                                    const Messages& messages, std::size_t rank,
                                    std::int64_t begin_ns, std::int64_t end_ns);

/// Neighbours of one rank, actor and name as one part, that lasts as long as they together; in
/// the order of their first. Parts that are shorter than `min_ns` even so are left out, and do not
/// come between others.
struct PathSum {
  PathPart first;
  int n = 0;
  std::int64_t ns = 0;
};
std::vector<PathSum> in_order(const std::vector<PathPart>& path, std::int64_t min_ns = 0);
/// All parts of one rank, actor and name, longest first.
std::vector<PathSum> by_length(const std::vector<PathPart>& path);

/// "rank 1 stage B", "rank 0 waits for piece from rank 1".
std::string text_of(const Timeline& timeline, const PathPart& part);

}  // namespace llm
