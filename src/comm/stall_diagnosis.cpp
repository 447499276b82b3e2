#include "src/comm/stall_diagnosis.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>

namespace llm {
namespace {

using Kind = Diagnosis::Kind;
using Wait = StallTable::Wait;

// Services that a rank's queue of ops waits for: a wait for an op may be one for them.
constexpr std::array<std::string_view, 2> services_of_queues = {"tensor_sums", "expert_exchange"};

/// Whether "stage" or "stage of every rank" means actor "stage", or "gradient_reducer" one of
/// several.
bool names(std::string_view peer, std::string_view actor) {
  return !peer.empty() && (actor.starts_with(peer) || peer.starts_with(actor));
}

/// A wait of a rank for another rank, found from a wait of an actor that has work to do.
struct Edge {
  const StallTable* from;
  const Wait* wait;
  int to() const { return wait->peer_rank; }
};

class Diagnoser {
 public:
  explicit Diagnoser(const std::vector<RankReport>& reports) : reports_(reports) {
    for (const RankReport& report : reports) {
      if (report.table) tables_.emplace(report.rank, &*report.table);
    }
    for (const auto& [rank, table] : tables_) {
      std::set<const Wait*> seen;
      for (const Wait& wait : table->waits) {
        if (!wait.background) follow(*table, wait, seen);
      }
    }
    std::sort(edges_.begin(), edges_.end(),
              [](const Edge& a, const Edge& b) { return a.wait->seconds > b.wait->seconds; });
  }

  Diagnosis diagnose() {
    for (const auto rule :
         {&Diagnoser::stuck, &Diagnoser::silent, &Diagnoser::tensors, &Diagnoser::controls,
          &Diagnoser::finished, &Diagnoser::cycle, &Diagnoser::local}) {
      if (std::optional<Diagnosis> found = (this->*rule)()) return *found;
    }
    return {Kind::unclear, {}, "no rank says what it waits for"};
  }

 private:
  /// Goes from a wait for an actor of the same rank to what that actor waits for.
  void follow(const StallTable& table, const Wait& wait, std::set<const Wait*>& seen) {
    if (!seen.insert(&wait).second) return;
    if (wait.peer_rank >= 0 && wait.peer_rank != table.rank) {
      edges_.push_back({&table, &wait});
      return;
    }
    bool is_actor = false;
    for (const Wait& other : table.waits) {
      const bool is_meant =
          wait.peer.empty()
              ? std::any_of(services_of_queues.begin(), services_of_queues.end(),
                            [&](std::string_view name) { return names(name, other.actor); })
              : names(wait.peer, other.actor);
      if (!is_meant || other.actor == wait.actor) continue;
      is_actor = true;
      follow(table, other, seen);
    }
    if (is_actor || wait.peer.empty()) return;
    // "activation from stage 0": what this rank's receiver of activations waits for.
    for (const Wait& other : table.waits) {
      if (&other != &wait && other.kind == wait.kind) follow(table, other, seen);
    }
  }

  /// Of the rank's lanes that wait for `peer`, if there is but one, the message: it has the step.
  static std::string header_from(const StallTable& table, int peer) {
    std::string header;
    for (const StallTable::Lane& lane : table.lanes) {
      if (lane.peer != peer || lane.next.empty()) continue;
      if (!header.empty()) return "";
      header = lane.next;
    }
    return header.empty() ? "" : fmt::format(" [{}]", header);
  }

  static std::string described(const Edge& edge) {
    return fmt::format("rank {}'s {}{}", edge.from->rank, to_text(*edge.wait),
                       header_from(*edge.from, edge.to()));
  }

  /// "; rank 0's stage waits for ...": the longest wait for one of `ranks`.
  std::string waiting_for(const std::vector<int>& ranks) const {
    for (const Edge& edge : edges_) {
      if (std::find(ranks.begin(), ranks.end(), edge.to()) == ranks.end()) continue;
      return "; " + described(edge);
    }
    return "";
  }

