#pragma once
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/base/range.h"
#include "src/io/safetensors.h"
#include "src/model/parameters.h"
#include "tensor/view.h"

namespace llm {

/// The weights in a folder as Hugging Face writes them: model.safetensors, or the files that
/// model.safetensors.index.json names (where both are there, the first). They are read as f32, a
/// part of a tensor at a time; no more than headers and a few megabytes is held.
class HfWeights {
 public:
  /// Opens the files and finds every tensor of the model in them. Names may have the prefix that
  /// GPT2LMHeadModel gives ("transformer.") or lack LlamaForCausalLM's ("model."). Buffers that
  /// older versions stored (attn.bias, attn.masked_bias, rotary_emb.inv_freq) are passed over.
  /// Throws FileError where neither file is there; DataError for malformed files, an index that
  /// does not fit its files, a tensor that is missing, has another shape, is not of F32, BF16 or
  /// F16, or belongs to no parameter.
  HfWeights(std::filesystem::path folder, const ModelConfig& config);
  HfWeights(const HfWeights&) = delete;
  HfWeights& operator=(const HfWeights&) = delete;

  /// Elements [elements.begin, elements.end) of a parameter of the model as this program holds it,
  /// into values (elements.size()) f32.
  void read(const ParameterSpec& parameter, Range elements, MutView values) const;
  /// Reads an lm_head.weight that is stored although the embedding is the head. Throws DataError
  /// where the two differ.
  void check_tied_head() const;
  /// "14 tensors, F32, in 1 file".
  std::string summary() const;

 private:
  /// A tensor: in which file, and where.
  struct Stored {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
  };
  void open();
  void open_sharded(const std::filesystem::path& index);
  void add_file(const std::filesystem::path& path);
  const Stored* find(const std::string& name) const;
  void match(const ModelConfig& config);
  void match_piece(const HfPiece& piece);

  std::filesystem::path folder_;
  std::deque<SafetensorsFile> files_;
  std::map<std::string, Stored> stored_;              // by name in the files
  std::unordered_map<std::string, Stored> by_piece_;  // by HfPiece::name
  const Stored* tied_head_ = nullptr;
  std::string embedding_;  // the piece that a tied head equals
};

/// The names of the tokenizer's files in a Hugging Face folder.
std::vector<std::string> hf_tokenizer_files(const std::filesystem::path& folder);

/// Copies the tokenizer's files from a Hugging Face folder, as they are, where they are there.
void copy_hf_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace llm
