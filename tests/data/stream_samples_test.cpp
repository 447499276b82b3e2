#include "src/data/stream_samples.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

#include "src/base/error.h"
#include "src/data/token_samples.h"
#include "tests/data/files.h"

namespace llm::test {

namespace {

using Ids = std::vector<std::int32_t>;

/// The T + 1 tokens at `position`.
Ids sample_of(SampleSource& source, std::int64_t position) {
  const auto n = static_cast<std::size_t>(source.seq_len());
  Ids tokens(n);
  Ids labels(n);
  source.fetch(position, {.tokens = tokens.data(), .labels = labels.data()});
  for (std::size_t i = 0; i + 1 < n; ++i) REQUIRE(tokens[i + 1] == labels[i]);
  tokens.push_back(labels.back());
  return tokens;
}

std::vector<Ids> samples_of(SampleSource& source, Range positions) {
  std::vector<Ids> samples;
  for (std::int64_t p = positions.begin; p < positions.end; ++p) {
    samples.push_back(sample_of(source, p));
  }
  return samples;
}

/// Text, JSON lines and an empty file, in several pieces.
Corpus mixed_corpus(const TempFolder& folder) {
  std::string text;
  for (int i = 0; text.size() < 150'000; ++i) text += "line " + std::to_string(i) + "\n";
  std::string lines;
  for (int i = 0; i < 500; ++i) {
    lines += "{\"text\": \"document " + std::string(static_cast<std::size_t>(i * 31 % 200), 'd') +
             std::to_string(i) + "\"}\n";
  }
  return corpus_of({folder.write("a.txt", text), folder.write("b.jsonl", lines),
                    folder.write("c.txt", ""), folder.write("d.txt", "the end\r\n")});
}

StreamSamples::Config config_of(std::int64_t seq_len, std::int64_t shuffle_buffer) {
  return {.seq_len = seq_len,
          .vocab_size = 256,
          .shuffle_buffer = shuffle_buffer,
          .seed = 11,
          .shuffle = true};
}

const ByteTokenizer byte_tokenizer;

}  // namespace

TEST_CASE("a stream gives each epoch the samples that the cached corpus has") {
  const TempFolder folder;
  const Corpus corpus = mixed_corpus(folder);
  const TokenSet set = build_cache(
      corpus, byte_tokenizer, {.folder = folder / "cache", .vocab_size = 256, .on_progress = {}});
  const auto buffer = GENERATE(1, 2, 7, 64, 1000, 100'000);
  const std::int64_t n = count_samples(set.n_tokens, 64);
  TokenSamples cached(std::make_shared<TokenStore>(set, 256),
                      {.seq_len = 64, .samples = {0, n}, .shuffle = false});
  std::vector<Ids> expected = samples_of(cached, {0, n});
  StreamSamples in_order(
      corpus, byte_tokenizer,
      {.seq_len = 64, .vocab_size = 256, .shuffle_buffer = buffer, .shuffle = false});
  CHECK(samples_of(in_order, {0, n}) == expected);
  CHECK(samples_of(in_order, {n, 2 * n}) == expected);
  CHECK(in_order.n_samples() == n);

  StreamSamples shuffled(corpus, byte_tokenizer, config_of(64, buffer));
  std::vector<Ids> first = samples_of(shuffled, {0, n});
  std::vector<Ids> second = samples_of(shuffled, {n, 2 * n});
  CHECK((first == expected) == (buffer == 1));
  CHECK((first == second) == (buffer == 1));
  CHECK(shuffled.n_resident_max() <= buffer);
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  std::sort(expected.begin(), expected.end());
  CHECK(first == expected);
  CHECK(second == expected);
}

TEST_CASE("the buffer holds no more than its samples, however long the stream") {
  const TempFolder folder;
  const Corpus corpus = corpus_of({folder.write("a.bin", bytes_of(counting(60'001)))});
  StreamSamples source(corpus, byte_tokenizer,
                       {.seq_len = 6, .vocab_size = 65536, .shuffle_buffer = 100, .seed = 1});
  std::vector<int> n_seen(10'000);
  std::int64_t n_late = 0;
  for (std::int64_t p = 0; p < 10'000; ++p) {
    const std::int64_t sample = sample_of(source, p).front() / 6;
    ++n_seen[static_cast<std::size_t>(sample)];
    CHECK(std::abs(sample - p) < 100);
    n_late += std::abs(sample - p) > 50;
  }
  CHECK(source.n_resident_max() == 100);
  CHECK(n_late > 1500);  // a quarter is expected of a uniform shuffle
  CHECK(std::count(n_seen.begin(), n_seen.end(), 1) == 10'000);
}

TEST_CASE("every number of ranks takes the same samples from a stream") {
  const TempFolder folder;
  const Corpus corpus = mixed_corpus(folder);
  StreamSamples serial(corpus, byte_tokenizer, config_of(32, 50));
  const std::int64_t n_positions = 2400 * 6;  // more than an epoch
  const std::vector<Ids> expected = samples_of(serial, {0, n_positions});
  CHECK(serial.n_samples() < n_positions);
  for (const std::int64_t n_ranks : {2, 3, 4}) {
    for (std::int64_t rank = 0; rank < n_ranks; ++rank) {
      StreamSamples source(corpus, byte_tokenizer, config_of(32, 50));
      const std::int64_t n_own = 12 / n_ranks;
      for (std::int64_t step = 0; step < n_positions / 12; ++step) {
        for (std::int64_t i = 0; i < n_own; ++i) {
          const std::int64_t p = step * 12 + rank * n_own + i;
          REQUIRE(sample_of(source, p) == expected[static_cast<std::size_t>(p)]);
        }
      }
    }
  }
}

TEST_CASE("a killed stream goes on with the samples that would have followed") {
  const TempFolder folder;
  const Corpus corpus = mixed_corpus(folder);
  for (const std::int64_t buffer : {1, 3, 40, 5000}) {
    StreamSamples whole(corpus, byte_tokenizer, config_of(128, buffer));
    const std::int64_t n_positions = 4000;
    const std::vector<Ids> expected = samples_of(whole, {0, n_positions});
    const std::int64_t n = whole.n_samples();
    REQUIRE(n_positions > 2 * n);
    StreamSamples running(corpus, byte_tokenizer, config_of(128, buffer));
    std::int64_t fetched = 0;
    for (const std::int64_t stop :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{39}, std::int64_t{40}, std::int64_t{41},
          std::int64_t{777}, n - 1, n, n + 1, n + 500, 2 * n + 3}) {
      for (; fetched < stop; ++fetched) sample_of(running, fetched);
      StreamSamples resumed(corpus, byte_tokenizer, config_of(128, buffer));
      resumed.restore(running.state());
      const std::string again = resumed.state();
      CHECK(again == running.state());
      for (std::int64_t p = stop; p < std::min(stop + 300, n_positions); ++p) {
        REQUIRE(sample_of(resumed, p) == expected[static_cast<std::size_t>(p)]);
      }
      CHECK(resumed.n_resident_max() <= buffer);
    }
  }
}

TEST_CASE("a state saved by a rank that is behind serves one that is ahead") {
  const TempFolder folder;
  const Corpus corpus = mixed_corpus(folder);
  StreamSamples whole(corpus, byte_tokenizer, config_of(64, 16));
  const std::vector<Ids> expected = samples_of(whole, {0, 400});
  StreamSamples behind(corpus, byte_tokenizer, config_of(64, 16));
  sample_of(behind, 100);
  StreamSamples ahead(corpus, byte_tokenizer, config_of(64, 16));
  ahead.restore(behind.state());
  CHECK(sample_of(ahead, 399) == expected[399]);
}

TEST_CASE("a position may be asked for again, and an earlier one may not") {
  const TempFolder folder;
  StreamSamples source(mixed_corpus(folder), byte_tokenizer, config_of(64, 16));
  const Ids sample = sample_of(source, 5);
  CHECK(sample_of(source, 5) == sample);
  CHECK_THROWS_AS(sample_of(source, 4), ContractBroken);
  StreamSamples restored(mixed_corpus(folder), byte_tokenizer, config_of(64, 16));
  sample_of(source, 100);
  restored.restore(source.state());
  CHECK_THROWS_AS(sample_of(restored, 50), ContractBroken);
}

TEST_CASE("an epoch that ends with a full buffer loses and repeats nothing") {
  const TempFolder folder;
  for (const std::int64_t n : {1, 2, 8, 16, 17}) {
    const Corpus corpus = corpus_of({folder.write("a.bin", bytes_of(counting(n * 4 + 1)))});
    StreamSamples source(corpus, byte_tokenizer,
                         {.seq_len = 4, .vocab_size = 256, .shuffle_buffer = 8, .seed = 2});
    for (int epoch = 0; epoch < 4; ++epoch) {
      std::map<std::int32_t, int> seen;
      for (std::int64_t i = 0; i < n; ++i) ++seen[sample_of(source, epoch * n + i).front()];
      CHECK(static_cast<std::int64_t>(seen.size()) == n);
    }
    CHECK(source.n_samples() == n);
  }
}

TEST_CASE("a stream of T tokens is refused with the T + 1 that one sample needs") {
  const TempFolder folder;
  const Corpus corpus = corpus_of({folder.write("a.txt", "12345678")});
  StreamSamples source(corpus, byte_tokenizer, config_of(8, 4));
  CHECK(has(message_of<DataError>([&] { sample_of(source, 0); }),
            "the data has 8 tokens, but one sample of data.max_seq_len 8 needs 9"));
  StreamSamples shorter(corpus, byte_tokenizer, config_of(7, 4));
  CHECK(text_of(sample_of(shorter, 0)) == "12345678");
}

TEST_CASE("bad data in a stream is refused by file and line, a small vocabulary at once") {
  const TempFolder folder;
  const std::string path = folder.write("a.jsonl", "{\"text\": \"0123456789\"}\nbroken\n");
  StreamSamples source(corpus_of({path}), byte_tokenizer, config_of(4, 1));
  CHECK(text_of(sample_of(source, 0)) == "01234");
  CHECK(has(message_of<DataError>([&] { samples_of(source, {1, 4}); }),
            path + ":2: is not valid JSON"));
  auto config = config_of(4, 1);
  config.vocab_size = 100;
  CHECK(has(
      message_of<ConfigError>([&] { StreamSamples(corpus_of({path}), byte_tokenizer, config); }),
      "model.vocab_size: 100 is below"));
}

TEST_CASE("a stream's checkpoint of other data or settings is refused with what differs") {
  const TempFolder folder;
  const Corpus corpus = corpus_of({folder.write("a.txt", std::string(1000, 'x'))});
  const std::string state = StreamSamples(corpus, byte_tokenizer, config_of(8, 4)).state();
  const auto refusal = [&](const Corpus& data, const StreamSamples::Config& config,
                           const std::string& text) {
    return message_of<DataError>(
        [&] { StreamSamples(data, byte_tokenizer, config).restore(text); });
  };
  CHECK(refusal(corpus, config_of(8, 4), state) == "nothing thrown");
  CHECK(has(refusal(corpus, config_of(8, 5), state), "data.shuffle_buffer was 4"));
  CHECK(has(refusal(corpus, config_of(9, 4), state), "data.max_seq_len was 8"));
  const Corpus longer = corpus_of({folder.write("a.txt", std::string(1001, 'x'))});
  CHECK(has(refusal(longer, config_of(8, 4), state), "the data files are not those"));
  std::string no_place = state;
  no_place.replace(no_place.find("\"byte\""), 6, "\"bite\"");
  CHECK(has(refusal(longer, config_of(8, 4), no_place), "the data files are not those"));
  folder.write("a.txt", std::string(1000, 'x'));
  CHECK(has(refusal(corpus, config_of(8, 4), no_place), "data position has no \"byte\""));
}

}  // namespace llm::test