  std::optional<Diagnosis> stuck() {
    const StallTable* longest = nullptr;
    for (const auto& [rank, table] : tables_) {
      if (table->stuck_seconds <= 0) continue;
      if (longest == nullptr || table->stuck_seconds > longest->stuck_seconds) longest = table;
    }
    if (longest == nullptr) return std::nullopt;
    return Diagnosis{Kind::stuck,
                     {longest->rank},
                     fmt::format("rank {}'s loop has not turned for {:.1f} s: it is {} (process {} "
                                 "on {}){}",
                                 longest->rank, longest->stuck_seconds, longest->place,
                                 longest->process, longest->host, waiting_for({longest->rank}))};
  }

  std::optional<Diagnosis> silent() {
    for (const auto& [state, kind, says] :
         {std::tuple{"stopped", Kind::stopped, "is stopped by a signal"},
          std::tuple{"ended", Kind::ended, "has ended without a word"}}) {
      for (const RankReport& report : reports_) {
        if (report.table || report.process_state != state) continue;
        return Diagnosis{
            kind,
            {report.rank},
            fmt::format("rank {} {}{}", report.rank, says, waiting_for({report.rank}))};
      }
    }
    for (const RankReport& report : reports_) {
      if (!report.is_from_file) continue;
      return Diagnosis{
          Kind::unreachable,
          {report.rank},
          fmt::format("rank {} on {} runs, and its messages do not arrive: the network "
                      "is down between it and {}{}",
                      report.rank, report.table->host, hearing_host(), waiting_for({report.rank}))};
    }
    Diagnosis found{Kind::silent, {}, ""};
    std::string names;
    for (const RankReport& report : reports_) {
      if (report.table) continue;
      found.ranks.push_back(report.rank);
      names += fmt::format("{}{}", names.empty() ? "" : ", ", report.rank);
    }
    if (found.ranks.empty()) return std::nullopt;
    found.text = fmt::format("nobody hears from rank{} {}{}", found.ranks.size() == 1 ? "" : "s",
                             names, waiting_for(found.ranks));
    return found;
  }

  /// The wait of `rank` for a message of `peer` with this header, or else its longest one.
  std::string waiting_in_lane(int rank, const StallTable::Lane& open) const {
    const Edge* found = nullptr;
    for (const Edge& edge : edges_) {
      if (edge.from->rank != rank || edge.to() != open.peer) continue;
      if (found == nullptr || open.next.starts_with(edge.wait->kind + " ")) found = &edge;
    }
    return found == nullptr ? "" : "; " + described(*found);
  }

  /// Of the first rank that answered.
  std::string hearing_host() const {
    for (const RankReport& report : reports_) {
      if (report.table && !report.is_from_file) return report.table->host;
    }
    return "the others";
  }

  const StallTable::Lane* lane(int rank, int peer, int tag) const {
    const auto table = tables_.find(rank);
    if (table == tables_.end()) return nullptr;
    for (const StallTable::Lane& lane : table->second->lanes) {
      if (lane.peer == peer && lane.tag == tag) return &lane;
    }
    return nullptr;
  }

  /// A receive that is open although its message was sent, on its tag or on another one.
  std::optional<Diagnosis> tensors() {
    for (const auto& [rank, table] : tables_) {
      for (const StallTable::Lane& open : table->lanes) {
        if (open.next.empty()) continue;
        const StallTable::Lane* const there = lane(open.peer, rank, open.tag);
        if (there != nullptr && there->sent > open.arrived) {
          return Diagnosis{
              Kind::lost,
              {open.peer, rank},
              fmt::format("message {} from rank {} to rank {} on tag {}, [{}], was sent and has "
                          "not arrived{}",
                          open.arrived + 1, open.peer, rank, open.tag, open.next,
                          waiting_in_lane(rank, open))};
        }
        if (const auto other = sent_elsewhere(rank, open)) return other;
      }
    }
    return std::nullopt;
  }

  std::optional<Diagnosis> sent_elsewhere(int rank, const StallTable::Lane& open) const {
    const auto sender = tables_.find(open.peer);
    if (sender == tables_.end()) return std::nullopt;
    for (const StallTable::Lane& sent : sender->second->lanes) {
      if (sent.peer != rank || sent.tag == open.tag || sent.last_sent != open.next) continue;
      const StallTable::Lane* const here = lane(rank, open.peer, sent.tag);
      if (here != nullptr && here->awaited >= sent.sent) continue;
      return Diagnosis{Kind::mis_tagged,
                       {open.peer, rank},
                       fmt::format("rank {} waits for [{}] from rank {} on tag {}, and rank {} "
                                   "sent it on tag {}",
                                   rank, open.next, open.peer, open.tag, open.peer, sent.tag)};
    }
    return std::nullopt;
  }

