// A ring of actors that would go round forever: token and tensor from each rank to the next. Rank 1
// (every rank for "together") breaks in the way that the argument names; the driver checks how the
// job ends.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "src/base/error.h"
#include "src/comm/control.h"
#include "src/comm/mpi/mpi_transport.h"

namespace {

constexpr std::int64_t faulty_step = 300;
constexpr std::int64_t n_floats = 20'000;  // above every eager limit: a peer must take part
const llm::WaitName wait_sent("sent");
const llm::WaitName wait_received("received", "the rank before");

struct Token {
  Token() = default;
  explicit Token(std::int64_t step_) : step(step_) {}
  std::int64_t step = 0;
};

void break_down(const std::string& how) {
  std::fputs("breaks now\n", stderr);  // the driver's time starts here
  if (how == "throw" || how == "together") throw std::runtime_error("injected failure");
  if (how == "config") throw llm::ConfigError("model.num_heads: 3 does not divide 8");
  if (how == "exit") std::exit(3);
  if (how == "quick_exit") _exit(0);
  if (how == "kill") raise(SIGKILL);
  if (how == "stop") raise(SIGSTOP);
  if (how == "segv") raise(SIGSEGV);
  if (how == "thread") std::thread([] { throw std::runtime_error("of a thread"); }).join();
}

struct Ring {
  Ring(llm::MpiTransport& transport_, std::string how_)
      : transport(transport_),
        control(transport),
        tokens(transport.loop(), llm::WaitName("token", "the rank before")),
        next((transport.rank() + 1) % transport.n_ranks()),
        previous((transport.rank() + transport.n_ranks() - 1) % transport.n_ranks()),
        how(std::move(how_)),
        to_next(control.port<Token>(next, 1)),
        mine(n_floats, 1.0f),
        theirs(n_floats) {
    control.connect(1, tokens);
  }
  bool is_faulty(std::int64_t step) const {
    return step == faulty_step && (transport.rank() == 1 || how == "together");
  }
  llm::Header header(std::int64_t step) const {
    return llm::Header(llm::MessageKind::user, step, 0, 0);
  }

  llm::MpiTransport& transport;
  llm::ControlPlane control;
  llm::Inbox<Token> tokens;
  int next;
  int previous;
  std::string how;
  llm::Port<Token> to_next;
  std::vector<float> mine;
  std::vector<float> theirs;
};

llm::Task<> run(Ring& ring) {
  for (std::int64_t step = 0;; ++step) {
    llm::Event received(ring.transport.loop(), wait_received, step);
    llm::Event sent(ring.transport.loop(), wait_sent, step);
    ring.transport.receive(ring.previous, 1, ring.header(step),
                           llm::MutView(ring.theirs.data(), {n_floats}), received);
    const bool is_faulty = ring.is_faulty(step);
    if (is_faulty) break_down(ring.how);
    const std::int64_t sent_step = is_faulty && ring.how == "header" ? step + 1 : step;
    ring.transport.send(ring.next, 1, ring.header(sent_step),
                        llm::View(ring.mine.data(), {n_floats}), sent);
    ring.to_next(step, Token(step));
    const Token token = co_await ring.tokens.take(step);
    co_await received;
    co_await sent;
    if (token.step != step) throw std::runtime_error("a token of another step");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: faulty_ring FAULT STALL_SECONDS\n", stderr);
    return 64;
  }
  llm::MpiSession session;
  return llm::run_and_report(session, [&] {
    llm::Loop::Options options;
    options.stall_timeout_seconds = std::atof(argv[2]);
    llm::Loop loop(options);
    llm::MpiTransport transport(session, loop);
    Ring ring(transport, argv[1]);
    loop.spawn("ring", run(ring));
    loop.run();
    return 0;
  });
}
