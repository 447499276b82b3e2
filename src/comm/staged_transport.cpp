#include "src/comm/staged_transport.h"

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>
#include <utility>

#include "src/comm/pinned_pool.h"
#include "tensor/ops/elementwise.h"
#include "tensor/queue.h"

namespace llm {
namespace {

const WaitName wait_moved{"segment"};

/// A tensor on its way; its segments begin and end in order.
struct Message {
  Header header;
  MutView tensor;
  Event* done;
  std::int64_t segment_elements;
  std::int64_t n_segments;
  std::int64_t n_begun = 0;
  std::int64_t n_ended = 0;

  MutView segment(std::int64_t i) const {
    const std::int64_t begin = i * segment_elements;
    return part(tensor, begin, {std::min(segment_elements, tensor.n_elements() - begin)});
  }
};

/// A message of the inner transport, and a copy where the tensor is on the device.
struct Segment {
  Segment(Loop& loop, const Header& header_, MutView tensor_)
      : header(header_), tensor(tensor_), staged(tensor_), moved(loop, wait_moved) {}
  Header header;
  MutView tensor;
  MutView staged;  ///< what the inner transport sees: the buffer's, or the tensor itself
  Storage buffer;
  bool is_given = false;  ///< to the inner transport
  bool is_copying = false;
  bool is_copied = false;  ///< or needs no copy
  Event moved;
};

/// Messages of a peer, tag and direction that are not done, and their segments that are begun.
struct Lane {
  bool is_send;
  int peer;
  int tag;
  std::deque<Message> messages;
  std::deque<Segment> segments;
  std::size_t n_buffers = 0;
};

}  // namespace

struct StagedTransport::State {
  State(Transport& inner_, Options options_) : inner(inner_), options(options_) {}

  void begin_message(bool is_send, int peer, int tag, const Header& header, MutView tensor,
                     Event& done);
  bool poll();
  void advance(Lane& lane);
  void begin_segments(Lane& lane);
  void begin_segment(Lane& lane, Message& message, bool is_staged);
  void copy_segment(Queue& queue, Segment& segment, View from, MutView into);
  bool run_copies();
  void give(const Lane& lane, Segment& segment);
  void go_on(Lane& lane);
  bool end_segments(Lane& lane);