  const StallTable::Channel* channel(int rank, int peer, int number) const {
    const auto table = tables_.find(rank);
    if (table == tables_.end()) return nullptr;
    for (const StallTable::Channel& channel : table->second->channels) {
      if (channel.peer == peer && channel.channel == number) return &channel;
    }
    return nullptr;
  }

  /// Control messages that arrived on a channel of `rank` from `peer`, less those sent.
  struct Excess {
    int rank;
    int peer;
    std::string kind;
    std::int64_t sent;
    std::int64_t arrived;
    bool operator==(const Excess&) const = default;
  };

  std::vector<Excess> excesses() const {
    std::vector<Excess> found;
    for (const auto& [rank, table] : tables_) {
      for (const StallTable::Channel& here : table->channels) {
        if (!tables_.contains(here.peer)) continue;
        // From this rank; and to it, which both ranks may have counted.
        const StallTable::Channel* const there = channel(here.peer, rank, here.channel);
        const std::int64_t arrived_there = there == nullptr ? 0 : there->arrived;
        const std::int64_t sent_there = there == nullptr ? 0 : there->sent;
        if (here.sent != arrived_there) {
          const std::string kind = there == nullptr ? here.kind : there->kind;
          found.push_back({here.peer, rank, kind, here.sent, arrived_there});
        }
        if (there == nullptr && here.arrived != sent_there) {
          found.push_back({rank, here.peer, here.kind, sent_there, here.arrived});
        }
      }
    }
    return found;
  }

  /// ": rank 0's optimizer_shard waits for step_facts(step 3, rank 1)", or nothing.
  std::string waiting_on(const Excess& excess) const {
    for (const Wait& wait : tables_.at(excess.rank)->waits) {
      if (wait.kind != excess.kind) continue;
      if (wait.peer_rank >= 0 && wait.peer_rank != excess.peer) continue;
      return fmt::format("; rank {}'s {}", excess.rank, to_text(wait));
    }
    return "";
  }

  std::optional<Diagnosis> controls() {
    const std::vector<Excess> all = excesses();
    const auto lost =
        std::find_if(all.begin(), all.end(), [](const Excess& e) { return e.arrived < e.sent; });
    const auto extra = std::find_if(all.begin(), all.end(), [&](const Excess& e) {
      const bool is_pair = lost == all.end() || (e.rank == lost->rank && e.peer == lost->peer);
      return e.arrived > e.sent && is_pair;
    });
    if (lost != all.end() && extra != all.end()) {
      return Diagnosis{
          Kind::mis_tagged,
          {lost->peer, lost->rank},
          fmt::format("a message {} from rank {} to rank {} arrived as {}{}", lost->kind,
                      lost->peer, lost->rank, extra->kind, waiting_on(*lost))};
    }
    if (lost != all.end()) {
      return Diagnosis{
          Kind::lost,
          {lost->peer, lost->rank},
          fmt::format("{} of {} messages {} from rank {} to rank {} have arrived{}", lost->arrived,
                      lost->sent, lost->kind, lost->peer, lost->rank, waiting_on(*lost))};
    }
    if (extra == all.end()) return std::nullopt;
    return Diagnosis{
        Kind::duplicated,
        {extra->peer, extra->rank},
        fmt::format("{} messages {} from rank {} to rank {} were sent and {} arrived", extra->sent,
                    extra->kind, extra->peer, extra->rank, extra->arrived)};
  }

  static bool has_finished(const StallTable& table) {
    bool waits = false;
    for (const Wait& wait : table.waits) {
      if (wait.background) continue;
      if (wait.kind != end_of_run) return false;
      waits = true;
    }
    return waits;
  }

