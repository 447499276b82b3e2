#include "src/comm/loopback/loopback.h"

#include <cstring>

#include "src/base/philox.h"

namespace llm {

/// Messages of one sender, receiver and tag: both ends in order.
struct LoopbackNetwork::Lane {
  std::deque<Sent> sent;
  std::deque<Posted> posted;
  std::deque<Control> control;
};

class LoopbackNetwork::Endpoint : public Transport {
 public:
  Endpoint(LoopbackNetwork& network, int rank)
      : Transport(network.loop_), network_(network), rank_(rank) {}
  int rank() const override { return rank_; }
  int n_ranks() const override { return network_.n_ranks(); }
  bool poll() override { return rank_ == 0 && network_.poll(); }
  void arrive(int peer, const Control& control) {
    deliver_control(peer, control.header, control.payload);
  }

 protected:
  void do_send(int peer, int tag, const Header& header, View tensor, Event& sent) override {
    network_.lanes_[{rank_, peer, tag}].sent.push_back({header, tensor, &sent});
  }
  void do_receive(int peer, int tag, const Header& expected, MutView tensor,
                  Event& received) override {
    network_.lanes_[{peer, rank_, tag}].posted.push_back({expected, tensor, &received});
  }
  void do_send_control(int peer, const ControlHeader& header,
                       std::span<const std::byte> payload) override {
    network_.lanes_[{rank_, peer, n_tags}].control.push_back(
        {header, std::vector<std::byte>(payload.begin(), payload.end())});
  }

 private:
  LoopbackNetwork& network_;
  int rank_;
};

LoopbackNetwork::LoopbackNetwork(Loop& loop, int n_ranks, std::uint64_t seed)
    : loop_(loop), seed_(seed) {
  CHECK_CONTRACT(n_ranks >= 1, "a network has a rank");
  for (int r = 0; r < n_ranks; ++r) endpoints_.push_back(std::make_unique<Endpoint>(*this, r));
  loop_.add_poller(*endpoints_.front());
}

LoopbackNetwork::~LoopbackNetwork() {
  loop_.remove_poller(*endpoints_.front());
}

Transport& LoopbackNetwork::rank(int r) {
  return *endpoints_[static_cast<std::size_t>(r)];
}

std::uint64_t LoopbackNetwork::random() {
  const PhiloxBlock block = philox_at(seed_, n_draws_++);
  return (std::uint64_t{block[1]} << 32) | block[0];
}

bool LoopbackNetwork::poll() {
  std::vector<std::map<LaneKey, Lane>::iterator> deliverable;
  for (auto it = lanes_.begin(); it != lanes_.end(); ++it) {
    const Lane& lane = it->second;
    if (!lane.control.empty() || (!lane.sent.empty() && !lane.posted.empty())) {
      deliverable.push_back(it);
    }
  }
  if (deliverable.empty()) return false;
  const std::size_t n = 1 + random() % deliverable.size();
  for (std::size_t i = 0; i < n; ++i) {
    const auto it = deliverable[random() % deliverable.size()];
    deliver(it->first, it->second);
  }
  return true;
}

bool LoopbackNetwork::deliver(const LaneKey& key, Lane& lane) {
  const auto [sender, receiver, tag] = key;
  if (!lane.control.empty()) {
    const Control control = std::move(lane.control.front());
    lane.control.pop_front();
    ++n_delivered_;
    endpoints_[static_cast<std::size_t>(receiver)]->arrive(sender, control);
    return true;
  }
  if (lane.sent.empty() || lane.posted.empty())
    return false;  // taken by an earlier pick of this poll
  const Sent sent = lane.sent.front();
  const Posted posted = lane.posted.front();
  lane.sent.pop_front();
  lane.posted.pop_front();
  ++n_delivered_;
  check_header(posted.expected, sent.header, sender, tag);
  if (sent.tensor.n_bytes() > 0) {
    std::memcpy(posted.tensor.data(), sent.tensor.data(),
                static_cast<std::size_t>(sent.tensor.n_bytes()));
  }
  sent.sent->set();
  posted.received->set();
  return true;
}

}  // namespace llm
