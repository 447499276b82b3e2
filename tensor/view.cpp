#include "tensor/view.h"

namespace llm {
namespace {

std::int64_t byte_offset(const Shape& whole, Dtype dtype, std::int64_t begin, const Shape& shape) {
  CHECK_CONTRACT(begin >= 0 && begin + shape.n_elements() <= whole.n_elements(),
                 "a part lies inside its whole");
  return begin * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace

std::string to_string(const Shape& shape) {
  std::string text = "(";
  for (int dim = 0; dim < shape.n_dims(); ++dim) {
    if (dim > 0) text += ", ";
    text += std::to_string(shape[dim]);
  }
  return text + ")";
}

View part(const View& whole, std::int64_t begin, Shape shape) {
  const std::int64_t offset = byte_offset(whole.shape(), whole.dtype(), begin, shape);
  return View(static_cast<const char*>(whole.data()) + offset, whole.dtype(), shape,
              whole.device());
}

MutView part(const MutView& whole, std::int64_t begin, Shape shape) {
  const std::int64_t offset = byte_offset(whole.shape(), whole.dtype(), begin, shape);
  return MutView(static_cast<char*>(whole.data()) + offset, whole.dtype(), shape, whole.device());
}

}  // namespace llm
