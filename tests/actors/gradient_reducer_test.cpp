#include "actors/gradient_reducer.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <memory>

#include "src/comm/loopback/loopback.h"
#include "tests/actors/rig.h"
#include "tests/support/values.h"

using namespace llm;

namespace {

/// Reducers of all ranks over one loopback network; rank r's gradients of step s are values_of(r).
class Reducers {
 public:
  Reducers(int n_ranks, int n_lanes, std::int64_t bucket_elements, std::uint64_t seed,
           std::int64_t n_steps = 1, bool shared = false)
      : layout_(flat_layout({{100, 2}, {37, 1}, {300, 0}, {1, 0}}, bucket_elements, 32)),
        network_(loop_, n_ranks, seed),
        reduced_(static_cast<std::size_t>(n_ranks)) {
    std::vector<int> ranks;
    for (int r = 0; r < n_ranks; ++r) ranks.push_back(r);
    for (int r = 0; r < n_ranks; ++r) {
      groups_.emplace_back(network_.rank(r), ranks);
      pollers_.push_back(std::make_unique<QueuePoller>(queues_.emplace_back(), 1));
      loop_.add_poller(*pollers_.back());
      const std::int64_t n_bytes = layout_.n_elements * 4;
      gradients_.push_back(shared ? Storage::shared(n_bytes) : Storage(n_bytes));
      for (int lane = 0; lane < n_lanes; ++lane) {
        GradientReducer::Plan plan{lane, n_lanes, 16, 2 * n_lanes, 0, n_steps};
        if (shared) plan.shared = gradients_.back().handle();
        reducers_.push_back(std::make_unique<GradientReducer>(
            loop_, queues_.back(), plan, groups_.back(), layout_.buckets,
            gradients_.back().view(Dtype::f32, {layout_.n_elements}),
            GradientReducer::Outbox{reduced_[static_cast<std::size_t>(r)].port()}));
        loop_.spawn("reducer", reducers_.back()->run());
      }
    }
    n_lanes_ = n_lanes;
    refill();
  }
  ~Reducers() {
    loop_.drop_actors();
    for (const auto& poller : pollers_) loop_.remove_poller(*poller);
  }

  /// The backward of rank `rank` has completed `bucket`.
  void complete(int rank, std::int64_t step, std::int64_t bucket) {
    reducer(rank, bucket).grads_ready().put(step * n_buckets() + bucket, Ready{});
  }
  std::int64_t n_buckets() const { return static_cast<std::int64_t>(layout_.buckets.size()); }
  int n_ranks() const { return network_.n_ranks(); }
  Loop& loop() { return loop_; }
  const std::vector<std::int64_t>& reduced(int rank) const {
    return reduced_[static_cast<std::size_t>(rank)].keys;
  }
  /// Whether the bucket's elements are the tree's sum on `rank`.
  bool is_summed(int rank, std::int64_t bucket) const {
    const Range flat = layout_.buckets[static_cast<std::size_t>(bucket)].flat;
    for (std::int64_t i = flat.begin; i < flat.end; ++i) {
      const float expected = tree_sum(0, n_ranks(), i);
      const float* const values = this->values(rank);
      if (std::memcmp(values + i, &expected, sizeof(float)) != 0) return false;
    }
    return true;
  }
  void refill() {
    for (int r = 0; r < n_ranks(); ++r) {
      const std::vector<float> values = values_of(r, layout_.n_elements);
      std::copy(values.begin(), values.end(), this->values(r));
    }
  }

 private:
  float* values(int rank) const {
    const Storage& storage = gradients_[static_cast<std::size_t>(rank)];
    return storage.view(Dtype::f32, {layout_.n_elements}).as<float>();
  }
  GradientReducer& reducer(int rank, std::int64_t bucket) {
    return *reducers_[static_cast<std::size_t>(rank * n_lanes_ + bucket % n_lanes_)];
  }

