#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <utility>

#include "src/comm/header.h"
#include "src/rt/event.h"
#include "src/rt/loop.h"
#include "tensor/view.h"

namespace llm {

/// Payload of a control message at most: under MPI's smallest eager limit together with its header.
inline constexpr std::size_t max_control_bytes = 4000;

/// A small message of an actor to an actor of another rank, routed by channel (see ControlPlane).
struct ControlHeader {
  ControlHeader() = default;
  ControlHeader(std::int32_t channel_, std::int32_t n_bytes_, std::int64_t key_)
      : channel(channel_), n_bytes(n_bytes_), key(key_) {}
  std::uint32_t magic = 0x4C4C4D43;  ///< "LLMC"
  std::int32_t channel = 0;
  std::int32_t n_bytes = 0;
  std::int32_t reserved = 0;
  std::int64_t key = 0;
};

/// What went over the wire, for plans and reports.
struct TransportCounts {
  std::int64_t messages_sent = 0;
  std::int64_t bytes_sent = 0;
  std::int64_t control_sent = 0;
};

/// Messages of a rank and a tag, both ways, for reports on stalls.
struct LaneCounts {
  std::int64_t sent = 0;     ///< given to the transport
  std::int64_t awaited = 0;  ///< receives posted
  std::int64_t arrived = 0;
  Header last_sent;
  std::deque<Header> open;  ///< of receives posted, in order; the last awaited - arrived are open
};

/// Control messages of a rank and a channel, both ways.
struct ChannelCounts {
  std::int64_t sent = 0;
  std::int64_t arrived = 0;
};

/// Control messages on this channel are about stalls: they go to a handler of their own, and what
/// they cause is no progress.
inline constexpr int stall_channel = -1;

/// Carries messages between ranks. Never blocks; used on its loop's thread only. Messages with one
/// (sender, receiver, tag) arrive in order. Views stay valid, and events alive, until the event is
/// set.
class Transport : public Poller {
 public:
  using ControlHandler = std::function<void(int peer, const ControlHeader& header,
                                            std::span<const std::byte> payload)>;

  explicit Transport(Loop& loop) : loop_(loop) {}
  virtual int rank() const = 0;
  virtual int n_ranks() const = 0;
  /// Tags are in [0, 32768): the least that MPI promises.
  static constexpr int n_tags = 32768;

  /// Sends `tensor` after its header. `sent` is set when the bytes may be changed again.
  void send(int peer, int tag, Header header, View tensor, Event& sent);
  /// Receives into `tensor`, best posted before the sender sends. `received` is set when the bytes
  /// are there and the header is right; a wrong header or size leaves poll() as CommError.
  void receive(int peer, int tag, Header expected, MutView tensor, Event& received);
  /// Sends a control message; the payload is copied.
  void send_control(int peer, ControlHeader header, std::span<const std::byte> payload);
  void on_control(ControlHandler handler) { control_ = std::move(handler); }
  /// Without one, messages about stalls are as any other.
  void on_stall_message(ControlHandler handler) { stall_ = std::move(handler); }
  const TransportCounts& counts() const { return counts_; }
  using ByPeer = std::pair<int, int>;  ///< rank and tag, or rank and channel
  const std::map<ByPeer, LaneCounts>& lanes() const { return lanes_; }
  const std::map<ByPeer, ChannelCounts>& channels() const { return channels_; }
  Loop& loop() { return loop_; }

 protected:
  virtual void do_send(int peer, int tag, const Header& header, View tensor, Event& sent) = 0;
  virtual void do_receive(int peer, int tag, const Header& expected, MutView tensor,
                          Event& received) = 0;
  virtual void do_send_control(int peer, const ControlHeader& header,
                               std::span<const std::byte> payload) = 0;
  /// For a transport over another one: past the counts, lanes and traces of `inner`, since the
  /// outer one has them.
  static void pass_send(Transport& inner, int peer, int tag, const Header& header, View tensor,
                        Event& sent) {
    inner.do_send(peer, tag, header, tensor, sent);
  }
  static void pass_receive(Transport& inner, int peer, int tag, const Header& expected,
                           MutView tensor, Event& received) {
    inner.do_receive(peer, tag, expected, tensor, received);
  }
  static void pass_control(Transport& inner, int peer, const ControlHeader& header,
                           std::span<const std::byte> payload) {
    inner.do_send_control(peer, header, payload);
  }
  /// For implementations: a control message is here.
  void deliver_control(int peer, const ControlHeader& header, std::span<const std::byte> payload);

 private:
  std::uint64_t flow_id(int from, int to, int tag, std::int64_t sequence) const;

  Loop& loop_;
  ControlHandler control_;
  ControlHandler stall_;
  TransportCounts counts_;
  std::map<ByPeer, LaneCounts> lanes_;
  std::map<ByPeer, ChannelCounts> channels_;
};

/// Ranks that do a collective together; `index` is this rank's place in `ranks`.
struct Group {
  Group(Transport& transport_, std::vector<int> ranks_);
  int size() const { return static_cast<int>(ranks.size()); }
  int rank_of(int member) const { return ranks[static_cast<std::size_t>(member)]; }
  Transport& transport;
  std::vector<int> ranks;
  int index;
};

}  // namespace llm
