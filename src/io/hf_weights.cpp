#include "src/io/hf_weights.h"

#include <fmt/format.h>

#include <algorithm>

namespace llm {
namespace {

std::int64_t width_of(const Shape& shape) {
  return shape.n_dims() == 2 ? shape[1] : 1;
}

std::int64_t n_elements(const HfPiece& piece) {
  std::int64_t n = 1;
  for (const std::int64_t extent : piece.shape) n *= extent;
  return n;
}

}  // namespace

void transpose(const float* x, std::int64_t n_rows, std::int64_t n_columns, float* out) {
  constexpr std::int64_t side = 32;  // squares stay in the first cache
  for (std::int64_t row = 0; row < n_rows; row += side) {
    for (std::int64_t column = 0; column < n_columns; column += side) {
      for (std::int64_t r = row; r < std::min(row + side, n_rows); ++r) {
        for (std::int64_t c = column; c < std::min(column + side, n_columns); ++c) {
          out[c * n_rows + r] = x[r * n_columns + c];
        }
      }
    }
  }
}

void to_logical(const HfPiece& piece, View internal, MutView logical) {
  const std::int64_t width = width_of(internal.shape());
  const float* rows = internal.as<float>() + piece.rows.begin * width;
  CHECK_CONTRACT(logical.n_elements() == piece.rows.size() * width, "a piece is copied whole");
  if (piece.transposed) {
    transpose(rows, piece.rows.size(), width, logical.as<float>());
  } else {
    std::copy_n(rows, logical.n_elements(), logical.as<float>());
  }
}

void from_logical(const HfPiece& piece, View logical, MutView internal) {
  const std::int64_t width = width_of(internal.shape());
  float* rows = internal.as<float>() + piece.rows.begin * width;
  CHECK_CONTRACT(logical.n_elements() == piece.rows.size() * width, "a piece is copied whole");
  if (piece.transposed) {
    transpose(logical.as<float>(), width, piece.rows.size(), rows);
  } else {
    std::copy_n(logical.as<float>(), logical.n_elements(), rows);
  }
}

void write_hf_weights(const std::filesystem::path& folder,
                      const std::vector<ParameterSpec>& parameters, std::span<const View> values) {
  CHECK_CONTRACT(values.size() == parameters.size(), "each parameter has its values");
  write_hf_weights(folder, parameters, [&values](std::size_t i) { return values[i]; });
}

void write_hf_weights(const std::filesystem::path& folder,
                      const std::vector<ParameterSpec>& parameters,
                      const std::function<View(std::size_t)>& value_of) {
  std::vector<SafetensorsOutput> outputs;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (const HfPiece& piece : parameters[i].pieces) {
      outputs.push_back(
          {piece.name, Dtype::f32, piece.shape, [&piece, &value_of, i](std::span<std::byte> bytes) {
             to_logical(piece, value_of(i), MutView(bytes.data(), Dtype::f32, {n_elements(piece)}));
           }});
    }
  }
  write_safetensors(folder / "model.safetensors", std::move(outputs));
}

}  // namespace llm
