#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "src/io/safetensors.h"
#include "src/model/parameters.h"
#include "tensor/view.h"

namespace llm {

/// out (n_columns, n_rows) = x (n_rows, n_columns) transposed.
void transpose(const float* x, std::int64_t n_rows, std::int64_t n_columns, float* out);

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

}  // namespace llm
