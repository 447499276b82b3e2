#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/comm/transport.h"

namespace llm {

/// What the key of a kind of message says: key = ((first * n_2) + second) * n_3 + third ..., where
/// the first part has no bound.
struct KeyForm {
  struct Part {
    std::string name;    ///< "step", "bucket"
    std::int64_t n = 0;  ///< values of this part; 0: the first
  };
  std::vector<Part> parts;
  std::function<int(std::int64_t key)> rank_of =
      nullptr;  ///< who sends the message, if that varies

  /// "step 3, bucket 2".
  std::string text(std::int64_t key) const;
};
using KeyForms = std::map<std::string, KeyForm, std::less<>>;  ///< by kind

/// What one rank waits for at one moment: a value that travels as text, in messages and files.
struct StallTable {
  struct Wait {
    std::string actor;
    bool background = false;
    std::string kind;
    std::string what;    ///< step and microbatch or bucket; or the key alone
    std::string peer;    ///< empty: the rank's own queue of ops
    int peer_rank = -1;  ///< -1: an actor of this rank, or not known
    double seconds = 0;
    bool operator==(const Wait&) const = default;
  };
  /// Tensor messages with one rank on one tag; see LaneCounts.
  struct Lane {
    int peer = 0;
    int tag = 0;
    std::int64_t sent = 0;
    std::int64_t awaited = 0;
    std::int64_t arrived = 0;
    std::string last_sent = {};  ///< header
    std::string next = {};       ///< header of the first receive that is open; empty: none is
    bool operator==(const Lane&) const = default;
  };
  struct Channel {
    int peer = 0;
    int channel = 0;
    std::string kind;  ///< of the messages, as this rank's inbox calls them
    std::int64_t sent = 0;
    std::int64_t arrived = 0;
    bool operator==(const Channel&) const = default;
  };
  int rank = 0;
  int process = 0;
  std::string host;
  double idle_seconds = 0;   ///< since something moved on this rank
  double known_seconds = 0;  ///< since something moved on any rank that it knows of
  double stuck_seconds = 0;  ///< since the loop turned; 0: it turns
  std::string place;         ///< where a loop that does not turn is
  std::vector<Wait> waits;   ///< oldest first
  std::vector<Lane> lanes;
  std::vector<Channel> channels;
  bool operator==(const StallTable&) const = default;
};

/// This rank's waits, lanes and channels now. `kind_of_channel` names channels.
StallTable stall_table(const Transport& transport, const Loop& loop, const KeyForms& forms,
                       const std::function<std::string(int channel)>& kind_of_channel);

/// Lines for people, which parse_stall_table reads back: columns between bars.
std::string to_text(const StallTable& table);
/// Lines before and after the table are passed over. Nothing where there is no whole table.
std::optional<StallTable> parse_stall_table(std::string_view text);

/// "gradient_reducer 0 waits for piece(bucket 2) from rank 1 since 3.0 s".
std::string to_text(const StallTable::Wait& wait);

}  // namespace llm
