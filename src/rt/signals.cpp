#include "src/rt/signals.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <csignal>

#include "src/rt/loop.h"

namespace llm {

struct StopSignals::State {
  explicit State(boost::asio::io_context& io) : signals(io, SIGUSR1, SIGTERM) {}
  void listen() {
    signals.async_wait([this](const boost::system::error_code& error, int) {
      if (error) return;  // cancelled: the run is over
      requested = true;
      listen();
    });
  }
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
