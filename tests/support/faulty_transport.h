#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "src/comm/transport.h"

namespace llm {

/// Messages over another transport, some of which go wrong on the way: what is sent is counted as
/// sent, whatever becomes of it.
class FaultyTransport : public Transport {
 public:
  enum class Fate : std::uint8_t { arrives, is_lost, arrives_twice, arrives_short, changes_dtype };
  /// May change tag and header.
  using TensorFault = std::function<Fate(int peer, int& tag, Header& header)>;
  using ControlFault = std::function<Fate(int peer, ControlHeader& header)>;

  FaultyTransport(Transport& inner, TensorFault tensor, ControlFault control)
      : Transport(inner.loop()),
        inner_(inner),
        tensor_(std::move(tensor)),
        control_(std::move(control)) {
    inner_.on_control(
        [this](int peer, const ControlHeader& header, std::span<const std::byte> payload) {
          deliver_control(peer, header, payload);
        });
  }
  int rank() const override { return inner_.rank(); }
  int n_ranks() const override { return inner_.n_ranks(); }
  bool poll() override { return false; }  // the loop polls the inner one

 protected:
  void do_send(int peer, int tag, const Header& header, View tensor, Event& sent) override {
    Header changed = header;
    switch (tensor_(peer, tag, changed)) {
      case Fate::is_lost:
        return sent.set();
      case Fate::arrives_twice:
        inner_.send(peer, tag, changed, tensor, copies_.emplace_back(loop(), wait_));
        break;
      case Fate::arrives_short:
        tensor = View(tensor.data(), tensor.dtype(), {tensor.n_elements() - 1});
        break;
      case Fate::changes_dtype:
        tensor = View(tensor.data(), Dtype::i32, {tensor.n_elements()});
        break;
      case Fate::arrives:
        break;
    }
    inner_.send(peer, tag, changed, tensor, sent);
  }
  void do_receive(int peer, int tag, const Header& expected, MutView tensor,
                  Event& received) override {
    inner_.receive(peer, tag, expected, tensor, received);
  }
  void do_send_control(int peer, const ControlHeader& header,
                       std::span<const std::byte> payload) override {
    ControlHeader changed = header;
    const Fate fate = header.channel == stall_channel ? Fate::arrives : control_(peer, changed);
    if (fate == Fate::is_lost) return;
    inner_.send_control(peer, changed, payload);
    if (fate == Fate::arrives_twice) inner_.send_control(peer, changed, payload);
  }

 private:
  Transport& inner_;
  TensorFault tensor_;
  ControlFault control_;
  const WaitName wait_{"copy sent"};
  std::deque<Event> copies_;
};

}  // namespace llm
