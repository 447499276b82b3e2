#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <fmt/format.h>
#include "src/comm/control.h"
#include "tests/mpi/rank_loop.h"

namespace llm {
namespace {

/// Byte `i` of message `index` from one rank to another.
std::uint8_t byte_of(int from, int to, int index, std::int64_t i) {
  return static_cast<std::uint8_t>(i * 31 + (i >> 8) + from * 7 + to * 13 + index * 101);
}

void fill(std::vector<std::uint8_t>& bytes, int from, int to, int index) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = byte_of(from, to, index, static_cast<std::int64_t>(i));
  }
}

bool is_filled(const std::vector<std::uint8_t>& bytes, int from, int to, int index) {
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != byte_of(from, to, index, static_cast<std::int64_t>(i))) return false;
  }
  return true;
}

template <typename Bytes>
auto view_of(Bytes& bytes) {
  return MutView(bytes.data(), {static_cast<std::int64_t>(bytes.size())});
}

/// Tensors to and from every rank, this one included: `sizes` bytes, one after the other on one
/// tag.
struct Exchange {
  explicit Exchange(const std::vector<std::int64_t>& sizes_) : sizes(sizes_) {}
  std::vector<std::int64_t> sizes;
  std::deque<std::vector<std::uint8_t>> sent_bytes;
  std::deque<std::vector<std::uint8_t>> received_bytes;
  std::deque<Event> sent;
  std::deque<Event> received;
};

void post_receives(Transport& transport, Exchange& exchange, int tag) {
  for (int peer = 0; peer < transport.n_ranks(); ++peer) {
    for (std::size_t n = 0; n < exchange.sizes.size(); ++n) {
      auto& bytes =
          exchange.received_bytes.emplace_back(static_cast<std::size_t>(exchange.sizes[n]));
      auto& event = exchange.received.emplace_back(transport.loop(), wait_received, peer);
      transport.receive(peer, tag, Header(MessageKind::user, 1, static_cast<int>(n), peer),
                        view_of(bytes), event);
    }
  }
}

void post_sends(Transport& transport, Exchange& exchange, int tag) {
  for (int peer = 0; peer < transport.n_ranks(); ++peer) {
    for (std::size_t n = 0; n < exchange.sizes.size(); ++n) {
      const int index = static_cast<int>(n);
      auto& bytes = exchange.sent_bytes.emplace_back(static_cast<std::size_t>(exchange.sizes[n]));
      fill(bytes, transport.rank(), peer, index);
      auto& event = exchange.sent.emplace_back(transport.loop(), wait_sent, peer);
      transport.send(peer, tag, Header(MessageKind::user, 1, index, transport.rank()),
                     view_of(bytes), event);
    }
  }
}

Task<> wait_for(Exchange& exchange) {
  for (Event& event : exchange.received) co_await event;
  for (Event& event : exchange.sent) co_await event;
}

void check_arrived(RankTests& tests, const Exchange& exchange) {
  std::size_t message = 0;
  for (int peer = 0; peer < tests.n_ranks(); ++peer) {
    for (std::size_t n = 0; n < exchange.sizes.size(); ++n, ++message) {
      tests.check(
          is_filled(exchange.received_bytes[message], peer, tests.rank(), static_cast<int>(n)),
          fmt::format("message {} of {} bytes from rank {} is what was sent", n, exchange.sizes[n],
                      peer));
    }
  }
}

void exchange_all(RankTests& tests, const std::vector<std::int64_t>& sizes,
                  std::int64_t piece_bytes) {
  RankLoop here(tests, piece_bytes);
  Exchange exchange(sizes);
  post_receives(here.transport, exchange, 5);
  post_sends(here.transport, exchange, 5);
  here.loop.spawn("exchange", wait_for(exchange));
  here.loop.run();
  check_arrived(tests, exchange);
  std::int64_t n_bytes = 0;
  for (const std::int64_t size : sizes) n_bytes += size * tests.n_ranks();
  tests.check(here.transport.counts().bytes_sent == n_bytes, "the counts are the bytes sent");
}

