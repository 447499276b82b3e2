#include "src/trace/critical_path.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include <fmt/format.h>

namespace llm {
namespace {

// An actor sends within a turn of the loop after it was woken: a tile, about a millisecond.
constexpr std::int64_t turn_ns = 2'000'000;

class Walk {
 public:
  Walk(const std::vector<Activity>& activities, const Messages& messages, std::size_t rank,
       std::int64_t begin_ns, std::int64_t end_ns)
      : activities_(activities),
        messages_(messages),
        begin_ns_(begin_ns),
        rank_(rank),
        at_ns_(end_ns) {}

  std::vector<PathPart> run() {
    while (at_ns_ > begin_ns_) {
      if (sender_ && follow_sender()) continue;
      const Busy* const busy = own().last_before(at_ns_);
      if (busy != nullptr && at_ns_ - busy->end_ns <= pause_ns) {
        sender_.reset();
        go_to(busy->begin_ns, PathPart::Kind::work, busy->row, busy->name);
        continue;
      }
      const std::int64_t idle_ns = std::max(begin_ns_, busy == nullptr ? begin_ns_ : busy->end_ns);
      follow(own().cause(sender_, idle_ns, at_ns_), idle_ns);
    }
    std::reverse(path_.begin(), path_.end());
    return std::move(path_);
  }

 private:
  const Activity& own() const { return activities_[rank_]; }

  void go_to(std::int64_t to_ns, PathPart::Kind kind, int row, std::uint16_t name) {
    to_ns = std::max(begin_ns_, std::min(to_ns, at_ns_ - 1));
    path_.push_back({kind, rank_, rank_, row, name, to_ns, at_ns_});
    at_ns_ = to_ns;
  }

  /// The message on the other end of an arrow that was not followed yet; nullptr: none is known.
  const Sent* sent(const Cause& cause) const {
    if (cause.arrival == nullptr || followed_.contains(cause.arrival->id)) return nullptr;
    const auto found = messages_.find(cause.arrival->id);
    return found == messages_.end() ? nullptr : &found->second;
  }

  void jump(const Cause& cause, const Sent& from) {
    followed_.insert(cause.arrival->id);
    const std::int64_t to_ns = std::max(begin_ns_, std::min(from.at_ns, at_ns_));
    path_.push_back({PathPart::Kind::message, rank_, from.rank, cause.wait->row, cause.wait->name,
                     to_ns, at_ns_});
    at_ns_ = to_ns;
    rank_ = from.rank;
    sender_ = from.row;
  }

  /// Whether the sender had just been woken by another message: it sent because of that, whatever
  /// the rank computed meanwhile.
  bool follow_sender() {
    const Cause cause = own().cause(sender_, at_ns_ - turn_ns, at_ns_);
    const Sent* const from = sent(cause);
    if (from == nullptr) return false;
    jump(cause, *from);
    return true;
  }

  void follow(const Cause& cause, std::int64_t idle_ns) {
    sender_.reset();
    if (cause.wait == nullptr) {
      go_to(idle_ns, PathPart::Kind::unknown, no_row, 0);
      return;
    }
    if (at_ns_ - cause.wait->end_ns > pause_ns) {
      go_to(cause.wait->end_ns, PathPart::Kind::unknown, no_row, 0);
      if (at_ns_ <= begin_ns_) return;
    }
    if (const Sent* const from = sent(cause)) {
      jump(cause, *from);
    } else {
      go_to(std::max(idle_ns, cause.wait->begin_ns), PathPart::Kind::wait, cause.wait->row,
            cause.wait->name);
    }
  }

  static constexpr int no_row = -1;
  const std::vector<Activity>& activities_;
  const Messages& messages_;
  const std::int64_t begin_ns_;
  std::size_t rank_;
  std::int64_t at_ns_;
  std::optional<int> sender_;  // of the message that led here
  std::unordered_set<std::uint64_t> followed_;
  std::vector<PathPart> path_;
};

auto place_of(const PathPart& part) {
  return std::tuple(part.kind, part.rank, part.from_rank, part.row, part.name);
}

std::vector<PathSum> joined(const std::vector<PathSum>& sums) {
  std::vector<PathSum> all;
  for (const PathSum& sum : sums) {
    if (all.empty() || place_of(all.back().first) != place_of(sum.first)) {
      all.push_back(sum);
    } else {
      all.back().n += sum.n;
      all.back().ns += sum.ns;
    }
  }
  return all;
}

}  // namespace

std::vector<PathPart> critical_path(const std::vector<Activity>& activities,
                                    const Messages& messages, std::size_t rank,
                                    std::int64_t begin_ns, std::int64_t end_ns) {
  return Walk(activities, messages, rank, begin_ns, end_ns).run();
}

std::vector<PathSum> in_order(const std::vector<PathPart>& path, std::int64_t min_ns) {
  std::vector<PathSum> sums;
  for (const PathPart& part : path) sums.push_back({part, 1, part.end_ns - part.begin_ns});
  sums = joined(sums);
  std::erase_if(sums, [min_ns](const PathSum& sum) { return sum.ns < min_ns; });
  return joined(sums);
}

std::vector<PathSum> by_length(const std::vector<PathPart>& path) {
  std::map<decltype(place_of(PathPart{})), PathSum> by_place;
  for (const PathPart& part : path) {
    PathSum& sum = by_place.try_emplace(place_of(part), PathSum{part}).first->second;
    ++sum.n;
    sum.ns += part.end_ns - part.begin_ns;
  }
  std::vector<PathSum> sums;
  for (const auto& [place, sum] : by_place) sums.push_back(sum);
  std::sort(sums.begin(), sums.end(), [](const PathSum& a, const PathSum& b) {
    return std::tuple(-a.ns, place_of(a.first)) < std::tuple(-b.ns, place_of(b.first));
  });
  return sums;
}

std::string text_of(const Timeline& timeline, const PathPart& part) {
  const std::string& actor = timeline.ranks[part.rank].row_name(part.row);
  const std::string& name = timeline.name(part.name);
  switch (part.kind) {
    case PathPart::Kind::work:
      return fmt::format("rank {} {} {}", part.rank, actor, name);
    case PathPart::Kind::message:
      return fmt::format("rank {} {} waits for {} from rank {}", part.rank, actor, name,
                         part.from_rank);
    case PathPart::Kind::wait:
      return fmt::format("rank {} {} waits for {}", part.rank, actor, name);
    case PathPart::Kind::unknown:
      return fmt::format("rank {} not recorded", part.rank);
  }
  return "";
}

}  // namespace llm
