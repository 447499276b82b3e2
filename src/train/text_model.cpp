#include "src/train/text_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "src/base/error.h"
#include "src/checkpoint/reader.h"
#include "src/config/load.h"
#include "src/data/bpe_tokenizer.h"
#include "src/data/token_reader.h"
#include "src/io/hf_config.h"
#include "src/io/hf_folder.h"
#include "src/model/cached_decoder.h"
#include "src/train/settings_from_config.h"

namespace llm {
namespace {
namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

bool has_hf_weights(const fs::path& folder) {
  return is_file(folder / "model.safetensors") || is_file(folder / "model.safetensors.index.json");
}

/// Other tools' too, or a sharded checkpoint's parts, which its manifest names.
bool has_weights(const fs::path& folder) {
  return has_hf_weights(folder) || is_file(folder / "manifest.json");
}

/// The checkpoint of the last step in `folder`; empty where there is none. Names that end in .tmp
/// are unfinished.
fs::path last_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  fs::path last;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const std::string digits = name.starts_with("step-") ? name.substr(5) : "";
    if (digits.empty() || digits.find_first_not_of("0123456789") != std::string::npos) continue;
    const auto number = [](const fs::path& path) { return path.filename().string().substr(5); };
    const std::string before = last.empty() ? "" : number(last);
    if (digits.size() > before.size() || (digits.size() == before.size() && digits > before)) {
      last = entry.path();
    }
  }
  return last;
}

/// A file of the weights' folder, or of the run that it is a checkpoint of; empty where neither is.
fs::path find_beside(const fs::path& weights, const char* name) {
  fs::path folder = fs::absolute(weights).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();
  const bool is_checkpoint = folder.filename().string().starts_with("step-");
  for (int level = 0; level <= (is_checkpoint ? 2 : 0); ++level, folder = folder.parent_path()) {
    if (is_file(folder / name)) return folder / name;
  }
  return {};
}

std::optional<Config> run_config(const fs::path& weights) {
  const fs::path path = find_beside(weights, "config.yaml");
  if (path.empty()) return std::nullopt;
  ConfigSources sources;
  sources.yaml_name = path.string();
  sources.yaml_text = read_config_file(path);
  return load_config(sources).config;
}

bool trained_on_token_files(const DataConfig& data) {
  return std::all_of(data.dataset_path.begin(), data.dataset_path.end(),
                     [](const std::string& path) { return path.ends_with(".bin"); });
}