  std::optional<Diagnosis> finished() {
    for (const Edge& edge : edges_) {
      const auto there = tables_.find(edge.to());
      if (edge.wait->kind == end_of_run || there == tables_.end()) continue;
      if (!has_finished(*there->second)) continue;
      return Diagnosis{Kind::finished,
                       {edge.to(), edge.from->rank},
                       fmt::format("rank {} has finished its steps and sends nothing more; {}",
                                   edge.to(), described(edge))};
    }
    return std::nullopt;
  }

  /// Edges from `rank` on until one of `path` comes again; what leads there is cut off.
  bool find_cycle(int rank, std::vector<const Edge*>& path, std::set<int>& dead) const {
    const auto again = std::find_if(path.begin(), path.end(),
                                    [&](const Edge* e) { return e->from->rank == rank; });
    if (again != path.end()) {
      path.erase(path.begin(), again);
      return true;
    }
    if (dead.contains(rank)) return false;
    for (const Edge& edge : edges_) {
      if (edge.from->rank != rank) continue;
      path.push_back(&edge);
      if (find_cycle(edge.to(), path, dead)) return true;
      path.pop_back();
    }
    dead.insert(rank);
    return false;
  }

  std::optional<Diagnosis> cycle() {
    std::set<int> dead;
    for (const Edge& first : edges_) {
      std::vector<const Edge*> path;
      if (!find_cycle(first.from->rank, path, dead)) continue;
      Diagnosis found{Kind::cycle, {}, "ranks wait for each other: "};
      for (const Edge* edge : path) {
        found.ranks.push_back(edge->from->rank);
        found.text += fmt::format("{}{}", edge == path.front() ? "" : "; ", described(*edge));
      }
      return found;
    }
    return std::nullopt;
  }

  /// The rank at the end of a chain of waits, or the oldest wait of all.
  std::optional<Diagnosis> local() {
    const StallTable* at_end = nullptr;
    for (const auto& [rank, table] : tables_) {
      const bool waits =
          std::any_of(edges_.begin(), edges_.end(), [&](const Edge& e) { return e.from == table; });
      const bool has_work = std::any_of(table->waits.begin(), table->waits.end(),
                                        [](const Wait& w) { return !w.background; });
      if (waits || !has_work) continue;
      if (at_end == nullptr || table->idle_seconds > at_end->idle_seconds) at_end = table;
    }
    if (at_end == nullptr) return std::nullopt;
    for (const Wait& wait : at_end->waits) {
      // The end of the rank's own chain: for what is no actor of it.
      const bool is_for_actor =
          std::any_of(at_end->waits.begin(), at_end->waits.end(), [&](const Wait& other) {
            return other.actor != wait.actor && names(wait.peer, other.actor);
          });
      if (wait.background || is_for_actor) continue;
      return Diagnosis{
          Kind::local,
          {at_end->rank},
          fmt::format("rank {}'s {}{}", at_end->rank, to_text(wait), waiting_for({at_end->rank}))};
    }
    const auto first = std::find_if(at_end->waits.begin(), at_end->waits.end(),
                                    [](const Wait& w) { return !w.background; });
    return Diagnosis{
        Kind::local,
        {at_end->rank},
        fmt::format("rank {}'s {}{}", at_end->rank, to_text(*first), waiting_for({at_end->rank}))};
  }

  const std::vector<RankReport>& reports_;
  std::map<int, const StallTable*> tables_;
  std::vector<Edge> edges_;  // the longest first
};

}  // namespace

std::string name_of(Diagnosis::Kind kind) {
  switch (kind) {
    case Kind::stuck:
      return "stuck";
    case Kind::stopped:
      return "stopped";
    case Kind::ended:
      return "ended";
    case Kind::unreachable:
      return "unreachable";
    case Kind::silent:
      return "silent";
    case Kind::lost:
      return "lost";
    case Kind::mis_tagged:
      return "mis-tagged";
    case Kind::duplicated:
      return "duplicated";
    case Kind::finished:
      return "finished early";
    case Kind::cycle:
      return "cycle";
    case Kind::local:
      return "waits alone";
    case Kind::unclear:
      break;
  }
  return "unclear";
}

Diagnosis diagnose(const std::vector<RankReport>& reports) {
  return Diagnoser(reports).diagnose();
}

}  // namespace llm
