#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "src/model/model_config.h"

namespace llm {

/// The ids between which a model generates. A tokenizer may have several ends; none is null.
struct HfTokenIds {
  std::vector<std::int64_t> begin;
  std::vector<std::int64_t> end;
};

/// What a folder's config.json says.
struct HfConfig {
  ModelConfig model;  ///< compute is f32, whatever torch_dtype or dtype says
  /// Where it has several dropout rates that differ ("resid_pdrop 0.1, embd_pdrop 0, ..."): this
  /// program has one for all, and model.dropout means nothing. Empty where they are equal.
  std::string uneven_dropout;
  HfTokenIds ids;
};

/// Reads folder/config.json: model_type gpt2, llama or mixtral; what is not there has the default
/// of Hugging Face's configuration class. The base of the rotation is read from rope_theta or from
/// rope_parameters or rope_scaling; where several have it they have to agree. Throws FileError
/// where it cannot be read; DataError naming the file, the key and its value for other model types,
/// ill-typed values, quantized weights, and what changes a model's formulas in a way that this
/// program does not compute: scaled rotations, a head_dim of its own, sliding windows, scaled or
/// cross attention, activations.
HfConfig read_hf_config(const std::filesystem::path& folder);

/// The config.json under which Hugging Face's GPT2LMHeadModel, LlamaForCausalLM or
/// MixtralForCausalLM computes the same as this model, or nothing when none can express it. The
/// base of the rotation stands there under its old and its current key.
std::optional<std::string> hf_config_json(const ModelConfig& config, const HfTokenIds& ids = {});

/// The generation_config.json beside it.
std::string hf_generation_config_json(const HfTokenIds& ids);

}  // namespace llm
