#include "tests/support/cuda/block.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cuda/error.h"
#include "tests/support/cuda/fiber.h"

// What kernels declare as __shared__ lies between these (include/cuda_runtime.h).
extern "C" {
__attribute__((weak)) extern std::byte __start_llm_shared[];
__attribute__((weak)) extern std::byte __stop_llm_shared[];
}

namespace llm::emulator {

ThreadPlace here;

namespace {

constexpr std::uint32_t whole_warp = 0xFFFFFFFFu;

/// Where a thread waits for others.
struct Meeting {
  enum class Kind : std::uint8_t { none, block, warp };
  Kind kind = Kind::none;
  const char* what = "";
  std::uint32_t mask = 0;
  bool operator==(const Meeting& other) const {
    return kind == other.kind && mask == other.mask &&
           (what == other.what || std::strcmp(what, other.what) == 0);
  }
};

struct Thread {
  Thread(std::function<void()> body, ThreadPlace place_, unsigned number_)
      : fiber(std::move(body)), place(place_), number(number_) {}
  Fiber fiber;
  ThreadPlace place;
  unsigned number;
  Meeting at;
  std::uint64_t given = 0;
};

class Block {
 public:
  Block(const Launch& launch, Index3 index, std::mt19937_64& random)
      : random_(random), dynamic_(launch.shared_bytes, std::byte{0xFF}) {
    if (__start_llm_shared != nullptr) {
      std::memset(__start_llm_shared, 0xFF,
                  static_cast<std::size_t>(__stop_llm_shared - __start_llm_shared));
    }
    const Dim3 size = launch.block;
    for (unsigned z = 0; z < size.z; ++z) {
      for (unsigned y = 0; y < size.y; ++y) {
        for (unsigned x = 0; x < size.x; ++x) {
          const ThreadPlace place{{x, y, z}, index, size, launch.grid};
          threads_.emplace_back(launch.kernel, place, static_cast<unsigned>(threads_.size()));
        }
      }
    }
  }

  void run() {
    n_at_warp_.resize((threads_.size() + warp_size - 1) / warp_size);
    for (Thread& thread : threads_) ready_.push_back(&thread);
    std::shuffle(ready_.begin(), ready_.end(), random_);
    const Order order = static_cast<Order>(random_() % 3);
    while (!ready_.empty()) {
      Thread& thread = take(order);
      running = &thread;
      here = thread.place;
      thread.fiber.resume();
      if (!thread.fiber.done()) release_met(thread);
    }
    for (const Thread& thread : threads_) {
      if (!thread.fiber.done()) throw EmulatorError(deadlock());
    }
  }

  Thread& lane_of(unsigned lane) {
    return threads_[running->number / warp_size * warp_size + lane];
  }
  std::byte* dynamic() { return dynamic_.data(); }

  static inline Block* current = nullptr;
  static inline Thread* running = nullptr;

 private:
  /// Which of the ready threads runs: any, or the one that waits longest, so that all keep pace, or
  /// the one that was ready last, so that a warp runs far ahead of the others.
  enum class Order : std::uint8_t { any, even, ahead };
  Thread& take(Order order) {
    if (order == Order::any) {
      std::swap(ready_[random_() % ready_.size()], ready_.back());
    }
    Thread& thread = order == Order::even ? *ready_.front() : *ready_.back();
    order == Order::even ? ready_.pop_front() : ready_.pop_back();
    return thread;
  }

  /// Who goes on now that `last` has come to its meeting.
  void release_met(Thread& last) {
    std::vector<Thread*> met;
    if (last.at.kind == Meeting::Kind::block) {
      if (++n_at_barrier_ < threads_.size()) return;
      check_same_barrier();
      n_at_barrier_ = 0;
      for (Thread& thread : threads_) met.push_back(&thread);
    } else {
      const std::size_t begin = last.number / warp_size * warp_size;
      const std::size_t end = std::min<std::size_t>(begin + warp_size, threads_.size());
      unsigned& n_waiting = n_at_warp_[begin / warp_size];
      const auto n_asked = static_cast<unsigned>(std::popcount(last.at.mask));
      if (++n_waiting < n_asked || !warp_met(begin, end, last)) return;
      n_waiting -= n_asked;
      for (std::size_t t = begin; t < end; ++t) {
        if ((last.at.mask >> (t - begin) & 1U) != 0) met.push_back(&threads_[t]);
      }
    }
    std::shuffle(met.begin(), met.end(), random_);
    for (Thread* const thread : met) {
      thread->at = {};
      ready_.push_back(thread);
    }
  }

