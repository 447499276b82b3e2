#include "actors/expert_exchange.h"

#include <algorithm>
#include <deque>
#include <string>

#include "src/base/range.h"
#include "src/rt/event.h"
#include "tensor/ops/elementwise.h"

namespace llm {
namespace {

const WaitName wait_copied{"rows that stay"};

/// Rows [begin, begin + n) of a matrix.
template <typename V>
V rows_of(const V& matrix, std::int64_t begin, std::int64_t n) {
  const std::int64_t width = matrix.shape()[1];
  return part(matrix, begin * width, {n * width});
}

}  // namespace

ExpertExchange::ExpertExchange(Group& group, Queue& copies, int tag)
    : QueuedCalls(group.transport.loop(), WaitName("rows for experts", "stage"), "rows",
                  "rows of experts"),
      group_(group),
      copies_(copies),
      tag_(tag) {}

void ExpertExchange::share_begins(Queue& queue, View begins, MutView bounds) {
  CHECK_CONTRACT(
      bounds.shape()[0] == size() && begins.n_elements() == size() * (bounds.shape()[1] - 1) + 1,
      "the members have equal parts of the experts");
  enqueue(queue, {Kind::begins, begins, {}, begins, bounds});
}

void ExpertExchange::to_experts(Queue& queue, View begins, View bounds, View mine, MutView theirs) {
  enqueue(queue, {Kind::to_experts, begins, bounds, mine, theirs});
}

void ExpertExchange::from_experts(Queue& queue, View begins, View bounds, View theirs,
                                  MutView mine) {
  enqueue(queue, {Kind::from_experts, begins, bounds, theirs, mine});
}

void ExpertExchange::enqueue(Queue& queue, const Call& call) {
  QueuedCalls::enqueue(queue, [this, call](std::int64_t key) { calls_.emplace(key, call); });
}

ExpertExchange::Parts ExpertExchange::parts_of(const Call& call) const {
  return call.kind == Kind::begins ? parts_of_begins(call) : parts_of_rows(call);
}

ExpertExchange::Parts ExpertExchange::parts_of_begins(const Call& call) const {
  const std::int64_t width = call.into.shape()[1];
  Parts parts;
  for (std::int64_t member = 0; member < size(); ++member) {
    parts.sends.push_back(part(call.begins, member * (width - 1), {width}));
    parts.receives.push_back(rows_of(call.into, member, 1));
  }
  return parts;
}

ExpertExchange::Parts ExpertExchange::parts_of_rows(const Call& call) const {
  const std::int64_t width = call.bounds.shape()[1];
  const bool is_forth = call.kind == Kind::to_experts;
  Parts parts;
  std::int64_t first_theirs = 0;
  for (std::int64_t member = 0; member < size(); ++member) {
    const auto* const begin = call.begins.as<std::int32_t>() + member * (width - 1);
    const auto* const bound = call.bounds.as<std::int32_t>() + member * width;
    const Range mine{begin[0], begin[width - 1]};
    const std::int64_t n_theirs = bound[width - 1] - bound[0];
    if (is_forth) {
      parts.sends.push_back(rows_of(call.from, mine.begin, mine.size()));
      parts.receives.push_back(rows_of(call.into, first_theirs, n_theirs));
    } else {
      parts.sends.push_back(rows_of(call.from, first_theirs, n_theirs));
      parts.receives.push_back(rows_of(call.into, mine.begin, mine.size()));
    }
    first_theirs += n_theirs;
  }
  return parts;
}

void ExpertExchange::read_back(View x, std::vector<std::int32_t>& into) {
  copies_.read_back("begins_read", x, [&into](View read) {
    into.assign(read.as<std::int32_t>(), read.as<std::int32_t>() + read.n_elements());
  });
}

Task<> ExpertExchange::carry_out(std::int64_t key) {
  Call call = calls_.extract(key).mapped();
  // What says how many rows there are is read here.
  std::vector<std::int32_t> begins;
  std::vector<std::int32_t> bounds;
  if (copies_.device() != Device::cpu && call.kind != Kind::begins) {
    Event read(loop_, wait_copied, key);
    read_back(call.begins, begins);
    read_back(call.bounds, bounds);
    copies_.notify([&read] { read.set(); });
    co_await read;
    call.begins = View(begins.data(), call.begins.shape());
    call.bounds = View(bounds.data(), call.bounds.shape());
  }
  const Parts parts = parts_of(call);
  const MessageKind kind =
      call.kind == Kind::begins ? MessageKind::expert_begins : MessageKind::expert_rows;
  const Header header(kind, key, 0, 0);
  std::deque<WaitName> names;  // deques: what is pointed at does not move
  std::deque<Event> events;
  for (int i = 1; i < size(); ++i) {
    const int member = (group_.index + i) % size();
    const auto m = static_cast<std::size_t>(member);
    const int rank = group_.rank_of(member);
    const std::string peer = "rank " + std::to_string(rank);
    Event& received = events.emplace_back(loop_, names.emplace_back("rows for experts", peer), key);
    group_.transport.receive(rank, tag_, header, parts.receives[m], received);
    Event& sent = events.emplace_back(loop_, names.emplace_back("rows sent", peer), key);
    group_.transport.send(rank, tag_, header, parts.sends[m], sent);
  }
  const auto own = static_cast<std::size_t>(group_.index);
  Event copied(loop_, wait_copied, key);
  copy(copies_, parts.sends[own], parts.receives[own]);
  copies_.notify([&copied] { copied.set(); });
  co_await copied;
  for (Event& event : events) co_await event;
}

}  // namespace llm
