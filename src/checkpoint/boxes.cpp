#include "src/checkpoint/boxes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace llm {
namespace {

/// Some columns of some rows of a rank's tensor.
struct LocalPart {
  Range rows;
  Range columns;
};

/// A range of elements as a part of a row, whole rows, and a part of a row.
std::vector<LocalPart> parts_of(Range elements, std::int64_t width) {
  std::vector<LocalPart> parts;
  const auto add = [&parts](Range rows, Range columns) {
    if (!rows.empty() && !columns.empty()) parts.push_back({rows, columns});
  };
  const std::int64_t first = elements.begin / width;
  const std::int64_t last = elements.end / width;
  const std::int64_t begin = elements.begin % width;
  const std::int64_t end = elements.end % width;
  if (first == last) {
    add({first, first + 1}, {begin, end});
    return parts;
  }
  if (begin > 0) add({first, first + 1}, {begin, width});
  add({begin > 0 ? first + 1 : first, last}, {0, width});
  add({last, last + 1}, {0, end});
  return parts;
}

}  // namespace

Range intersection(Range a, Range b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

std::string part_name(const std::string& tensor, TensorPart part) {
  switch (part) {
    case TensorPart::weight:
      return tensor;
    case TensorPart::exp_avg:
      return tensor + ".exp_avg";
    case TensorPart::exp_avg_sq:
      return tensor + ".exp_avg_sq";
  }
  return tensor;
}

std::vector<Box> boxes_of(const ParameterSpec& spec, Range elements) {
  const bool is_vector = spec.shape.n_dims() == 1;
  const std::int64_t width = is_vector ? 1 : spec.shape[1];
  std::vector<Slice::Rows> runs = {{{0, spec.shape[0]}, 0}};
  std::int64_t first_column = 0;
  if (spec.slice) {
    runs = spec.slice->rows;
    first_column = spec.slice->columns.begin;
  }
  std::vector<Box> boxes;
  for (const LocalPart& part : parts_of(elements, width)) {
    for (const Slice::Rows& run : runs) {
      const Range local = intersection(part.rows, run.local);
      if (local.empty()) continue;
      const std::int64_t shift = run.whole_begin - run.local.begin;
      for (const HfPiece& piece : spec.pieces) {
        const Range rows = intersection({local.begin + shift, local.end + shift}, piece.rows);
        if (rows.empty()) continue;
        Box box{.tensor = piece.name, .is_vector = is_vector};
        box.rows = {rows.begin - piece.rows.begin, rows.end - piece.rows.begin};
        box.columns = {first_column + part.columns.begin, first_column + part.columns.end};
        box.first = (rows.begin - shift) * width + part.columns.begin - elements.begin;
        box.row_stride = width;
        box.column_stride = 1;
        if (piece.transposed) {
          std::swap(box.rows, box.columns);
          std::swap(box.row_stride, box.column_stride);
        }
        boxes.push_back(std::move(box));
      }
    }
  }
  return boxes;
}

std::string box_name(const Box& box, TensorPart part) {
  const std::string name = part_name(box.tensor, part);
  if (box.is_vector) return fmt::format("{}[{}:{}]", name, box.rows.begin, box.rows.end);
  return fmt::format("{}[{}:{},{}:{}]", name, box.rows.begin, box.rows.end, box.columns.begin,
                     box.columns.end);
}

std::optional<Box> box_called(const std::string& name) {
  const std::size_t open = name.rfind('[');
  if (open == std::string::npos || name.back() != ']') return std::nullopt;
  std::vector<std::int64_t> numbers;
  const char* next = name.data() + open + 1;
  const char* const end = name.data() + name.size();
  while (next < end) {
    std::int64_t number = 0;
    const auto [after, error] = std::from_chars(next, end, number);
    if (error != std::errc() || number < 0) return std::nullopt;
    numbers.push_back(number);
    next = after + 1;
  }
  if (numbers.size() != 2 && numbers.size() != 4) return std::nullopt;
  Box box{.tensor = name.substr(0, open), .is_vector = numbers.size() == 2};
  box.rows = {numbers[0], numbers[1]};
  box.columns = box.is_vector ? Range{0, 1} : Range{numbers[2], numbers[3]};
  if (box.rows.empty() || box.columns.empty()) return std::nullopt;
  return box;
}

void copy_plane(Plane<const float> from, Plane<float> to, std::int64_t n_rows,
                std::int64_t n_columns) {
  if (from.column_stride == 1 && to.column_stride == 1) {
    for (std::int64_t r = 0; r < n_rows; ++r) {
      std::copy_n(from.values + r * from.row_stride, n_columns, to.values + r * to.row_stride);
    }
    return;
  }
  constexpr std::int64_t side = 32;  // squares stay in the first cache
  for (std::int64_t row = 0; row < n_rows; row += side) {
    for (std::int64_t column = 0; column < n_columns; column += side) {
      for (std::int64_t r = row; r < std::min(row + side, n_rows); ++r) {
        for (std::int64_t c = column; c < std::min(column + side, n_columns); ++c) {
          to.values[r * to.row_stride + c * to.column_stride] =
              from.values[r * from.row_stride + c * from.column_stride];
        }
      }
    }
  }
}

}  // namespace llm
