#include "src/train/data_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include "src/base/error.h"
#include "src/base/philox.h"
#include "src/config/checks.h"
#include "src/data/bpe_tokenizer.h"
#include "src/data/corpus.h"
#include "src/data/sft_samples.h"
#include "src/data/stream_samples.h"
#include "src/data/token_cache.h"
#include "src/data/token_file.h"
#include "src/data/token_reader.h"
#include "src/data/token_samples.h"
#include "tensor/ops/cross_entropy.h"

namespace llm {
namespace {

Corpus list_training(const DataConfig& data) {
  return find_corpus({data.dataset_path, data.text_column, "data.dataset_path"});
}

Corpus list_validation(const DataConfig& data) {
  return find_corpus({data.val_dataset_path, data.text_column, "data.val_dataset_path"});
}

/// Token files bring their own ids: those are checked one by one, and no tokenizer is asked.
bool names_token_files(const DataConfig& data) {
  return std::all_of(data.dataset_path.begin(), data.dataset_path.end(),
                     [](const std::string& path) { return path.ends_with(".bin"); });
}

std::unique_ptr<Tokenizer> make_tokenizer(const DataConfig& data, const DataSetup& setup) {
  if (data.tokenizer_type == "byte") return std::make_unique<ByteTokenizer>();
  TokenizerFiles files;
  if (setup.rank == 0) files = read_tokenizer_files(*data.tokenizer_path);
  for (std::string* text : {&files.path, &files.json, &files.config}) {
    *text = setup.broadcast(std::move(*text));
  }
  return std::make_unique<BpeTokenizer>(files);
}

/// A run of one rank that says nothing.
DataSetup quietly_alone() {
  return {.task = "",
          .cache_folder = "",
          .rank = 0,
          .broadcast = [](std::string text) { return text; },
          .say = nullptr};
}

/// Tokens of text of this size, as the beginning of the corpus has them.
std::int64_t estimate_tokens(const Corpus& corpus, const LoadedConfig& loaded) {
  constexpr std::int64_t n_bytes_read = 1 << 20;
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(loaded.config.data, quietly_alone());
  check_vocabulary(loaded, tokenizer->n_ids());
  TokenReader reader(corpus, *tokenizer, loaded.config.model.vocab_size);
  std::vector<std::int32_t> tokens;
  while (reader.n_bytes_done() < n_bytes_read && reader.next(tokens)) {
  }
  const double share = static_cast<double>(tokens.size()) /
                       static_cast<double>(std::max<std::int64_t>(reader.n_bytes_done(), 1));
  return static_cast<std::int64_t>(share * static_cast<double>(corpus.n_bytes()));
}

/// Says how far a long reading is, ten times; small corpora are done before anyone could read it.
std::function<void(std::int64_t, std::int64_t)> tenths(const DataSetup& setup) {
  return
      [&setup, next_percent = std::int64_t{10}](std::int64_t n_done, std::int64_t n_bytes) mutable {
        if (n_bytes < (64 << 20) || 100 * n_done < next_percent * n_bytes) return;
        setup.say(fmt::format("tokenizing: {} % of {} MB", next_percent, n_bytes >> 20));
        next_percent += 10;
      };
}

std::shared_ptr<TokenStore> open_store(Corpus (*list)(const DataConfig&),
                                       const LoadedConfig& loaded, const Tokenizer& tokenizer,
                                       const DataSetup& setup) {
  std::string json;
  if (setup.rank == 0) {
    const Corpus corpus = list(loaded.config.data);
    CacheConfig cache;
    cache.folder = setup.cache_folder;
    cache.vocab_size = loaded.config.model.vocab_size;
    cache.on_progress = tenths(setup);
    json = to_json(build_cache(corpus, tokenizer, cache));
  }
  const TokenSet set = token_set_from_json(setup.broadcast(json));
  return std::make_shared<TokenStore>(set, loaded.config.model.vocab_size);
}

std::unique_ptr<SampleSource> whole_in_order(std::shared_ptr<TokenStore> store,
                                             std::int64_t seq_len, Range samples) {
  return std::make_unique<TokenSamples>(
      std::move(store),
      TokenSamples::Config{.seq_len = seq_len, .samples = samples, .seed = 0, .shuffle = false});
}

void open_cached(DataSet& data, const LoadedConfig& loaded, const DataSetup& setup) {
  const Config& config = loaded.config;
  const std::int64_t seq_len = config.data.max_seq_len;
  const std::shared_ptr<TokenStore> store =
      open_store(list_training, loaded, *data.tokenizer, setup);
  const std::int64_t n = count_samples(store->n_tokens(), seq_len);
  const bool splits = config.training.run_validation && config.data.val_dataset_path.empty();
  const SampleSplit split = split_samples(n, splits ? config.training.val_fraction : 0);
  data.train = std::make_unique<TokenSamples>(
      store, TokenSamples::Config{.seq_len = seq_len,
                                  .samples = split.train,
                                  .seed = static_cast<std::uint64_t>(config.training.seed),
                                  .shuffle = config.data.shuffle});
  data.n_epoch_samples = split.train.size();
  data.summary = fmt::format("{} tokens, {} training samples of {}", store->n_tokens(),
                             split.train.size(), seq_len);
  if (splits && !split.validation.empty()) {
    data.validation = whole_in_order(store, seq_len, split.validation);
    data.n_validation_samples = split.validation.size();
  }
  if (splits && !split.note.empty()) data.summary += "; " + split.note;
}

void open_stream(DataSet& data, const LoadedConfig& loaded, const DataSetup& setup) {
  const Config& config = loaded.config;
  std::string json;
  if (setup.rank == 0) json = to_json(list_training(config.data));
  const Corpus corpus = corpus_from_json(setup.broadcast(json));
  data.summary =
      fmt::format("streaming {} files, {} MB", corpus.files.size(), corpus.n_bytes() >> 20);
  data.train = std::make_unique<StreamSamples>(
      corpus, *data.tokenizer,
      StreamSamples::Config{.seq_len = config.data.max_seq_len,
                            .vocab_size = config.model.vocab_size,
                            .shuffle_buffer = config.data.shuffle_buffer,
                            .seed = static_cast<std::uint64_t>(config.training.seed),
                            .shuffle = config.data.shuffle});
}

/// Rank 0 reads every example once; the others get to know where they are.
std::shared_ptr<SftReader> open_examples(const Corpus& corpus, const LoadedConfig& loaded,
                                         const Tokenizer& tokenizer, const std::string& field,
                                         const DataSetup& setup) {
  return std::make_shared<SftReader>(
      index_examples(corpus, tokenizer,
                     {.seq_len = loaded.config.data.max_seq_len,
                      .field = field,
                      .on_progress = setup.say ? tenths(setup) : nullptr}),
      tokenizer);
}

std::shared_ptr<SftReader> share_examples(Corpus (*list)(const DataConfig&), const char* field,
                                          const LoadedConfig& loaded, const Tokenizer& tokenizer,
                                          const DataSetup& setup) {
  if (setup.rank != 0) {
    return std::make_shared<SftReader>(sft_index_from_bytes(setup.broadcast("")), tokenizer);
  }
  auto reader = open_examples(list(loaded.config.data), loaded, tokenizer, field, setup);
  setup.broadcast(to_bytes(reader->index()));
  return reader;
}

/// Training examples, and the last ones for validation where no other files are for that.
SampleSplit split_examples(const Config& config, const SftIndex& index) {
  const bool splits = config.training.run_validation && config.data.val_dataset_path.empty();
  SampleSplit split = split_samples(static_cast<std::int64_t>(index.examples.size()),
                                    splits ? config.training.val_fraction : 0);
  if (!splits) split.note.clear();
  return split;
}

SftSamples::Config sft_config(const Config& config, Range examples) {
  return {.examples = examples,
          .ignored_label = ignored_label,
          .packing = config.data.packing,
          .seed = static_cast<std::uint64_t>(config.training.seed),
          .shuffle = config.data.shuffle};
}

SftSamples::Config in_order(SftSamples::Config config) {
  config.shuffle = false;
  return config;
}

std::string counts_text(const SftIndex& index) {
  std::string text = fmt::format("{} examples", index.examples.size());
  if (index.n_skipped > 0) {
    text += fmt::format(", {} more without an answer skipped", index.n_skipped);
  }
  if (index.n_truncated > 0) text += fmt::format(", {} cut at their end", index.n_truncated);
  return text;
}

void set_validation(DataSet& data, std::unique_ptr<SampleSource> source) {
  data.n_validation_samples = source->n_samples();
  data.validation = std::move(source);
}

/// The text at the end of a run answers the first example.
void set_sample(DataSet& data, SftReader& reader) {
  const SftTokens first = reader.read(0);
  const auto n_prompt = static_cast<std::size_t>(
      std::find(first.is_answer.begin(), first.is_answer.end(), true) - first.is_answer.begin());
  data.sample_prompt.clear();
  data.tokenizer->decode(std::span(first.tokens).first(n_prompt), data.sample_prompt);
  data.sample_end_id = data.tokenizer->end_id();
}

void open_sft(DataSet& data, const LoadedConfig& loaded, const DataSetup& setup) {
  const Config& config = loaded.config;
  const auto reader =
      share_examples(list_training, "data.dataset_path", loaded, *data.tokenizer, setup);
  const SampleSplit split = split_examples(config, reader->index());
  data.train = std::make_unique<SftSamples>(reader, sft_config(config, split.train));
  set_sample(data, *reader);
  data.n_epoch_samples = data.train->n_samples();
  data.summary = fmt::format("{}; {} training samples of {}{}", counts_text(reader->index()),
                             data.n_epoch_samples, config.data.max_seq_len,
                             config.data.packing ? ", packed" : "");
  if (!split.validation.empty()) {
    set_validation(
        data, std::make_unique<SftSamples>(reader, in_order(sft_config(config, split.validation))));
  }
  if (!split.note.empty()) data.summary += "; " + split.note;
  if (!config.training.run_validation || config.data.val_dataset_path.empty()) return;
  const auto held_out =
      share_examples(list_validation, "data.val_dataset_path", loaded, *data.tokenizer, setup);
  const auto n = static_cast<std::int64_t>(held_out->index().examples.size());
  data.summary += "; validation: " + counts_text(held_out->index());
  set_validation(data,
                 std::make_unique<SftSamples>(held_out, in_order(sft_config(config, {0, n}))));
}

void open_held_out(DataSet& data, const LoadedConfig& loaded, const DataSetup& setup) {
  const std::int64_t seq_len = loaded.config.data.max_seq_len;
  const std::shared_ptr<TokenStore> store =
      open_store(list_validation, loaded, *data.tokenizer, setup);
  data.n_validation_samples = count_samples(store->n_tokens(), seq_len);
  data.validation = whole_in_order(store, seq_len, {0, data.n_validation_samples});
}

std::int64_t count_sft_samples(const LoadedConfig& loaded) {
  const DataSetup alone = quietly_alone();
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(loaded.config.data, alone);
  check_vocabulary(loaded, tokenizer->n_ids());
  const auto reader = open_examples(list_training(loaded.config.data), loaded, *tokenizer,
                                    "data.dataset_path", alone);
  const SampleSplit split = split_examples(loaded.config, reader->index());
  return SftSamples(reader, sft_config(loaded.config, split.train)).n_samples();
}

}  // namespace

DataSet open_data(const LoadedConfig& loaded, const DataSetup& setup) {
  const Config& config = loaded.config;
  DataSet data;
  data.tokenizer = make_tokenizer(config.data, setup);
  if (!names_token_files(config.data)) check_vocabulary(loaded, data.tokenizer->n_ids());
  if (setup.task == "sft") {
    open_sft(data, loaded, setup);
  } else {
    if (setup.task == "stream_lm") {
      open_stream(data, loaded, setup);
    } else {
      open_cached(data, loaded, setup);
    }
    if (config.training.run_validation && !config.data.val_dataset_path.empty()) {
      open_held_out(data, loaded, setup);
    }
  }
  if (data.n_validation_samples > 0) {
    data.summary += fmt::format(", {} validation samples", data.n_validation_samples);
  }
  return data;
}

std::int64_t estimate_samples(const LoadedConfig& loaded, const std::string& task) {
  const Config& config = loaded.config;
  if (config.data.dataset_path.empty()) return 0;
  if (task == "sft") return count_sft_samples(loaded);
  const Corpus corpus = list_training(config.data);
  std::int64_t n_tokens = 0;
  if (!corpus.is_tokens()) {
    n_tokens =
        config.data.tokenizer_type == "byte" ? corpus.n_bytes() : estimate_tokens(corpus, loaded);
  } else {
    for (const SourceFile& file : corpus.files) n_tokens += TokenFile(file.path).n_tokens();
  }
  const std::int64_t n = count_samples(n_tokens, config.data.max_seq_len);
  const bool splits = config.training.run_validation && config.data.val_dataset_path.empty();
  return split_samples(n, splits ? config.training.val_fraction : 0).train.size();
}

}  // namespace llm
