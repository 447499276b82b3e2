#include "src/checkpoint/tensor_file.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/io/safetensors.h"

namespace llm {
namespace {

/// Written, summed and handed to the disk at a time.
constexpr std::int64_t n_elements_at_a_time = 1 << 20;

std::vector<SafetensorsOutput> outputs_of(const std::vector<FileTensor>& tensors) {
  std::vector<SafetensorsOutput> outputs;
  for (const FileTensor& tensor : tensors) {
    outputs.push_back({tensor.name, Dtype::f32, tensor.shape, {}});
  }
  return outputs;
}

}  // namespace

TensorFile::TensorFile(const std::filesystem::path& path, const std::vector<FileTensor>& tensors,
                       WriteTick tick)
    : file_(path), tick_(std::move(tick)), tensors_(tensors) {
  record_.name = path.filename().string();
  const std::string head = safetensors_head(outputs_of(tensors));
  append(head.data(), head.size());
}

void TensorFile::append(const void* bytes, std::size_t n) {
  file_.append(bytes, n);
  sum_.add(bytes, n);
  record_.n_bytes += static_cast<std::int64_t>(n);
  n_since_tick_ += static_cast<std::int64_t>(n);
  if (n_since_tick_ < 4 * n_elements_at_a_time) return;
  n_since_tick_ = 0;
  file_.begin_writing_back();
  if (tick_) tick_();
}

void TensorFile::append(const Box& box, const float* values) {
  CHECK_CONTRACT(n_written_ < tensors_.size(), "a file's tensors are known before");
  std::int64_t n_elements = 1;
  for (const std::int64_t extent : tensors_[n_written_++].shape) n_elements *= extent;
  CHECK_CONTRACT(n_elements == box.n_elements(), "a tensor has the elements of its header");
  const std::int64_t width = box.columns.size();
  const float* const first = values + box.first;
  const bool is_in_order = box.column_stride == 1 && box.row_stride == width;
  const std::int64_t n_rows_at_a_time =
      std::clamp<std::int64_t>(n_elements_at_a_time / width, 1, box.rows.size());
  if (!is_in_order) rows_.resize(static_cast<std::size_t>(n_rows_at_a_time * width));
  for (std::int64_t row = 0; row < box.rows.size(); row += n_rows_at_a_time) {
    const std::int64_t n = std::min(n_rows_at_a_time, box.rows.size() - row);
    const float* from = first + row * box.row_stride;
    if (!is_in_order) {
      copy_plane({from, box.row_stride, box.column_stride}, {rows_.data(), width, 1}, n, width);
      from = rows_.data();
    }
    append(from, static_cast<std::size_t>(n * width) * 4);
  }
}

FileRecord TensorFile::finish() {
  CHECK_CONTRACT(n_written_ == tensors_.size(), "a file has all of its tensors");
  file_.finish();
  record_.crc32 = sum_.value();
  return record_;
}

std::vector<FileTensor> tensors_of(const ParameterSpec& whole, TensorPart part) {
  std::vector<FileTensor> tensors;
  for (const HfPiece& piece : whole.pieces) {
    tensors.push_back({part_name(piece.name, part), piece.shape});
  }
  return tensors;
}

FileRecord write_boxes(const std::filesystem::path& path, const std::vector<BoxValues>& boxes,
                       WriteTick tick) {
  std::vector<FileTensor> tensors;
  for (const BoxValues& one : boxes) {
    std::vector<std::int64_t> shape = {one.box.rows.size()};
    if (!one.box.is_vector) shape.push_back(one.box.columns.size());
    tensors.push_back({box_name(one.box, one.part), std::move(shape)});
  }
  TensorFile file(path, tensors, std::move(tick));
  for (const BoxValues& one : boxes) file.append(one.box, one.values);
  return file.finish();
}

FileRecord write_text(const std::filesystem::path& path, std::string_view text) {
  OutputFile file(path);
  file.append(text);
  file.finish();
  return {path.filename().string(), static_cast<std::int64_t>(text.size()),
          crc32(text.data(), text.size())};
}

}  // namespace llm
