#include "tests/support/cuda/fiber.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <new>
#include <utility>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LLM_ASAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define LLM_ASAN 1
#endif
#ifdef LLM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace llm::emulator {
namespace {

constexpr std::size_t stack_bytes = 256 * 1024;  // sanitizers' frames are large

/// Stacks are kept, since a grid has many threads one after the other.
class Stacks {
 public:
  ~Stacks() {
    for (void* const stack : free_) munmap(stack, stack_bytes);
  }
  void* take() {
    if (!free_.empty()) {
      void* const stack = free_.back();
      free_.pop_back();
      return stack;
    }
    void* const stack = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) throw std::bad_alloc();
    return stack;
  }
  void give_back(void* stack) { free_.push_back(stack); }

 private:
  std::vector<void*> free_;
};

Stacks stacks;

}  // namespace

struct Fiber::State {
  std::function<void()> body;
  std::exception_ptr failure;
  ucontext_t own;
  ucontext_t resumer;
  void* stack = nullptr;
  bool done = false;
#ifdef LLM_ASAN
  void* own_fake = nullptr;
  void* resumer_fake = nullptr;
  const void* resumer_bottom = nullptr;
  std::size_t resumer_size = 0;
#endif
  static inline State* running = nullptr;

  static void main() {
    State& self = *running;
    self.entered(nullptr);
    try {
      self.body();
    } catch (const std::exception&) {
      self.failure = std::current_exception();
    }
    self.done = true;
    self.leave();
  }

  /// In the fiber, first of all and after each pause.
  void entered([[maybe_unused]] void* fake) {
#ifdef LLM_ASAN
    __sanitizer_finish_switch_fiber(fake, &resumer_bottom, &resumer_size);
#endif
  }

  void leave() {
#ifdef LLM_ASAN
    __sanitizer_start_switch_fiber(done ? nullptr : &own_fake, resumer_bottom, resumer_size);
#endif
    swapcontext(&own, &resumer);
#ifdef LLM_ASAN
    entered(own_fake);
#endif
  }

  void enter() {
#ifdef LLM_ASAN
    __sanitizer_start_switch_fiber(&resumer_fake, stack, stack_bytes);
#endif
    swapcontext(&resumer, &own);
#ifdef LLM_ASAN
    __sanitizer_finish_switch_fiber(resumer_fake, nullptr, nullptr);
#endif
  }
};

Fiber::Fiber(std::function<void()> body) : state_(std::make_unique<State>()) {
  state_->body = std::move(body);
  state_->stack = stacks.take();
  getcontext(&state_->own);
  state_->own.uc_stack.ss_sp = state_->stack;
  state_->own.uc_stack.ss_size = stack_bytes;
  state_->own.uc_link = nullptr;
  makecontext(&state_->own, &State::main, 0);
}

Fiber::~Fiber() {
  stacks.give_back(state_->stack);
}

bool Fiber::done() const {
  return state_->done;
}

void Fiber::resume() {
  State* const before = std::exchange(State::running, state_.get());
  state_->enter();
  State::running = before;
  if (state_->failure) std::rethrow_exception(std::exchange(state_->failure, nullptr));
}

void Fiber::pause() {
  State::running->leave();
}

}  // namespace llm::emulator
