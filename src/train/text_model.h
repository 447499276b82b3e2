#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/data/corpus.h"
#include "src/data/tokenizer.h"
#include "src/model/decoder.h"
#include "src/train/sampling.h"
#include "src/train/whole_model.h"
#include "tensor/queue.h"
#include "tensor/thread_pool.h"
#include "tensor/upload.h"

namespace llm {

/// The folder of weights that a name means: itself where it has a model.safetensors (or an index of
/// shards) or a checkpoint's manifest; otherwise that of the last step among its checkpoints
/// (step-NNNNNNNN, in it or in its folder checkpoints). Throws FileError naming what was looked
/// for.
std::filesystem::path find_weights(const std::filesystem::path& folder);

/// A model that writes text and measures it, in one process, f32: from a Hugging Face folder, from
/// what a run has written, or from one of its checkpoints.
class TextModel {
 public:
  struct Config {
    std::filesystem::path folder;
    /// A tokenizer.json, a folder with one, or "byte". Empty: tokenizer.json beside the weights or
    /// in the run's folder, or what the run's config.yaml says.
    std::string tokenizer;
    int n_threads = 1;
    Device device = Device::cpu;
  };
  /// Reads config.json (where there is none, the run's config.yaml), weights and tokenizer. Throws
  /// FileError, DataError or ConfigError naming what is wrong, before weights are read where that
  /// can be known.
  explicit TextModel(const Config& config);

  const ModelConfig& config() const { return decoder_->config(); }
  /// Throws ConfigError with the way out where there is none.
  const Tokenizer& tokenizer() const;
  /// "hf_llama: 12345 parameters, 15 tensors, F32, in 1 file".
  const std::string& summary() const { return summary_; }
  /// What the run's config.yaml says data.max_seq_len was; 0 where there is none.
  std::int64_t trained_seq_len() const { return trained_seq_len_; }

  enum class End : std::uint8_t { end_token, max_new_tokens, positions };
  struct Written {
    std::int64_t n_prompt = 0;
    std::int64_t n_new = 0;
    End end = End::max_new_tokens;
    double prompt_seconds = 0;
    double seconds = 0;  ///< of the new tokens after the first
  };
  struct Writing {
    std::int64_t max_new_tokens = 200;
    Sampling sampling;
    std::uint64_t seed = 42;
  };
  /// Continues `prompt` (spellings of special tokens are those tokens; an empty one begins a
  /// document) until the end token, max_new_tokens or the model's last position. `take` gets each
  /// token's bytes as it comes, which may be parts of characters. A function of weights, prompt and
  /// options: threads and timing change nothing. ConfigError (both numbers) where the prompt leaves
  /// no position.
  Written write(std::string_view prompt, const Writing& options,
                const std::function<void(std::string_view)>& take);

  struct Loss {
    double loss = 0;  ///< mean over tokens
    std::int64_t n_tokens = 0;
    std::int64_t n_samples = 0;
    std::int64_t seq_len = 0;
    std::int64_t n_left_out = 0;  ///< tokens after the last whole sample
    double perplexity() const;
  };
  /// The loss of a corpus as a run's validation has it: cut into samples of seq_len tokens (stride
  /// seq_len), every token but the first a label once. A corpus shorter than a sample is one
  /// sample. DataError below two tokens.
  Loss evaluate(const Corpus& corpus, std::int64_t seq_len);

 private:
  void read_weights(const std::filesystem::path& weights);
  std::vector<std::int32_t> prompt_ids(std::string_view prompt) const;
  void add_losses(std::span<const std::int32_t> samples, std::int64_t seq_len, Loss& loss);

  const Device device_;
  std::vector<std::int32_t> end_ids_;
  std::int64_t trained_seq_len_ = 0;
  std::string summary_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<Decoder> decoder_;
  std::optional<WholeModel> model_;
  std::vector<Values> values_;  // by layer + 1
  ThreadPool pool_;
  Queue queue_;
  Arena scratch_;  // of evaluate
};

}  // namespace llm
