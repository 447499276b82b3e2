#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace llm {

/// Threads that share the tiles of one op at a time with the thread that owns the pool. Whoever is
/// free takes the next tile, so which thread runs a tile is a matter of timing; tiles must not
/// care. A worker that finds nothing for 200 us sleeps until the next begin(). Workers run on the
/// cores that their owner was bound to. All calls are the owner's; one op is under way at a time.
class ThreadPool {
 public:
  /// `n_threads` counts the owner: 1 has no workers.
  explicit ThreadPool(int n_threads);
  /// Cancels what is under way and joins the workers.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Offers tiles 0 .. n_tiles-1 of `run` to all threads. `run` is read until done().
  void begin(std::int64_t n_tiles, const std::function<void(std::int64_t tile)>& run);
  /// Runs a tile on the calling thread; false when none is left to take. A tile that throws takes
  /// all tiles that nobody began with it.
  bool run_tile();
  /// Whether no tile is left and none runs. Never waits.
  bool done() const { return n_open_.load(std::memory_order_acquire) == 0; }
  /// After done(): throws what the first tile that failed threw; nothing where none failed.
  void rethrow();
  /// Takes back the tiles that nobody began and waits for those that run.
  void cancel();

 private:
  void work();
  void wait_for_tiles(std::uint32_t n_begun) const;

  // Written by the owner while nobody works; a thread reads them only after it took a tile.
  const std::function<void(std::int64_t)>* run_ = nullptr;
  std::int64_t n_tiles_ = 0;
  // Written by the first thread that set failed_.
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
  std::atomic<std::int64_t> n_left_{0};  ///< tiles to take
  std::atomic<std::int64_t> n_open_{0};  ///< tiles that are not done
  std::atomic<std::uint32_t> n_begun_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace llm
