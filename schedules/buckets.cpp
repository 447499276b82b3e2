#include "schedules/buckets.h"

#include <algorithm>

#include "src/base/check.h"

namespace llm {
namespace {

std::int64_t aligned(std::int64_t n) {
  constexpr std::int64_t a = FlatLayout::alignment_elements;
  return (n + a - 1) / a * a;
}

}  // namespace

FlatLayout flat_layout(const std::vector<FlatTensor>& tensors, std::int64_t bucket_elements,
                       std::int64_t chunk_elements) {
  CHECK_CONTRACT(bucket_elements >= 1 && chunk_elements >= 1, "a bucket holds something");
  FlatLayout layout;
  layout.tensors = tensors;
  Bucket open;
  const auto close = [&](std::int64_t flat_end) {
    open.flat.end = flat_end;
    if (!open.pieces.empty()) layout.buckets.push_back(open);
    open = Bucket{};
    open.flat.begin = flat_end;
  };
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::int64_t tensor_begin = layout.n_elements;
    const bool begins_part = t > 0 && (tensors[t].layer != tensors[t - 1].layer ||
                                       tensors[t].part != tensors[t - 1].part);
    const bool begins_unit = t > 0 && (tensors[t].unit != tensors[t - 1].unit ||
                                       tensors[t].is_own != tensors[t - 1].is_own);
    const bool is_half_full = 2 * (tensor_begin - open.flat.begin) >= bucket_elements;
    if (begins_unit || (begins_part && is_half_full)) {
      close(tensor_begin);
    }
    layout.tensor_begin.push_back(tensor_begin);
    std::int64_t done = 0;
    while (done < tensors[t].n_elements) {
      const std::int64_t flat_begin = tensor_begin + done;
      const std::int64_t room = bucket_elements - (flat_begin - open.flat.begin);
      // Whole chunks only, so that a chunk's sum of squares has one owner; never an empty bucket.
      std::int64_t n = room / chunk_elements * chunk_elements;
      if (n <= 0 && open.pieces.empty()) n = chunk_elements;
      n = std::min(n, tensors[t].n_elements - done);
      if (tensors[t].n_elements - done <= room) n = tensors[t].n_elements - done;
      if (n <= 0) {
        close(flat_begin);
        continue;
      }
      open.pieces.push_back({static_cast<std::int64_t>(t), {done, done + n}, flat_begin});
      open.ready_after_layer = tensors[t].layer;
      open.is_own = tensors[t].is_own;
      done += n;
    }
    layout.n_elements = tensor_begin + aligned(tensors[t].n_elements);
  }
  close(layout.n_elements);
  return layout;
}

}  // namespace llm