  bool warp_met(std::size_t begin, std::size_t end, const Thread& thread) const {
    for (std::size_t t = begin; t < end; ++t) {
      const bool is_asked = (thread.at.mask >> (t - begin) & 1U) != 0;
      if (is_asked && (threads_[t].fiber.done() || !(threads_[t].at == thread.at))) return false;
    }
    return true;
  }

  void check_same_barrier() const {
    for (const Thread& thread : threads_) {
      if (thread.at == threads_.front().at) continue;
      throw EmulatorError(deadlock());
    }
  }

  std::string deadlock() const {
    std::string text = "threads of block (" + std::to_string(threads_.front().place.block.x) +
                       ", " + std::to_string(threads_.front().place.block.y) + ", " +
                       std::to_string(threads_.front().place.block.z) + ") do not meet:";
    std::vector<std::pair<std::string, int>> groups;
    for (const Thread& thread : threads_) {
      const std::string where = thread.fiber.done() ? "the kernel's end" : thread.at.what;
      const auto found = std::find_if(groups.begin(), groups.end(),
                                      [&](const auto& group) { return group.first == where; });
      if (found != groups.end()) {
        ++found->second;
      } else {
        groups.emplace_back(where, 1);
      }
    }
    for (const auto& [where, n] : groups) {
      text += (text.back() == ':' ? " " : ", ") + std::to_string(n) + " at " + where;
    }
    return text;
  }

  std::mt19937_64& random_;
  std::vector<std::byte> dynamic_;
  std::deque<Thread> threads_;
  std::deque<Thread*> ready_;
  std::size_t n_at_barrier_ = 0;
  std::vector<unsigned> n_at_warp_;  ///< threads of each warp that wait for others of it
};

void meet(Meeting meeting) {
  Block::running->at = meeting;
  Fiber::pause();
}

void check_mask(const char* what, std::uint32_t mask) {
  if ((mask >> lane() & 1U) != 0) return;
  throw EmulatorError(std::string(what) + ": lane " + std::to_string(lane()) +
                      " calls it with a mask that leaves it out");
}

/// The lanes of a mask that this warp has: a block's last warp may have fewer.
std::uint32_t present(std::uint32_t mask) {
  const ThreadPlace& place = Block::running->place;
  const unsigned n = place.block_size.count() - Block::running->number / warp_size * warp_size;
  return n >= warp_size ? mask : mask & ((1U << n) - 1U);
}

}  // namespace

void run_grid(const Launch& launch, std::uint64_t seed) {
  const unsigned n_threads = launch.block.count();
  if (n_threads == 0 || n_threads > 1024 || launch.grid.count() == 0) {
    throw EmulatorError("a launch of " + std::to_string(launch.grid.count()) + " blocks of " +
                        std::to_string(n_threads) + " threads; blocks have 1 to 1024");
  }
  std::mt19937_64 random(seed);
  std::vector<unsigned> order(launch.grid.count());
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), random);
  for (const unsigned number : order) {
    const Dim3 grid = launch.grid;
    Block block(launch, {number % grid.x, number / grid.x % grid.y, number / (grid.x * grid.y)},
                random);
    Block::current = &block;
    block.run();
  }
}

unsigned lane() {
  return Block::running->number % warp_size;
}

void meet_block(const char* what) {
  meet({Meeting::Kind::block, what, whole_warp});
}

void meet_warp(const char* what, std::uint32_t mask) {
  check_mask(what, mask);
  meet({Meeting::Kind::warp, what, present(mask)});
}

std::uint64_t exchange(const char* what, std::uint32_t mask, std::uint64_t value, unsigned from) {
  check_mask(what, mask);
  Block::running->given = value;
  meet({Meeting::Kind::warp, what, present(mask)});
  const bool is_there = from < warp_size && (present(mask) >> from & 1U) != 0;
  const std::uint64_t read = is_there ? Block::current->lane_of(from).given : value;
  // Nobody gives its next value before all have read this one.
  meet({Meeting::Kind::warp, what, present(mask)});
  return read;
}

std::uint32_t vote(const char* what, std::uint32_t mask, bool value) {
  check_mask(what, mask);
  Block::running->given = value ? 1 : 0;
  meet({Meeting::Kind::warp, what, present(mask)});
  std::uint32_t bits = 0;
  for (unsigned from = 0; from < warp_size; ++from) {
    if ((present(mask) >> from & 1U) == 0) continue;
    bits |= static_cast<std::uint32_t>(Block::current->lane_of(from).given) << from;
  }
  meet({Meeting::Kind::warp, what, present(mask)});
  return bits;
}

std::byte* dynamic_shared() {
  return Block::current->dynamic();
}

}  // namespace llm::emulator