  FlatLayout layout_;
  Loop loop_{Rig::options()};
  LoopbackNetwork network_;
  std::deque<Group> groups_;
  std::deque<Queue> queues_;
  std::vector<std::unique_ptr<QueuePoller>> pollers_;
  std::deque<Storage> gradients_;
  std::vector<Sent<Ready>> reduced_;
  std::vector<std::unique_ptr<GradientReducer>> reducers_;
  int n_lanes_ = 1;
};

struct Completion {
  int rank;
  std::int64_t bucket;
};

std::vector<Completion> all_completions(const Reducers& reducers) {
  std::vector<Completion> all;
  for (int rank = 0; rank < reducers.n_ranks(); ++rank) {
    for (std::int64_t b = 0; b < reducers.n_buckets(); ++b) all.push_back({rank, b});
  }
  return all;
}

}  // namespace

TEST_CASE("every bucket is the tree's sum on every rank, in whatever order buckets complete") {
  int n_runs = 0;
  for (const int n_ranks : {1, 2, 3, 4, 5, 8}) {
    for (const int n_lanes : {1, 2, 3}) {
      for (const std::int64_t bucket_elements : {1, 100, 100000}) {
        const auto seed = static_cast<std::uint64_t>(++n_runs);
        INFO(n_ranks << " ranks, " << n_lanes << " lanes, buckets of " << bucket_elements);
        const bool shared = GENERATE(false, true);
        Reducers reducers(n_ranks, n_lanes, bucket_elements, seed, 1, shared);
        for (const Completion& c : shuffled(all_completions(reducers), seed)) {
          reducers.complete(c.rank, 0, c.bucket);
          reducers.loop().run_until_idle();
        }
        reducers.loop().run();
        for (const Completion& c : all_completions(reducers)) {
          REQUIRE(reducers.is_summed(c.rank, c.bucket));
        }
        for (int rank = 0; rank < n_ranks; ++rank) {
          std::vector<std::int64_t> keys = reducers.reduced(rank);
          std::sort(keys.begin(), keys.end());
          REQUIRE(keys.size() == static_cast<std::size_t>(reducers.n_buckets()));
          for (std::size_t b = 0; b < keys.size(); ++b) {
            REQUIRE(keys[b] == static_cast<std::int64_t>(b));
          }
        }
      }
    }
  }
}

TEST_CASE("a bucket is reduced as soon as it is complete everywhere, whatever the others do") {
  const bool shared = GENERATE(false, true);
  Reducers reducers(4, 2, 1, 7, 1, shared);
  REQUIRE(reducers.n_buckets() > 4);
  for (int rank = 0; rank < 4; ++rank) reducers.complete(rank, 0, 0);
  REQUIRE_FALSE(reducers.loop().run_until_idle());
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(reducers.reduced(rank) == std::vector<std::int64_t>{0});
    CHECK(reducers.is_summed(rank, 0));
    CHECK_FALSE(reducers.is_summed(rank, 1));
  }
  // One rank is late with bucket 1: its lane waits, the other lane goes on with bucket 2.
  for (int rank = 0; rank < 3; ++rank) reducers.complete(rank, 0, 1);
  for (int rank = 0; rank < 4; ++rank) reducers.complete(rank, 0, 2);
  REQUIRE_FALSE(reducers.loop().run_until_idle());
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(reducers.reduced(rank) == std::vector<std::int64_t>{0, 2});
    CHECK_FALSE(reducers.is_summed(rank, 1));
  }
  reducers.complete(3, 0, 1);
  reducers.loop().run_until_idle();
  for (int rank = 0; rank < 4; ++rank) CHECK(reducers.is_summed(rank, 1));
}

TEST_CASE("steps follow each other on the same buckets and tags") {
  const bool shared = GENERATE(false, true);
  Reducers reducers(3, 2, 1, 3, 4, shared);
  for (std::int64_t step = 0; step < 4; ++step) {
    reducers.refill();
    for (const Completion& c : all_completions(reducers)) {
      reducers.complete(c.rank, step, c.bucket);
    }
    reducers.loop().run_until_idle();
    for (const Completion& c : all_completions(reducers)) {
      REQUIRE(reducers.is_summed(c.rank, c.bucket));
    }
    REQUIRE(reducers.reduced(0).size() ==
            static_cast<std::size_t>((step + 1) * reducers.n_buckets()));
  }
  CHECK(reducers.loop().all_done());
}

