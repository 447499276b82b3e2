#include "schedules/loss_scale.h"

#include <catch2/catch.hpp>

using namespace llm;

TEST_CASE(
    "a loss scale halves on overflow, doubles after enough good steps, and keeps its bounds") {
  const LossScaleConfig config{
      .initial = 1024, .growth_interval = 3, .backoff = 0.5, .minimum = 256};
  LossScale scale{config.initial, 0};
  scale = scale.after(config, false).after(config, false);
  CHECK(scale.scale == 1024);
  scale = scale.after(config, false);
  CHECK(scale.scale == 2048);
  CHECK(scale.n_good_steps == 0);
  scale = scale.after(config, false).after(config, true);
  CHECK(scale.scale == 1024);
  CHECK(scale.n_good_steps == 0);  // an overflow starts the count anew
  CHECK_FALSE(scale.at_minimum(config));
  scale = scale.after(config, true).after(config, true).after(config, true);
  CHECK(scale.scale == 256);
  CHECK(scale.at_minimum(config));
  for (int i = 0; i < 1000; ++i) scale = scale.after(config, false);
  CHECK(scale.scale == 16777216);
}
