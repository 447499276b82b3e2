#include "src/checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "src/base/error.h"

namespace llm {
namespace {

constexpr std::int64_t n_elements_read_at_a_time = 1 << 20;

constexpr const char* ending = ".safetensors";

bool is_tensor_file(const std::string& name) {
  const std::string suffix = ending;
  return name.size() > suffix.size() &&
         name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
}

/// The box that an entry's name and shape say.
Box box_of(const std::string& file, const SafetensorsEntry& entry, CheckpointKind kind) {
  const auto refuse = [&](const char* what) {
    throw DataError(fmt::format("{}: tensor \"{}\" {}", file, entry.name, what));
  };
  if (entry.dtype != Dtype::f32 && entry.dtype != Dtype::bf16 && entry.dtype != Dtype::f16) {
    refuse("is not of F32, BF16 or F16");
  }
  if (entry.shape.empty() || entry.shape.size() > 2) refuse("is neither a vector nor a matrix");
  Box box{.tensor = entry.name, .is_vector = entry.shape.size() == 1};
  box.rows = {0, entry.shape[0]};
  box.columns = {0, box.is_vector ? 1 : entry.shape[1]};
  if (kind == CheckpointKind::full) return box;
  const std::optional<Box> named = box_called(entry.name);
  if (!named) refuse("does not say which part of a tensor it is");
  if (named->is_vector != box.is_vector || named->rows.size() != box.rows.size() ||
      named->columns.size() != box.columns.size()) {
    refuse("has another shape than its name says");
  }
  return *named;
}

}  // namespace

std::vector<std::int64_t> CheckpointReader::Tensor::shape() const {
  if (is_vector) return {n_rows};
  return {n_rows, n_columns};
}

CheckpointReader::CheckpointReader(std::filesystem::path folder) : folder_(std::move(folder)) {
  const char* const weights = "model.safetensors";
  if (!std::filesystem::exists(folder_ / manifest_name) &&
      std::filesystem::exists(folder_ / weights)) {
    add_file(folder_ / weights);
    return;
  }
  manifest_ = read_manifest(folder_);
  for (const FileRecord& record : manifest_.files) {
    if (is_tensor_file(record.name)) add_file(folder_ / record.name);
  }
  check_cover();
}

void CheckpointReader::add_file(const std::filesystem::path& path) {
  const SafetensorsFile& file = files_.emplace_back(path);
  for (const SafetensorsEntry& entry : file.tensors()) {
    const Box box = box_of(path.string(), entry, manifest_.kind);
    stored_[box.tensor].push_back({&file, &entry, box.rows, box.columns});
    Tensor& tensor = tensors_[box.tensor];
    tensor.is_vector = box.is_vector;
    tensor.n_rows = std::max(tensor.n_rows, box.rows.end);
    tensor.n_columns = std::max(tensor.n_columns, box.columns.end);
  }
}

void CheckpointReader::check_cover() const {
  for (const auto& [name, parts] : stored_) {
    const Tensor& tensor = tensors_.at(name);
    std::int64_t n = 0;
    for (const Stored& part : parts) n += part.rows.size() * part.columns.size();
    if (n == tensor.n_rows * tensor.n_columns) continue;
    throw DataError(fmt::format(
        "{}: the parts of tensor \"{}\" have {} elements, but its shape ({}) has {}: a rank's file "
        "is missing or is another checkpoint's",
        folder_.string(), name, n, fmt::join(tensor.shape(), ", "),
        tensor.n_rows * tensor.n_columns));
  }
}

void CheckpointReader::check_model(const ModelConfig& config) const {
  std::set<std::string> known;
  for (const ParameterSpec& spec : parameters(whole_model(config))) {
    for (const HfPiece& piece : spec.pieces) {
      for (const TensorPart part : tensor_parts) {
        const std::string name = part_name(piece.name, part);
        const auto found = tensors_.find(name);
        if (found == tensors_.end()) {
          throw DataError(
              fmt::format("{}: tensor \"{}\" of the model is not there: the checkpoint "
                          "is of another model",
                          folder_.string(), name));
        }
        if (found->second.shape() != piece.shape) {
          throw DataError(fmt::format(
              "{}: tensor \"{}\" has the shape ({}), the model needs ({}): the checkpoint is of "
              "another model",
              folder_.string(), name, fmt::join(found->second.shape(), ", "),
              fmt::join(piece.shape, ", ")));
        }
        known.insert(name);
      }
    }
  }
  for (const auto& [name, tensor] : tensors_) {
    if (known.contains(name)) continue;
    throw DataError(
        fmt::format("{}: tensor \"{}\" belongs to no parameter of the model: the "
                    "checkpoint is of another model",
                    folder_.string(), name));
  }
}

void CheckpointReader::read_stored(const Stored& from, const Box& box, float* values) {
  const Range rows = intersection(from.rows, box.rows);
  const Range columns = intersection(from.columns, box.columns);
  if (rows.empty() || columns.empty()) return;
  const std::int64_t width = from.columns.size();
  // Rows with what lies between them, unless that is most of it.
  const bool reads_gaps = columns.size() * 16 > width;
  const std::int64_t n_rows_at_a_time =
      reads_gaps ? std::clamp<std::int64_t>(n_elements_read_at_a_time / width, 1, rows.size()) : 1;
  std::vector<float> some;
  for (std::int64_t row = rows.begin; row < rows.end; row += n_rows_at_a_time) {
    const std::int64_t n = std::min(n_rows_at_a_time, rows.end - row);
    const std::int64_t begin = (row - from.rows.begin) * width + columns.begin - from.columns.begin;
    const std::int64_t n_read = (n - 1) * width + columns.size();
    some.resize(static_cast<std::size_t>(n_read));
    from.file->read_f32(*from.entry, {begin, begin + n_read}, some.data());
    float* const to = values + box.first + (row - box.rows.begin) * box.row_stride +
                      (columns.begin - box.columns.begin) * box.column_stride;
    copy_plane({some.data(), width, 1}, {to, box.row_stride, box.column_stride}, n, columns.size());
  }
}

void CheckpointReader::read_box(const Box& box, const std::string& name, float* values) const {
  const auto found = stored_.find(name);
  if (found == stored_.end()) {
    throw DataError(fmt::format("{}: tensor \"{}\" is not there", folder_.string(), name));
  }
  for (const Stored& part : found->second) read_stored(part, box, values);
}

void CheckpointReader::read(const ParameterSpec& spec, TensorPart part, Range elements,
                            MutView values) const {
  auto* const out = values.as<float>();
  std::fill_n(out, elements.size(), 0.0f);
  for (const Box& box : boxes_of(spec, elements)) {
    read_box(box, part_name(box.tensor, part), out);
  }
}

WholeValues CheckpointReader::values_of(TensorPart part) const {
  return [this, part](const ParameterSpec& spec, Range elements, MutView values) {
    read(spec, part, elements, values);
  };
}

void CheckpointReader::read_rows(const std::string& name, Range rows, float* out) const {
  const Tensor& tensor = tensors_.at(name);
  const Box box{.tensor = name,
                .is_vector = tensor.is_vector,
                .rows = rows,
                .columns = {0, tensor.n_columns},
                .first = 0,
                .row_stride = tensor.n_columns,
                .column_stride = 1};
  read_box(box, name, out);
}

}  // namespace llm