namespace {

/// Notes what it is given, and is done at once.
class NotedSums : public LibrarySums {
 public:
  Id make_id() override {
    ++n_made;
    return {std::byte{7}};
  }
  void begin(const Id& id) override { begun.push_back(id); }
  void put(LibrarySum sum, std::function<void()> done) override {
    given.push_back(std::move(sum));
    done();
  }
  int n_made = 0;
  std::vector<Id> begun;
  std::vector<LibrarySum> given;
};

}  // namespace

TEST_CASE("where a library sums, lanes number their buckets in the plan's order, by pieces") {
  constexpr int n_ranks = 2;
  constexpr int n_lanes = 3;
  constexpr std::int64_t n_steps = 2;
  FlatLayout layout = flat_layout({{100, 2}, {37, 1}, {300, 0}, {1, 0}}, 100, 32);
  layout.buckets[1].is_own = true;
  const auto n_buckets = static_cast<std::int64_t>(layout.buckets.size());
  std::vector<std::vector<std::int64_t>> cuts;
  for (const Bucket& bucket : layout.buckets) cuts.push_back({0, 16, bucket.flat.size()});
  Loop loop(Rig::options());
  LoopbackNetwork network(loop, n_ranks, 3);
  std::deque<Group> groups;
  std::deque<NotedSums> sums;
  std::deque<Sent<Ready>> reduced;
  std::deque<GradientReducer> reducers;
  Queue queue;
  const Storage gradients(layout.n_elements * 4);
  const MutView flat = gradients.view(Dtype::f32, {layout.n_elements});
  for (int r = 0; r < n_ranks; ++r) {
    groups.emplace_back(network.rank(r), std::vector<int>{0, 1});
    sums.emplace_back();
    reduced.emplace_back();
    for (int lane = 0; lane < n_lanes; ++lane) {
      GradientReducer::Plan plan{lane, n_lanes, 16, n_lanes, 5, 5 + n_steps};
      plan.piece_cuts = cuts;
      loop.spawn("reducer",
                 reducers
                     .emplace_back(loop, queue, plan, groups.back(), layout.buckets, flat,
                                   GradientReducer::Outbox{reduced.back().port()}, &sums.back())
                     .run());
    }
  }
  for (std::int64_t key = 5 * n_buckets; key < (5 + n_steps) * n_buckets; ++key) {
    for (int r = 0; r < n_ranks; ++r) {
      const auto lane = static_cast<std::size_t>(r * n_lanes + key % n_buckets % n_lanes);
      reducers[lane].grads_ready().put(key, Ready{});
    }
  }
  loop.run();
  for (std::size_t r = 0; r < n_ranks; ++r) {
    CHECK(reduced[r].keys.size() == static_cast<std::size_t>(n_steps * n_buckets));
    REQUIRE(sums[r].begun.size() == 1);
    CHECK(sums[r].begun[0] == LibrarySums::Id{std::byte{7}});
    CHECK(sums[r].n_made == (r == 0 ? 1 : 0));
    std::vector<LibrarySum>& given = sums[r].given;
    std::sort(given.begin(), given.end(),
              [](const auto& a, const auto& b) { return a.number < b.number; });
    REQUIRE(given.size() == static_cast<std::size_t>(n_steps * (n_buckets - 1)));
    for (std::size_t i = 0; i < given.size(); ++i) {
      const auto place = static_cast<std::int64_t>(i) % (n_buckets - 1);
      const auto bucket = static_cast<std::size_t>(place == 0 ? 0 : place + 1);
      CHECK(given[i].number == static_cast<std::int64_t>(i));
      CHECK(given[i].vector.data() == flat.as<float>() + layout.buckets[bucket].flat.begin);
      CHECK(given[i].cuts == cuts[bucket]);
    }
  }
}
