#include "src/data/token_samples.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "src/base/error.h"
#include "tests/data/files.h"

namespace llm::test {

namespace {

using Ids = std::vector<std::int32_t>;

std::shared_ptr<TokenStore> counting_store(const TempFolder& folder, std::int64_t n_tokens) {
  const Corpus corpus = corpus_of({folder.write("count.bin", bytes_of(counting(n_tokens)))});
  const TokenSet set =
      build_cache(corpus, ByteTokenizer(),
                  {.folder = folder / "cache", .vocab_size = 65536, .on_progress = {}});
  return std::make_shared<TokenStore>(set, 65536);
}

/// Fetches one sample of counting data, checks that it is one, and returns which.
std::int64_t sample_number(SampleSource& source, std::int64_t position) {
  const auto n = static_cast<std::size_t>(source.seq_len());
  Ids tokens(n);
  Ids labels(n);
  source.fetch(position, {.tokens = tokens.data(), .labels = labels.data()});
  for (std::size_t i = 0; i < n; ++i) {
    REQUIRE(tokens[i] == tokens[0] + static_cast<std::int32_t>(i));
    REQUIRE(labels[i] == tokens[i] + 1);
  }
  REQUIRE(tokens[0] % source.seq_len() == 0);
  return tokens[0] / source.seq_len();
}

}  // namespace

TEST_CASE(
    "any number of ranks together sees every sample once an epoch, in the order of one rank") {
  const TempFolder folder;
  const std::int64_t n_samples = 103;
  const auto store = counting_store(folder, n_samples * 8 + 5);  // 4 tokens are left over
  REQUIRE(count_samples(store->n_tokens(), 8) == n_samples);
  const std::int64_t global_batch = 12;
  std::vector<std::int64_t> serial;
  for (const std::int64_t n_ranks : {1, 2, 3, 4, 6, 12}) {
    const std::int64_t n_positions = 3 * n_samples / global_batch * global_batch;
    std::vector<std::int64_t> seen(static_cast<std::size_t>(n_positions));
    for (std::int64_t rank = 0; rank < n_ranks; ++rank) {
      TokenSamples source(store, {.seq_len = 8, .samples = {0, n_samples}, .seed = 9});
      const std::int64_t n_own = global_batch / n_ranks;
      for (std::int64_t step = 0; step < n_positions / global_batch; ++step) {
        for (std::int64_t i = 0; i < n_own; ++i) {
          const std::int64_t position = step * global_batch + rank * n_own + i;
          seen[static_cast<std::size_t>(position)] = sample_number(source, position);
        }
      }
    }
    for (std::int64_t epoch = 0; (epoch + 1) * n_samples <= n_positions; ++epoch) {
      std::vector<std::int64_t> samples(seen.begin() + epoch * n_samples,
                                        seen.begin() + (epoch + 1) * n_samples);
      std::sort(samples.begin(), samples.end());
      for (std::int64_t i = 0; i < n_samples; ++i) {
        REQUIRE(samples[static_cast<std::size_t>(i)] == i);
      }
    }
    if (n_ranks == 1) serial = seen;
    CHECK(seen == serial);
  }
}

TEST_CASE("every token but the first is a label exactly once") {
  const TempFolder folder;
  const auto store = counting_store(folder, 61);
  TokenSamples source(store, {.seq_len = 6, .samples = {0, 10}, .shuffle = false});
  Ids labels(60);
  fetch_batch(source, {0, 10}, {.tokens = nullptr, .labels = labels.data()});
  for (std::int32_t i = 0; i < 60; ++i) CHECK(labels[static_cast<std::size_t>(i)] == i + 1);
}

TEST_CASE("a resumed run fetches what an uninterrupted one fetches") {
  const TempFolder folder;
  const auto store = counting_store(folder, 64 * 4 + 1);
  const TokenSamples::Config config{.seq_len = 4, .samples = {0, 64}, .seed = 1};
  TokenSamples whole(store, config);
  for (const std::int64_t stop : {0, 1, 20, 63, 64, 65, 100}) {
    TokenSamples killed(store, config);
    for (std::int64_t p = 0; p < stop; ++p) sample_number(killed, p);
    TokenSamples resumed(store, config);
    resumed.restore(killed.state());
    for (std::int64_t p = stop; p < 150; ++p) {
      REQUIRE(sample_number(resumed, p) == sample_number(whole, p));
    }
  }
}

TEST_CASE("a checkpoint of other samples is refused with what differs") {
  const TempFolder folder;
  const auto store = counting_store(folder, 101);
  const TokenSamples::Config config{.seq_len = 4, .samples = {0, 20}, .seed = 1};
  const std::string state = TokenSamples(store, config).state();
  const auto refusal = [&](std::shared_ptr<TokenStore> data, const TokenSamples::Config& other,
                           const std::string& text) {
    return message_of<DataError>([&] { TokenSamples(std::move(data), other).restore(text); });
  };
  CHECK(refusal(store, config, state) == "nothing thrown");
  auto other = config;
  other.seed = 2;
  CHECK(has(refusal(store, other, state),
            "training.seed was 1 when the checkpoint was saved and is 2 now"));
  other = config;
  other.seq_len = 5;
  CHECK(has(refusal(store, other, state), "data.max_seq_len was 4"));
  other = config;
  other.samples = {0, 19};
  CHECK(has(refusal(store, other, state), "the number of samples was 20"));
  const TempFolder elsewhere;
  CHECK(refusal(counting_store(elsewhere, 101), config, state) == "nothing thrown");  // moved
  CHECK(has(refusal(counting_store(folder, 102), config, state), "the data files are not those"));
  CHECK(has(refusal(store, config, "{\"kind\": \"stream\", \"source\": {}, \"place\": {}}"),
            "is of kind stream, this run's of kind tokens"));
  for (const char* text : {"", "{", "[]", "{\"kind\": 1}"}) {
    CHECK(has(refusal(store, config, text), "data position cannot be read"));
  }
}

TEST_CASE("data of T tokens is refused with the T + 1 that one sample needs") {
  CHECK(count_samples(9, 8) == 1);
  CHECK(count_samples(16, 8) == 1);
  CHECK(count_samples(17, 8) == 2);
  CHECK(has(message_of<DataError>([] { count_samples(8, 8); }),
            "the data has 8 tokens, but one sample of data.max_seq_len 8 needs 9"));
  CHECK(has(message_of<DataError>([] { count_samples(0, 8); }), "has 0 tokens"));
}

TEST_CASE("an id above the vocabulary is refused when it is fetched, with file and place") {
  const TempFolder folder;
  const std::string path = folder.write("a.bin", bytes_of(counting(100)));
  const TokenSet set =
      build_cache(corpus_of({path}), ByteTokenizer(),
                  {.folder = folder / "cache", .vocab_size = 100, .on_progress = {}});
  TokenSamples source(std::make_shared<TokenStore>(set, 90),
                      {.seq_len = 9, .samples = {0, 11}, .shuffle = false});
  for (std::int64_t p = 0; p < 9; ++p) sample_number(source, p);
  CHECK(has(message_of<DataError>([&] { sample_number(source, 9); }),
            path + ": token 90 has id 90, but model.vocab_size is 90"));
}

TEST_CASE("no token is a label in training and in validation") {
  const SampleSplit split = split_samples(105, 0.1);
  CHECK(split.train == Range{0, 95});
  CHECK(split.validation == Range{95, 105});
  CHECK(split.note.empty());
  const TempFolder folder;
  const auto store = counting_store(folder, 105 * 4 + 1);
  std::vector<int> n_label(106 * 4);
  for (const Range& range : {split.train, split.validation}) {
    TokenSamples source(store, {.seq_len = 4, .samples = range});
    Ids labels(static_cast<std::size_t>(range.size()) * 4);
    fetch_batch(source, {0, range.size()}, {.tokens = nullptr, .labels = labels.data()});
    for (const std::int32_t label : labels) ++n_label[static_cast<std::size_t>(label)];
  }
  for (std::size_t token = 1; token <= 105 * 4; ++token) CHECK(n_label[token] == 1);
}

TEST_CASE("a split with an empty side trains on everything and says why") {
  CHECK(split_samples(9, 0.1).train == Range{0, 9});
  CHECK(split_samples(9, 0.1).validation.empty());
  CHECK(has(split_samples(9, 0.1).note, "no validation: a fraction 0.1 of 9 samples"));
  CHECK(has(split_samples(9, 0).note, "no validation: the validation fraction is 0"));
  CHECK(split_samples(2, 0.5).validation == Range{1, 2});
  CHECK_THROWS_AS(split_samples(9, 1), ConfigError);
  CHECK_THROWS_AS(split_samples(9, -0.1), ConfigError);
  CHECK_THROWS_AS(split_samples(9, std::nan("")), ConfigError);
}

TEST_CASE("one validation pass holds each sample once over any number of ranks and batches") {
  const TempFolder folder;
  const std::int64_t n = 21;
  const auto store = counting_store(folder, n * 4 + 1);
  for (const std::int64_t n_ranks : {1, 2, 3, 8}) {
    TokenSamples source(store, {.seq_len = 4, .samples = {0, n}, .shuffle = false});
    const std::int64_t batch = 8;
    std::int64_t sum = 0;
    std::int64_t n_valid = 0;
    for (std::int64_t begin = 0; begin < n; begin += batch * n_ranks) {
      for (std::int64_t rank = 0; rank < n_ranks; ++rank) {
        Ids tokens(batch * 4, 7);
        Ids labels(batch * 4, 7);
        const std::int64_t first = begin + rank * batch;
        fetch_batch_once(source, {first, first + batch}, -100,
                         {.tokens = tokens.data(), .labels = labels.data()});
        for (std::size_t i = 0; i < labels.size(); ++i) {
          if (labels[i] == -100) {
            CHECK(tokens[i] == 0);
          } else {
            sum += labels[i];
            ++n_valid;
          }
        }
      }
    }
    CHECK(n_valid == n * 4);
    CHECK(sum == n * 4 * (n * 4 + 1) / 2);
  }
}

}  // namespace llm::test