std::unique_ptr<Tokenizer> find_tokenizer(const std::string& named, const fs::path& weights,
                                          const std::optional<Config>& run) {
  const auto read = [](const std::string& path) {
    return std::make_unique<BpeTokenizer>(read_tokenizer_files(path));
  };
  if (named == "byte") return std::make_unique<ByteTokenizer>();
  if (!named.empty()) return read(named);
  const fs::path beside = find_beside(weights, "tokenizer.json");
  if (!beside.empty()) return read(beside.string());
  if (!run || trained_on_token_files(run->data)) return nullptr;
  if (run->data.tokenizer_type == "byte") return std::make_unique<ByteTokenizer>();
  return read(*run->data.tokenizer_path);
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

fs::path find_weights(const fs::path& folder) {
  if (has_weights(folder)) return folder;
  fs::path checkpoint = last_checkpoint(folder);
  if (checkpoint.empty()) checkpoint = last_checkpoint(folder / "checkpoints");
  if (checkpoint.empty()) {
    throw FileError(fmt::format(
        "{}: has no model.safetensors, no model.safetensors.index.json and no checkpoint (step-N); "
        "name the folder of a model or of a run that has ended",
        folder.string()));
  }
  if (has_weights(checkpoint)) return checkpoint;
  throw FileError(
      fmt::format("{}: has no model.safetensors and no manifest.json; it is no whole "
                  "checkpoint: remove it, or name another folder",
                  checkpoint.string()));
}

TextModel::TextModel(const Config& config)
    : device_(config.device), pool_(config.n_threads), queue_(config.device, &pool_) {
  const fs::path weights = find_weights(config.folder);
  const std::optional<llm::Config> run = run_config(weights);
  if (is_file(weights / "config.json") || !run) {
    const HfConfig read = read_hf_config(weights);
    decoder_.emplace(read.model, device_);
    for (const std::int64_t id : read.ids.end) {
      end_ids_.push_back(static_cast<std::int32_t>(id));
    }
  } else {
    decoder_.emplace(decoder_config(run->model), device_);
  }
  if (run) trained_seq_len_ = run->data.max_seq_len;
  tokenizer_ = find_tokenizer(config.tokenizer, weights, run);
  if (tokenizer_) {
    if (tokenizer_->n_ids() > this->config().vocab_size) {
      throw ConfigError(fmt::format(
          "the tokenizer {} has {} ids, but the model of {} has a vocabulary of {}; "
          "name its own with --tokenizer",
          tokenizer_->name(), tokenizer_->n_ids(), weights.string(), this->config().vocab_size));
    }
    end_ids_.push_back(tokenizer_->end_id());
  }
  read_weights(weights);
}

void TextModel::read_weights(const fs::path& weights) {
  const std::vector<ParameterSpec> specs = parameters(config());
  const auto read_each = [&](const auto& read) {
    model_.emplace(config());
    for (std::size_t i = 0; i < specs.size(); ++i) {
      read(specs[i], Range{0, specs[i].n_elements()}, model_->parameter(i));
    }
    values_ = model_->values(device_);
  };
  std::string kind = "a sharded checkpoint";
  if (has_hf_weights(weights)) {
    const HfWeights stored(weights, config());
    read_each([&](const auto&... what) { stored.read(what...); });
    kind = stored.summary();
  } else {
    const CheckpointReader stored(weights);
    stored.check_model(config());
    read_each([&](const ParameterSpec& spec, Range elements, MutView values) {
      stored.read(spec, TensorPart::weight, elements, values);
    });
  }
  summary_ = fmt::format("{}: {} parameters, {}", weights.string(), n_parameters(config()), kind);
}

const Tokenizer& TextModel::tokenizer() const {
  if (tokenizer_) return *tokenizer_;
  throw ConfigError(
      "the model's folder has no tokenizer.json; name one with --tokenizer FILE, or --tokenizer "
      "byte for a model of bytes");
}

std::vector<std::int32_t> TextModel::prompt_ids(std::string_view prompt) const {
  std::vector<std::int32_t> ids;
  tokenizer().encode_with_special(prompt, ids);
  if (ids.empty()) ids.push_back(tokenizer().end_id());  // stands before every document
  const auto n = static_cast<std::int64_t>(ids.size());
  if (n >= config().max_seq_len) {
    throw ConfigError(
        fmt::format("the prompt has {} tokens, but the model has {} positions: none "
                    "is left for an answer; shorten the prompt",
                    n, config().max_seq_len));
  }
  return ids;
}

TextModel::Written TextModel::write(std::string_view prompt, const Writing& options,
                                    const std::function<void(std::string_view)>& take) {
  const std::vector<std::int32_t> ids = prompt_ids(prompt);
  Written written;
  written.n_prompt = static_cast<std::int64_t>(ids.size());
  // Where positions are so many, those that can be used decide how much is kept.
  const std::int64_t capacity =
      std::min(config().max_seq_len, written.n_prompt + options.max_new_tokens);
  CachedDecoder decoder(*decoder_, values_, capacity, queue_);
  auto begin = std::chrono::steady_clock::now();
  View logits = decoder.read(ids);
  written.prompt_seconds = seconds_since(begin);
  begin = std::chrono::steady_clock::now();
  // Ids that the tokenizer does not have (a padded vocabulary) are never drawn.
  const auto n_ids = static_cast<std::size_t>(std::min(config().vocab_size, tokenizer().n_ids()));
  while (written.n_new < options.max_new_tokens) {
    const std::vector<Candidate> choice =
        candidates(std::span(logits.as<float>(), n_ids), options.sampling);
    const std::int32_t id = draw(choice, uniform_draw(options.seed, written.n_new));
    if (std::count(end_ids_.begin(), end_ids_.end(), id) > 0) {
      written.end = End::end_token;
      break;
    }
    ++written.n_new;
    std::string bytes;
    tokenizer().decode({&id, 1}, bytes);
    take(bytes);
    if (written.n_new == options.max_new_tokens) break;
    if (decoder.n_read() == config().max_seq_len) {
      written.end = End::positions;
      break;
    }
    logits = decoder.read({&id, 1});
  }
  written.seconds = seconds_since(begin);
  return written;
}

double TextModel::Loss::perplexity() const {
  return std::exp(loss);
}

TextModel::Loss TextModel::evaluate(const Corpus& corpus, std::int64_t seq_len) {
  const ByteTokenizer none;  // token files ask no tokenizer
  TokenReader reader(corpus, corpus.is_tokens() ? none : tokenizer(), config().vocab_size);
  Loss loss;
  loss.seq_len = seq_len;
  const std::int64_t rows = std::max<std::int64_t>(1, 2048 / seq_len);
  std::vector<std::int32_t> tokens;
  std::size_t begin = 0;  // of the next sample
  while (reader.next(tokens)) {
    const auto n_batch = static_cast<std::size_t>(rows * seq_len + 1);
    while (tokens.size() - begin >= n_batch) {
      add_losses(std::span(tokens).subspan(begin, n_batch), seq_len, loss);
      begin += n_batch - 1;
    }
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(begin));
    begin = 0;
  }
  const auto n_rest = static_cast<std::int64_t>(tokens.size());
  if (loss.n_tokens == 0 && n_rest <= seq_len) {
    if (n_rest < 2) {
      throw DataError(fmt::format("--eval: the text has {} tokens, and a loss needs 2", n_rest));
    }
    loss.seq_len = n_rest - 1;
  }
  const std::int64_t n_whole = (n_rest - 1) / loss.seq_len;
  if (n_rest > 0 && n_whole > 0) {
    const auto n_used = static_cast<std::size_t>(n_whole * loss.seq_len + 1);
    add_losses(std::span(tokens).first(n_used), loss.seq_len, loss);
  }
  loss.n_left_out = n_rest > 0 ? n_rest - 1 - n_whole * loss.seq_len : 0;
  loss.loss /= static_cast<double>(loss.n_tokens);
  return loss;
}

