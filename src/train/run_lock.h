#pragma once
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "src/rt/ticker.h"

namespace llm {

/// Who holds a folder's lock.
struct LockHolder {
  std::string host;
  std::int64_t pid = 0;
  std::string began;      ///< when the process began, as its kernel says: a number comes again
  std::string processes;  ///< which kernel and container `pid` is a number of
  std::string job;        ///< SLURM_JOB_ID; empty without
  std::string restarts;   ///< SLURM_RESTART_COUNT: how often the job was requeued; empty: never
  bool operator==(const LockHolder&) const = default;
};

LockHolder this_process();
/// Whether the holder's process runs; nothing where this one cannot see it.
std::optional<bool> is_running(const LockHolder& holder);

struct LockVerdict {
  bool may_take = false;
  std::string reason;  ///< of a takeover, as "its process has ended"
};

/// A holder that gives no sign of life for so long is dead. It gives one every fifth of this.
inline constexpr double lock_silence_seconds = 60;

/// Whether `own` may take a lock from its holder: its process has ended, it is this job before it
/// was requeued, or it has been silent for too long.
///   age_seconds  since its last sign of life
///   runs         is_running(holder)
LockVerdict judge_lock(const LockHolder& holder, const LockHolder& own, double age_seconds,
                       std::optional<bool> runs);

/// "process 12 on n0 (job 34)"
std::string text_of(const LockHolder& holder);

/// The right to write in a folder, as a file run.lock in it, which a thread keeps alive. Of several
/// that start at once one gets it. Ages are told by the clock of the folder's file system, so hosts
/// with clocks of their own agree.
class RunLock {
 public:
  /// Makes the folder where there is none, and takes its lock; prints a warning where another's is
  /// taken over. Throws ConfigError naming `field` and the holder where the lock is another's,
  /// FileError where the folder or the lock cannot be written.
  RunLock(std::string field, std::filesystem::path folder);
  /// Gives the lock back, and removes the folder where it made it and nothing is in it.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  const std::string& field() const { return field_; }
  const std::filesystem::path& folder() const { return folder_; }
  /// Throws ConfigError where another has taken the lock over meanwhile: this process was silent
  /// for too long, as one that was stopped.
  void check() const;
  /// A sign of life. The lock does it by itself; from any thread, throws nothing.
  void beat();

 private:
  std::string contents() const;

  std::string field_;
  std::filesystem::path folder_;
  bool made_folder_ = false;
  LockHolder own_;
  std::atomic<bool> is_lost_ = false;
  std::unique_ptr<Ticker> ticker_;  // last: it calls beat()
};

}  // namespace llm
