#include "src/comm/library_sums.h"

#include <string>
#include <utility>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/base/philox.h"

namespace llm {
namespace {

const WaitName wait_summed{"library's sum"};
const WaitName wait_told{"announcement sent"};

/// What a member is about to sum.
struct Announcement {
  SumForm form{};
  std::int64_t n_elements = 0;
  std::uint64_t cuts = 0;  ///< a hash
  bool operator==(const Announcement&) const = default;
};
static_assert(sizeof(Announcement) == announcement_bytes);

Announcement announcement_of(const LibrarySum& sum) {
  Announcement own{form_of(sum), sum.vector.n_elements(), 0};
  for (const std::int64_t cut : sum.cuts) {
    own.cuts = mix_key(own.cuts, static_cast<std::uint64_t>(cut));
  }
  return own;
}

MutView view_of(Announcement& announcement) {
  return {&announcement, Dtype::u8, {announcement_bytes}};
}

std::string text_of(const Announcement& announcement) {
  const std::string n = std::to_string(announcement.n_elements) + " f32";
  if (announcement.form == SumForm::whole) return n + " for all";
  return fmt::format("{} in {}pieces {:08x}", n,
                     announcement.form == SumForm::equal_pieces ? "equal " : "",
                     announcement.cuts >> 32);
}

void check_same(const Announcement& own, const Announcement& other, const CollectiveId& id,
                int rank, int peer) {
  if (own == other) return;
  throw CommError(
      fmt::format("ranks would sum different vectors as bucket {} of step {}: rank {} [{}], rank "
                  "{} [{}]",
                  id.index, id.step, rank, text_of(own), peer, text_of(other)));
}

/// Once round r is done a member knows of the 2^(r + 1) - 1 before it, and that each has what the
/// one before it has. Whoever finds a difference goes no further, so nobody hears of all members.
Task<> agree(Group& group, CollectiveId id, const LibrarySum& sum) {
  Announcement own = announcement_of(sum);
  for (int round = 0; round < n_announcements(group.size()); ++round) {
    const int distance = 1 << round;
    const Header header(MessageKind::sum_announced, id.step, id.index, round);
    const int from = group.rank_of((group.index + group.size() - distance) % group.size());
    const int to = group.rank_of((group.index + distance) % group.size());
    const WaitName name("announced sum", "rank " + std::to_string(from));
    Announcement other;
    Event heard(group.transport.loop(), name, id.index);
    Event told(group.transport.loop(), wait_told, id.index);
    group.transport.receive(from, id.tag, header, view_of(other), heard);
    group.transport.send(to, id.tag, header, view_of(own), told);
    co_await heard;
    check_same(own, other, id, group.rank_of(group.index), from);
    co_await told;
  }
}

}  // namespace

int n_announcements(int n_ranks) {
  int n = 0;
  while ((1 << n) < n_ranks) ++n;
  return n;
}

SumForm form_of(const LibrarySum& sum) {
  if (sum.cuts.empty()) return SumForm::whole;
  const std::int64_t first = sum.cuts[1] - sum.cuts[0];
  for (std::size_t k = 1; k + 1 < sum.cuts.size(); ++k) {
    if (sum.cuts[k + 1] - sum.cuts[k] != first) return SumForm::pieces;
  }
  return SumForm::equal_pieces;
}

Task<> begin_sums(Group& group, CollectiveId id, LibrarySums& sums) {
  LibrarySums::Id made{};
  if (group.index == 0) made = sums.make_id();
  const std::vector<GatherRound> plan = broadcast_plan(group.index, group.size(), 0, sums_id_bytes);
  const MutView bytes(made.data(), Dtype::u8, {sums_id_bytes});
  co_await broadcast(group, plan, id, bytes);
  sums.begin(made);
}

Task<> sum_by_library(Group& group, LibrarySums& sums, CollectiveId id, LibrarySum sum) {
  co_await agree(group, id, sum);
  Event summed(group.transport.loop(), wait_summed, id.index);
  sums.put(std::move(sum), [&summed] { summed.set(); });
  co_await summed;
}

}  // namespace llm
