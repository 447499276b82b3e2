#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/base/range.h"
#include "src/io/safetensors.h"
#include "src/model/parameters.h"
#include "tensor/view.h"

namespace llm {

/// Copies a piece of a parameter to its logical tensor: `internal` is the whole internal tensor
/// (f32), `logical` (piece.shape) f32.
void to_logical(const HfPiece& piece, View internal, MutView logical);
/// The other way: writes the piece's rows of `internal`.
void from_logical(const HfPiece& piece, View logical, MutView internal);

/// Writes folder/model.safetensors, one f32 tensor for each piece under its Hugging Face name and
/// shape; a tied head is stored once. `values` holds one whole internal tensor for each parameter.
void write_hf_weights(const std::filesystem::path& folder,
                      const std::vector<ParameterSpec>& parameters, std::span<const View> values);
/// The same where not all values are at hand: `value_of(i)` is called for each piece of parameter i
/// when it is to be written, in the order of the file, and its view is read before the next call.
void write_hf_weights(const std::filesystem::path& folder,
                      const std::vector<ParameterSpec>& parameters,
                      const std::function<View(std::size_t)>& value_of);

/// Fills `values` (one whole internal tensor a parameter) from a file that write_hf_weights wrote,
/// or another of the same names and shapes in F32. Throws DataError naming the tensor that is
/// missing or has another shape, and for a tensor that no parameter has.
void read_hf_weights(const std::filesystem::path& file,
                     const std::vector<ParameterSpec>& parameters, std::span<const MutView> values);

/// The config.json under which Hugging Face's GPT2LMHeadModel, LlamaForCausalLM or
/// MixtralForCausalLM computes the same as this model, or nothing when none can express it.
std::optional<std::string> hf_config_json(const ModelConfig& config);

}  // namespace llm
