#include "src/model/cached_decoder.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "src/base/error.h"
#include "src/base/philox.h"
#include "tensor/thread_pool.h"
#include "tests/model/configs.h"
#include "tests/model/whole_model.h"

namespace llm {
namespace {

TestBatch some_tokens(const ModelConfig& config, std::int64_t n) {
  TestBatch batch{.seq_len = n, .tokens = {}, .labels = {}, .training = false};
  for (std::int64_t i = 0; i < n; ++i) {
    const PhiloxBlock drawn = philox_at(7, static_cast<std::uint64_t>(i));
    batch.tokens.push_back(
        static_cast<std::int32_t>(drawn[0] % static_cast<std::uint32_t>(config.vocab_size)));
  }
  return batch;
}

std::vector<Values> values_of(const WholeModel& model) {
  std::vector<Values> values;
  const Range layers = all_layers(model.decoder.config());
  for (std::int64_t layer = layers.begin; layer < layers.end; ++layer) {
    values.push_back(model.layer(layer));
  }
  return values;
}

double distance(View row, const float* expected) {
  double worst = 0;
  for (std::int64_t i = 0; i < row.n_elements(); ++i) {
    worst = std::max(worst, std::abs(double{row.as<float>()[i]} - double{expected[i]}));
  }
  return worst;
}

}  // namespace

TEST_CASE("text token by token has the logits of the whole sequence at once") {
  for (const auto& [name, config] : test_configs()) {
    WholeModel model(config);
    model.start(3);
    const std::int64_t n = config.max_seq_len;
    const TestBatch batch = some_tokens(config, n);
    const std::vector<float> expected = model.logits(batch);
    const auto row = [&](std::int64_t t) { return expected.data() + t * config.vocab_size; };
    for (const std::int64_t n_prompt : {std::int64_t{1}, std::int64_t{5}, n}) {
      INFO(name << ", a prompt of " << n_prompt);
      Queue queue;
      CachedDecoder cached(model.decoder, values_of(model), n, queue);
      const std::span<const std::int32_t> tokens(batch.tokens);
      CHECK(distance(cached.read(tokens.first(static_cast<std::size_t>(n_prompt))),
                     row(n_prompt - 1)) < 1e-5);
      for (std::int64_t t = n_prompt; t < n; ++t) {
        REQUIRE(distance(cached.read(tokens.subspan(static_cast<std::size_t>(t), 1)), row(t)) <
                1e-5);
      }
      CHECK(cached.n_read() == n);
    }
  }
}

TEST_CASE("a sequence may go on by several tokens, and another one may follow") {
  const ModelConfig config = tiny_llama();
  WholeModel model(config);
  model.start(3);
  const TestBatch batch = some_tokens(config, 9);
  const std::vector<float> expected = model.logits(batch);
  Queue queue;
  CachedDecoder cached(model.decoder, values_of(model), 10, queue);
  const std::span<const std::int32_t> tokens(batch.tokens);
  cached.read(tokens.first(2));
  CHECK(distance(cached.read(tokens.subspan(2)), expected.data() + 8 * config.vocab_size) < 1e-5);
  CHECK_THROWS_AS(cached.read(tokens.first(2)), ContractBroken);  // 11 tokens
  cached.restart();
  const View first = cached.read(tokens.first(4));
  CHECK(distance(first, expected.data() + 3 * config.vocab_size) < 1e-5);
}

TEST_CASE("threads change no bit of a token's logits") {
  ModelConfig config = tiny_llama();
  config.vocab_size = 5000;
  config.hidden_size = 512;
  config.intermediate_size = 1024;
  WholeModel model(config);
  model.start(3);
  const TestBatch batch = some_tokens(config, 6);
  std::vector<std::vector<float>> logits;
  for (const int n_threads : {1, 3}) {
    ThreadPool pool(n_threads);
    Queue queue(Device::cpu, &pool);
    CachedDecoder cached(model.decoder, values_of(model), 6, queue);
    const std::span<const std::int32_t> tokens(batch.tokens);
    cached.read(tokens.first(3));
    const View row = cached.read(tokens.subspan(3));
    logits.emplace_back(row.as<float>(), row.as<float>() + row.n_elements());
  }
  CHECK(logits[0] == logits[1]);
}

}  // namespace llm