  Transport& inner;
  Options options;
  PinnedPool pool;
  std::map<std::tuple<bool, int, int>, Lane> lanes;
  std::int64_t n_events = 0;  ///< messages and copies of segments that are done
  std::int64_t n_seen = 0;    ///< of them, at the last poll
  // A device copies both ways at once. The last members: they end before what they copy.
  Queue from_device{Device::cuda, nullptr, "copies to send"};
  Queue to_device{Device::cuda, nullptr, "copies of what came"};
};

void StagedTransport::State::begin_message(bool is_send, int peer, int tag, const Header& header,
                                           MutView tensor, Event& done) {
  const std::int64_t most =
      options.segment_bytes / static_cast<std::int64_t>(size_of(tensor.dtype()));
  const std::int64_t n_segments =
      std::max<std::int64_t>((tensor.n_elements() + most - 1) / most, 1);
  const std::tuple key(is_send, peer, tag);
  auto lane = lanes.find(key);
  if (lane == lanes.end()) {
    if (tensor.device() == Device::cpu && n_segments == 1) {
      return is_send ? pass_send(inner, peer, tag, header, tensor, done)
                     : pass_receive(inner, peer, tag, header, tensor, done);
    }
    lane = lanes.emplace(key, Lane{is_send, peer, tag, {}, {}, 0}).first;
  }
  lane->second.messages.push_back({header, tensor, &done, most, n_segments});
  advance(lane->second);
}

bool StagedTransport::State::poll() {
  const bool has_copied = run_copies();
  if (n_events == n_seen) return has_copied;
  n_seen = n_events;
  for (auto lane = lanes.begin(); lane != lanes.end();) {
    advance(lane->second);
    lane = lane->second.messages.empty() ? lanes.erase(lane) : std::next(lane);
  }
  run_copies();  // without waiting for the next turn
  return true;
}

/// Gives the device what is to be copied, and hears what it has copied.
bool StagedTransport::State::run_copies() {
  bool progress = false;
  for (Queue* const queue : {&from_device, &to_device}) {
    while (queue->run_tile()) progress = true;
  }
  return progress;
}

void StagedTransport::State::advance(Lane& lane) {
  do {
    begin_segments(lane);
    go_on(lane);
  } while (end_segments(lane));
}

/// As many as there are buffers for, in order.
void StagedTransport::State::begin_segments(Lane& lane) {
  for (Message& message : lane.messages) {
    const bool is_staged = message.tensor.device() != Device::cpu && message.tensor.n_bytes() > 0;
    while (message.n_begun < message.n_segments) {
      if (is_staged && lane.n_buffers == options.buffers) return;
      begin_segment(lane, message, is_staged);
    }
  }
}

void StagedTransport::State::begin_segment(Lane& lane, Message& message, bool is_staged) {
  const MutView tensor = message.segment(message.n_begun++);
  Segment& segment = lane.segments.emplace_back(inner.loop(), message.header, tensor);
  segment.moved.count_in(n_events);
  segment.is_copied = !is_staged;
  if (is_staged) {
    ++lane.n_buffers;
    segment.buffer = pool.take(tensor.n_bytes());
    segment.staged = segment.buffer.view(tensor.dtype(), tensor.shape());
    if (lane.is_send) copy_segment(from_device, segment, tensor, segment.staged);
  }
  if (!lane.is_send) give(lane, segment);
}

void StagedTransport::State::copy_segment(Queue& queue, Segment& segment, View from, MutView into) {
  segment.is_copying = true;
  copy(queue, from, into);
  queue.notify([this, &segment] {
    segment.is_copied = true;
    ++n_events;
  });
}

void StagedTransport::State::give(const Lane& lane, Segment& segment) {
  segment.is_given = true;
  if (lane.is_send) {
    pass_send(inner, lane.peer, lane.tag, segment.header, segment.staged, segment.moved);
  } else {
    pass_receive(inner, lane.peer, lane.tag, segment.header, segment.staged, segment.moved);
  }
}

/// Does what follows copies and messages that are done.
void StagedTransport::State::go_on(Lane& lane) {
  for (Segment& segment : lane.segments) {
    if (lane.is_send) {
      if (!segment.is_copied) return;  // those behind it wait for their turn
      if (!segment.is_given) give(lane, segment);
    } else {
      if (!segment.moved.is_set()) return;
      if (!segment.is_copied && !segment.is_copying) {
        copy_segment(to_device, segment, segment.staged, segment.tensor);
      }
    }
  }
}

/// Whether any has ended.
bool StagedTransport::State::end_segments(Lane& lane) {
  bool has_ended = false;
  while (!lane.segments.empty()) {
    Segment& segment = lane.segments.front();
    if (!segment.moved.is_set() || !segment.is_copied) break;
    if (segment.buffer.n_bytes() > 0) {
      pool.give_back(std::move(segment.buffer));
      --lane.n_buffers;
    }
    lane.segments.pop_front();
    Message& message = lane.messages.front();
    if (++message.n_ended == message.n_segments) {
      message.done->set();
      lane.messages.pop_front();
    }
    has_ended = true;
  }
  return has_ended;
}

StagedTransport::StagedTransport(Transport& inner, Options options)
    : Transport(inner.loop()), inner_(inner), state_(std::make_unique<State>(inner, options)) {
  CHECK_CONTRACT(options.segment_bytes >= 8 && options.buffers > 0, "a segment has an element");
  inner.on_control(
      [this](int peer, const ControlHeader& header, std::span<const std::byte> payload) {
        deliver_control(peer, header, payload);
      });
  loop().add_poller(*this);
}

StagedTransport::~StagedTransport() {
  loop().remove_poller(*this);
  inner_.on_control(nullptr);
}

bool StagedTransport::poll() {
  return state_->poll();
}

std::int64_t StagedTransport::pinned_bytes() const {
  return state_->pool.n_bytes();
}

void StagedTransport::do_send(int peer, int tag, const Header& header, View tensor, Event& sent) {
  const MutView same(const_cast<void*>(tensor.data()), tensor.dtype(), tensor.shape(),
                     tensor.device());
  state_->begin_message(true, peer, tag, header, same, sent);
}

void StagedTransport::do_receive(int peer, int tag, const Header& expected, MutView tensor,
                                 Event& received) {
  state_->begin_message(false, peer, tag, expected, tensor, received);
}

void StagedTransport::do_send_control(int peer, const ControlHeader& header,
                                      std::span<const std::byte> payload) {
  pass_control(inner_, peer, header, payload);
}

}  // namespace llm
