#include "schedules/learning_rate.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <numbers>
#include <vector>

#include "src/base/error.h"

using namespace llm;

namespace {

std::vector<double> rates(const LrSchedule& schedule, std::int64_t first = 0) {
  std::vector<double> all;
  for (std::int64_t t = first; t < schedule.n_steps; ++t) {
    all.push_back(learning_rate(schedule, t));
  }
  return all;
}

}  // namespace

TEST_CASE("warm-up rises by equal parts, its first step trains and its last has the peak") {
  for (const LrShape shape : {LrShape::cosine, LrShape::linear, LrShape::constant, LrShape::wsd}) {
    const LrSchedule schedule{shape, 8e-3, 0.1, 4, 100, 10};
    CHECK(learning_rate(schedule, 0) == Approx(2e-3).epsilon(1e-15));
    CHECK(learning_rate(schedule, 1) == Approx(4e-3).epsilon(1e-15));
    CHECK(learning_rate(schedule, 2) == Approx(6e-3).epsilon(1e-15));
    CHECK(learning_rate(schedule, 3) == 8e-3);
    CHECK(learning_rate(schedule, 4) == 8e-3);
  }
}

TEST_CASE("without warm-up the first step has the peak") {
  for (const LrShape shape : {LrShape::cosine, LrShape::linear, LrShape::constant, LrShape::wsd}) {
    CHECK(learning_rate({shape, 3e-4, 0.1, 0, 50, 5}, 0) == 3e-4);
  }
}

TEST_CASE("the last step has exactly the minimum, and so has every step after it") {
  for (const LrShape shape : {LrShape::cosine, LrShape::linear, LrShape::wsd}) {
    for (const std::int64_t warmup : {0, 1, 10}) {
      for (const double ratio : {0.0, 0.1, 1.0 / 3}) {
        const LrSchedule schedule{shape, 1e-3, ratio, warmup, 101, 7};
        CHECK(learning_rate(schedule, 100) == 1e-3 * ratio);
        CHECK(learning_rate(schedule, 101) == 1e-3 * ratio);
        CHECK(learning_rate(schedule, 1000000) == 1e-3 * ratio);
      }
    }
  }
}

TEST_CASE("cosine and linear have their closed forms at every step") {
  const double peak = 6e-4, floor = 6e-5;
  for (std::int64_t t = 20; t < 200; ++t) {
    const double u = static_cast<double>(t - 20) / 179;
    const double cosine = floor + 0.5 * (1 + std::cos(std::numbers::pi * u)) * (peak - floor);
    CHECK(learning_rate({LrShape::cosine, peak, 0.1, 20, 200}, t) == Approx(cosine).epsilon(1e-13));
    const double linear = floor + (1 - u) * (peak - floor);
    CHECK(learning_rate({LrShape::linear, peak, 0.1, 20, 200}, t) == Approx(linear).epsilon(1e-13));
  }
  CHECK(learning_rate({LrShape::cosine, 1, 0, 0, 101}, 50) == Approx(0.5).epsilon(1e-15));
  CHECK(learning_rate({LrShape::cosine, 1, 0.2, 0, 101}, 50) == Approx(0.6).epsilon(1e-15));
}

TEST_CASE("constant keeps the peak; wsd keeps it until decay_steps before the last") {
  const LrSchedule constant{LrShape::constant, 2e-3, 0.1, 5, 50, 0};
  for (std::int64_t t = 5; t < 60; ++t) CHECK(learning_rate(constant, t) == 2e-3);
  const LrSchedule wsd{LrShape::wsd, 1, 0, 5, 101, 20};
  for (std::int64_t t = 4; t <= 80; ++t) CHECK(learning_rate(wsd, t) == 1);
  CHECK(learning_rate(wsd, 81) == Approx(0.95).epsilon(1e-14));
  CHECK(learning_rate(wsd, 90) == Approx(0.5).epsilon(1e-14));
  CHECK(learning_rate(wsd, 100) == 0);
}

TEST_CASE("rates never rise after the warm-up and stay between minimum and peak") {
  for (const LrShape shape : {LrShape::cosine, LrShape::linear, LrShape::constant, LrShape::wsd}) {
    for (const std::int64_t n_steps : {1, 2, 3, 10, 97}) {
      for (const std::int64_t warmup : {0, 1, 2, 9, 200}) {
        for (const std::int64_t decay : {0, 1, 30, 500}) {
          const std::vector<double> all = rates({shape, 1e-3, 0.1, warmup, n_steps, decay});
          for (std::size_t t = 0; t < all.size(); ++t) {
            REQUIRE(all[t] > 0);
            REQUIRE(all[t] <= 1e-3);
            const bool after = static_cast<std::int64_t>(t) >= std::max<std::int64_t>(1, warmup);
            if (after) REQUIRE(all[t] <= all[t - 1]);
          }
        }
      }
    }
  }
}

TEST_CASE("a run that begins in the middle has the same doubles") {
  for (const LrShape shape : {LrShape::cosine, LrShape::linear, LrShape::wsd}) {
    const LrSchedule schedule{shape, 3e-4, 0.1, 10, 101, 30};
    const std::vector<double> straight = rates(schedule);
    for (const std::int64_t first : {1, 9, 10, 99, 100}) {
      const std::vector<double> resumed = rates(schedule, first);
      CHECK(std::equal(resumed.begin(), resumed.end(), straight.begin() + first));
    }
  }
}

TEST_CASE("a run that is all warm-up ends at the peak or below, and steps below 0 are refused") {
  CHECK(learning_rate({LrShape::cosine, 1, 0.1, 10, 10}, 9) == 1);
  CHECK(learning_rate({LrShape::cosine, 1, 0.1, 20, 10}, 9) == 0.5);
  CHECK_THROWS_AS(learning_rate({}, -1), ContractBroken);
}
