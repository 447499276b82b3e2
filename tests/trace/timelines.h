#pragma once
#include <cstdint>
#include <string>

#include "src/trace/timeline.h"

namespace llm {

/// Makes timelines by hand; times in us. Every rank has rows 0 "stage", 1 "receiver", 2 "sender"
/// and 100 "compute queue".
class TimelineMaker {
 public:
  explicit TimelineMaker(int n_ranks);

  struct When {
    std::int64_t begin_us;
    std::int64_t end_us;
  };
  /// An action of the stage, and the op that it consists of.
  void action(int rank, const std::string& name, std::int64_t key, When when);
  void op(int rank, const std::string& name, When when);
  void run(int rank, int row, When when);
  void step(int rank, std::int64_t step, When when);
  void wait(int rank, int row, const std::string& name, When when, int by = -1);

  struct Message {
    int from;
    std::int64_t sent_us;
    int to;
    std::int64_t arrived_us;
    int from_row = 2;
    int to_row = 1;
  };
  /// What ends a wait has to be given too.
  void message(const Message& message);
  /// A message for which the receiver, and through it the stage, waits from `since_us` on.
  void awaited(const Message& message, const std::string& name, std::int64_t since_us);

  Timeline& timeline() { return timeline_; }
  /// In order of time, as files are read.
  Timeline made();

 private:
  void add(int rank, SliceKind kind, int row, const std::string& name, std::int64_t key, When when);

  Timeline timeline_;
  std::uint64_t next_id_ = 1;
};

}  // namespace llm
