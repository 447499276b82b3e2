#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/base/range.h"
#include "src/model/parameters.h"

namespace llm {

/// Which of a parameter's three tensors: its f32 weight, or a moment of AdamW.
enum class TensorPart : std::uint8_t { weight, exp_avg, exp_avg_sq };
inline constexpr TensorPart tensor_parts[] = {TensorPart::weight, TensorPart::exp_avg,
                                              TensorPart::exp_avg_sq};

/// The name of a Hugging Face tensor's part in a file: the tensor's own, or NAME.exp_avg and
/// NAME.exp_avg_sq.
std::string part_name(const std::string& tensor, TensorPart part);

/// A rectangle of a Hugging Face tensor, and where its values lie in an array: (row, column) at
/// first + (row - rows.begin) * row_stride + (column - columns.begin) * column_stride. A vector is
/// a column.
struct Box {
  std::string tensor;
  bool is_vector = false;
  Range rows = {};
  Range columns = {};
  std::int64_t first = 0;
  std::int64_t row_stride = 0;
  std::int64_t column_stride = 0;
  std::int64_t n_elements() const { return rows.size() * columns.size(); }
};

/// Elements `elements` of a parameter as a rank has it (whole, or a tensor-parallel rank's slice),
/// as boxes of Hugging Face tensors; their places are in an array of these elements alone. Padding
/// is in no box.
std::vector<Box> boxes_of(const ParameterSpec& spec, Range elements);

/// Of no size, or less, where they have nothing in common.
Range intersection(Range a, Range b);

/// What a rank's file calls a box of a tensor's part: "h.0.attn.c_attn.weight.exp_avg[0:768,5:9]",
/// "ln_f.bias[0:64]".
std::string box_name(const Box& box, TensorPart part);
/// The other way, but for the places: tensor has the part's name. Nothing where the name has no
/// brackets at its end.
std::optional<Box> box_called(const std::string& name);

/// A plane of values for copy_plane.
template <typename T>
struct Plane {
  T* values;
  std::int64_t row_stride;
  std::int64_t column_stride;
};
/// to = from, (n_rows, n_columns).
void copy_plane(Plane<const float> from, Plane<float> to, std::int64_t n_rows,
                std::int64_t n_columns);

}  // namespace llm
