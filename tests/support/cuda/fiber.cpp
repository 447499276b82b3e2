#include "tests/support/cuda/fiber.h"

#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#include <array>
#include <cstdint>
#include <cstring>
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
// For use after return each stack would have a second one, mapped anew for every thread of a grid.
extern "C" const char* __asan_default_options() {
  return "detect_stack_use_after_return=0";
}
#endif

#ifdef __x86_64__
// Keeps the registers that a call keeps on the running stack, and goes on with another one that did
// the same. swapcontext makes a system call each time, which takes longer than most kernels do.
extern "C" void llm_switch_stack(void** kept, void* to);
asm(R"(
.text
.globl llm_switch_stack
.type llm_switch_stack, @function
llm_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size llm_switch_stack, .-llm_switch_stack
)");
#endif

namespace llm::emulator {
namespace {

#ifdef __x86_64__
/// Where a stack was left.
struct Context {
  /// main() begins as if it were called with an empty stack.
  void begin_at(void* stack, std::size_t n_bytes, void (*main)()) {
    const std::array<std::uintptr_t, 8> first{
        0, 0, 0, 0, 0, 0, reinterpret_cast<std::uintptr_t>(main), 0};
    top = static_cast<std::byte*>(stack) + n_bytes - sizeof(first);
    std::memcpy(top, first.data(), sizeof(first));
  }
  void leave_for(const Context& other) { llm_switch_stack(&top, other.top); }
  void* top = nullptr;
};
#else
struct Context {
  void begin_at(void* stack, std::size_t n_bytes, void (*main)()) {
    getcontext(&at);
    at.uc_stack.ss_sp = stack;
    at.uc_stack.ss_size = n_bytes;
    at.uc_link = nullptr;
    makecontext(&at, main, 0);
  }
  void leave_for(const Context& other) { swapcontext(&at, &other.at); }
  ucontext_t at;
};
#endif

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
  Context own;
  Context resumer;
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
    own.leave_for(resumer);
#ifdef LLM_ASAN
    entered(own_fake);
#endif
  }

  void enter() {
#ifdef LLM_ASAN
    __sanitizer_start_switch_fiber(&resumer_fake, stack, stack_bytes);
#endif
    resumer.leave_for(own);
#ifdef LLM_ASAN
    __sanitizer_finish_switch_fiber(resumer_fake, nullptr, nullptr);
#endif
  }
};

Fiber::Fiber(std::function<void()> body) : state_(std::make_unique<State>()) {
  state_->body = std::move(body);
  state_->stack = stacks.take();
  state_->own.begin_at(state_->stack, stack_bytes, &State::main);
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
