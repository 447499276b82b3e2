#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "src/rt/inbox.h"
#include "src/rt/loop.h"
#include "src/rt/task.h"

namespace llm {

/// Takes the keys in the given order and notes what came.
inline Task<> take_keys(Inbox<int>& inbox, std::vector<std::int64_t> keys,
                        std::vector<int>& taken) {
  for (const std::int64_t key : keys) {
    const int message = co_await inbox.take(key);
    taken.push_back(message);
  }
}

/// A loop that says nothing and gives up soon.
inline Loop::Options impatient(double timeout_seconds = 0.05) {
  Loop::Options options;
  options.stall_warning_seconds = 0;
  options.stall_timeout_seconds = timeout_seconds;
  return options;
}

}  // namespace llm