void all_sizes(RankTests& tests) {
  exchange_all(tests, {0, 1, 2, 3, 5, 8, 31, 32, 33, 1023, 4064, 4095, 4096, 4097, 65535, 65537},
               std::int64_t{1} << 30);
  exchange_all(tests, {1 << 20, (1 << 22) + 1, tests.largest_bytes() - 3}, std::int64_t{1} << 30);
}

void pieces_of_one_mebibyte(RankTests& tests) {
  const std::int64_t piece = 1 << 20;
  exchange_all(tests, {0, 1, piece - 1, piece, piece + 1, 2 * piece, 7 * piece + 13, 1}, piece);
}

void pieces_of_few_bytes(RankTests& tests) {
  exchange_all(tests, {0, 1, 6, 7, 8, 700, 701}, 7);
}

void many_on_one_tag(RankTests& tests) {
  std::vector<std::int64_t> sizes;
  for (int n = 0; n < 1000; ++n) sizes.push_back(n * 37 % 9000);
  exchange_all(tests, sizes, std::int64_t{1} << 30);
}

/// Receives are posted in the opposite order of the sends, each on a tag of its own.
void tags_are_apart(RankTests& tests) {
  RankLoop here(tests);
  constexpr int n_tags = 40;
  const int highest = Transport::n_tags - 1;
  std::deque<Exchange> exchanges;
  for (int n = 0; n < n_tags; ++n) exchanges.emplace_back(std::vector<std::int64_t>{n * 999});
  for (int n = 0; n < n_tags; ++n) {
    post_sends(here.transport, exchanges[static_cast<std::size_t>(n)], highest - n);
  }
  for (int n = n_tags - 1; n >= 0; --n) {
    auto& exchange = exchanges[static_cast<std::size_t>(n)];
    post_receives(here.transport, exchange, highest - n);
    here.loop.spawn("exchange", wait_for(exchange));
  }
  here.loop.run();
  for (const Exchange& exchange : exchanges) check_arrived(tests, exchange);
}

Task<> receive_after_everyone_sent(Transport& transport, Exchange& exchange, Inbox<int>& sent_by) {
  for (int peer = 0; peer < transport.n_ranks(); ++peer) co_await sent_by.take(peer);
  post_receives(transport, exchange, 9);
  for (Event& event : exchange.received) co_await event;
  for (Event& event : exchange.sent) co_await event;
}

void late_receives(RankTests& tests) {
  RankLoop here(tests);
  ControlPlane control(here.transport);
  Inbox<int> sent_by(here.loop, WaitName("sent_by"));
  control.connect(1, sent_by);
  Exchange exchange({0, 100, 5000, 1 << 20});
  post_sends(here.transport, exchange, 9);
  for (int peer = 0; peer < tests.n_ranks(); ++peer) {
    control.port<int>(peer, 1)(tests.rank(), 0);
  }
  here.loop.spawn("late", receive_after_everyone_sent(here.transport, exchange, sent_by));
  here.loop.run();
  check_arrived(tests, exchange);
}

}  // namespace

void test_point_to_point(RankTests& tests) {
  tests.run(fmt::format("tensors of 0 bytes to {} MiB go from everyone to everyone",
                        tests.largest_bytes() >> 20),
            all_sizes);
  tests.run("a tensor above the piece limit arrives whole", pieces_of_one_mebibyte);
  tests.run("a tensor in hundreds of pieces arrives whole", pieces_of_few_bytes);
  tests.run("1000 messages on one tag keep their order", many_on_one_tag);
  tests.run("tags up to 32767 are apart, whatever the order of posting", tags_are_apart);
  tests.run("a receive that is posted late finds its message", late_receives);
}

}  // namespace llm