/// Adds the sum of losses of whole samples, which share the tokens at their ends.
void TextModel::add_losses(std::span<const std::int32_t> samples, std::int64_t seq_len,
                           Loss& loss) {
  const auto n = static_cast<std::int64_t>(samples.size()) - 1;
  const std::int64_t batch = n / seq_len;
  const std::int64_t n_scratch = scratch_bytes(config(), all_layers(config()), batch, seq_len);
  if (scratch_.n_bytes() < n_scratch) scratch_ = Arena(n_scratch, queue_.device());
  const Storage hidden(n * config().hidden_size * 4, queue_.device());
  const MutView x = hidden.view(Dtype::f32, {n, config().hidden_size});
  const Pass pass{
      .queue = queue_, .scratch = scratch_, .batch = batch, .seq_len = seq_len, .training = false};
  LossSum sum;
  const Upload ids(queue_, View(samples.data(), {n + 1}));
  decoder_->embed(pass, values_.front(), part(ids.view(), 0, {n}), x);
  for (std::int64_t layer = 0; layer < config().n_layers; ++layer) {
    decoder_->block(pass, layer, values_[static_cast<std::size_t>(layer + 1)], x);
  }
  decoder_->head_loss(pass, values_.back(), x, part(ids.view(), 1, {n}), sum);
  queue_.finish();
  loss.loss += sum.sum;
  loss.n_tokens += sum.n_valid;
  loss.n_samples += batch;
}

}  // namespace llm
