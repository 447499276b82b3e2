#include "actors/boundary.h"

#include <string>

#include "src/rt/event.h"

namespace llm {
namespace {

std::string rank_name(int rank) {
  return "rank " + std::to_string(rank);
}

}  // namespace

BufferRing::BufferRing(Loop& loop, Size size)
    : size_(size),
      storage_(size.n_bytes(), size.device),
      returned_(loop, WaitName("buffer given back")) {}

Task<Leased> BufferRing::take(std::int64_t n_rows) {
  CHECK_CONTRACT(n_rows <= size_.n_rows, "a tensor fits its buffer");
  const std::int64_t k = n_taken_++;
  if (k >= size_.n_buffers) co_await returned_.take(k - size_.n_buffers);
  const std::int64_t begin = k % size_.n_buffers * (size_.n_bytes() / size_.n_buffers);
  const Leased leased(storage_.view(size_.dtype, {n_rows, size_.width}, begin),
                      Lease(returned_, k));
  co_return leased;
}

TensorReceiver::TensorReceiver(Transport& transport, Boundary boundary, BufferRing::Size size)
    : transport_(transport),
      boundary_(boundary),
      wait_(name_of(boundary.kind), rank_name(boundary.peer)),
      ring_(transport.loop(), size),
      expected_(transport.loop(), WaitName("expected " + name_of(boundary.kind), "stage")) {}

Task<> TensorReceiver::run() {
  for (std::int64_t n = 0;; ++n) {
    const ExpectedTensors expected = co_await expected_.take(n);
    for (std::size_t i = 0; i < expected.n_rows->size(); ++i) {
      const auto index = static_cast<std::int32_t>(i);
      const Leased leased = co_await ring_.take((*expected.n_rows)[i]);
      const Header header(boundary_.kind, expected.step, expected.first_index + index,
                          boundary_.stage);
      Event received(transport_.loop(), wait_, expected.first_key + index);
      transport_.receive(boundary_.peer, boundary_.tag, header, leased.tensor, received);
      co_await received;
      expected.arrived->put(expected.first_key + index, leased);
    }
  }
}

TensorSender::TensorSender(Transport& transport, Boundary boundary)
    : transport_(transport),
      boundary_(boundary),
      wait_(name_of(boundary.kind) + " sent", rank_name(boundary.peer)),
      outgoing_(transport.loop(), WaitName("outgoing " + name_of(boundary.kind), "stage"),
                std::size_t{1} << 20),
      all_sent_(transport.loop(), wait_) {}

Task<> TensorSender::all_sent() {
  if (n_sent_ == n_given_) co_return;
  is_waited_for_ = true;
  co_await all_sent_.take(n_given_);
  is_waited_for_ = false;
}

void TensorSender::send(Outgoing tensor) {
  outgoing_.put(n_given_++, std::move(tensor));
}

Task<> TensorSender::run() {
  for (std::int64_t n = 0;; ++n) {
    const Outgoing out = co_await outgoing_.take(n);
    const Header header(boundary_.kind, out.step, out.index, boundary_.stage);
    Event sent(transport_.loop(), wait_, out.index);
    transport_.send(boundary_.peer, boundary_.tag, header, out.leased.tensor, sent);
    co_await sent;
    out.leased.lease.give_back();
    if (++n_sent_ == n_given_ && is_waited_for_) all_sent_.put(n_sent_, Ready{});
  }
}

}  // namespace llm
