#include "src/rt/signals.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>
#include <vector>

#include "src/rt/loop.h"

namespace llm {
namespace {

// Above what the kernel pushes for a handler: 3 KB with AVX-512, 11 KB with AMX.
constexpr std::size_t handler_stack_bytes = 64 * 1024;

/// This thread's signal handlers run on a stack of their own. Kernels of oneDNN point the stack
/// register into their workspace on the heap while they compute: a handler that ran there would
/// write over whatever lies below it.
class HandlerStack {
 public:
  HandlerStack() : bytes_(handler_stack_bytes) {
    stack_t stack{};
    stack.ss_sp = bytes_.data();
    stack.ss_size = bytes_.size();
    sigaltstack(&stack, &before_);
  }
  ~HandlerStack() { sigaltstack(&before_, nullptr); }
  HandlerStack(const HandlerStack&) = delete;
  HandlerStack& operator=(const HandlerStack&) = delete;

  /// What is installed already.
  static void use_for(int signal) {
    struct sigaction action{};
    sigaction(signal, nullptr, &action);
    action.sa_flags |= SA_ONSTACK;
    sigaction(signal, &action, nullptr);
  }

 private:
  std::vector<char> bytes_;
  stack_t before_{};
};

// A handler may do no more than this.
volatile std::sig_atomic_t early_stop = 0;

void note_early_stop(int) {
  early_stop = 1;
}

}  // namespace

struct EarlyStopSignals::State {
  State() {
    early_stop = 0;
    struct sigaction action{};
    action.sa_handler = note_early_stop;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    sigaction(SIGUSR1, &action, &before);
  }
  ~State() {
    sigaction(SIGUSR1, &before, nullptr);
    early_stop = 0;
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  HandlerStack stack;  // before the handler, which ends first
  struct sigaction before{};
};

EarlyStopSignals::EarlyStopSignals() : state_(std::make_unique<State>()) {}

EarlyStopSignals::~EarlyStopSignals() = default;

bool EarlyStopSignals::requested() {
  return early_stop != 0;
}

struct StopSignals::State {
  explicit State(boost::asio::io_context& io) : signals(io, SIGUSR1, SIGTERM) {
    HandlerStack::use_for(SIGUSR1);
    HandlerStack::use_for(SIGTERM);
    requested = EarlyStopSignals::requested();
  }
  void listen() {
    signals.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;  // cancelled: the run is over
      requested = true;
      listen();
    });
  }
  HandlerStack stack;  // before the handlers, which end first
  boost::asio::signal_set signals;
  bool requested = false;
};

StopSignals::StopSignals(Loop& loop) : state_(std::make_unique<State>(loop.io())) {
  state_->listen();
}

StopSignals::~StopSignals() = default;

bool StopSignals::requested() const {
  return state_->requested;
}

}  // namespace llm
