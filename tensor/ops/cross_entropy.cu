#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/rounding.h"

namespace llm::cuda {
namespace {

/// The largest of all threads' x, on each of them; `partials` as in block_sum.
__device__ float block_max(float x, float* partials) {
  for (unsigned half = lanes / 2; half > 0; half /= 2) {
    x = fmaxf(x, __shfl_xor_sync(all_lanes, x, half));
  }
  if (threadIdx.x % lanes == 0) partials[threadIdx.x / lanes] = x;
  __syncthreads();
  float largest = partials[0];
  for (unsigned warp = 1; warp < blockDim.x / lanes; ++warp) {
    largest = fmaxf(largest, partials[warp]);
  }
  __syncthreads();
  return largest;
}

/// log of the sum of exp(row[v]), on each thread of the block.
__device__ float log_sum_exp(const float* row, std::int64_t n, float* partials) {
  float largest = -INFINITY;
  for (std::int64_t v = threadIdx.x; v < n; v += blockDim.x) largest = fmaxf(largest, row[v]);
  largest = block_max(largest, partials);
  float sum = 0;
  for (std::int64_t v = threadIdx.x; v < n; v += blockDim.x) sum += expf(row[v] - largest);
  return largest + logf(block_sum(sum, partials));
}

/// A block takes a row. dlogits may be logits, so that the label's logit is read before.
template <typename T>
__global__ void kernel(const std::int32_t* labels, float scale, std::int64_t n,
                       std::int64_t n_classes, const float* logits, T* dlogits, float* losses) {
  auto* const partials = shared<float>();
  for (std::int64_t r = blockIdx.x; r < n; r += gridDim.x) {
    const float* const row = logits + r * n_classes;
    const std::int32_t label = labels[r];
    const float at_label = label == ignored_label ? 0 : row[label];
    const float log_sum = log_sum_exp(row, n_classes, partials);
    if (threadIdx.x == 0) losses[r] = label == ignored_label ? 0 : log_sum - at_label;
    if (dlogits == nullptr) continue;
    for (std::int64_t v = threadIdx.x; v < n_classes; v += blockDim.x) {
      const float p = scale * expf(row[v] - log_sum);
      const float grad = label == ignored_label ? 0 : p - (v == label ? scale : 0);
      dlogits[r * n_classes + v] = round_to<T>(grad);
    }
  }
}

/// Logits of which a rank has the columns of `part`.
struct Parts {
  std::int64_t n;
  std::int64_t n_columns;
  VocabularyPart part;
  /// The label's column; -1: another rank's, or ignored.
  __device__ std::int64_t column_of(std::int32_t label) const {
    const std::int64_t column = label - part.first_class;
    return label < 0 || column < 0 || column >= part.n_own ? -1 : column;
  }
};

__global__ void statistics_kernel(Parts of, const float* logits, const std::int32_t* labels,
                                  float* statistics) {
  auto* const partials = shared<float>();
  for (std::int64_t r = blockIdx.x; r < of.n; r += gridDim.x) {
    const float* const row = logits + r * of.n_columns;
    const float log_sum =
        of.part.n_own == 0 ? -INFINITY : log_sum_exp(row, of.part.n_own, partials);
    if (threadIdx.x != 0) continue;
    const std::int64_t column = of.column_of(labels[r]);
    statistics[2 * r] = log_sum;
    statistics[2 * r + 1] = column < 0 ? 0 : row[column];
  }
}

struct WholeRow {
  float log_sum;
  float at_label;
};

/// Of a row over all ranks, in their order: the plain body's sums.
__device__ WholeRow whole_row(const float* all, std::int64_t n_ranks, std::int64_t n,
                              std::int64_t r) {
  float most = all[2 * r];
  for (std::int64_t rank = 1; rank < n_ranks; ++rank) most = fmaxf(most, all[(rank * n + r) * 2]);
  double sum = 0;
  float at_label = 0;
  for (std::int64_t rank = 0; rank < n_ranks; ++rank) {
    const float* const of_rank = all + (rank * n + r) * 2;
    sum += exp(static_cast<double>(of_rank[0]) - static_cast<double>(most));
    at_label += of_rank[1];
  }
  return {static_cast<float>(static_cast<double>(most) + log(sum)), at_label};
}

/// A block takes a row, a thread its own columns of it, so that dlogits may be logits.
template <typename T>
__global__ void parts_kernel(Parts of, const float* all, std::int64_t n_ranks,
                             const std::int32_t* labels, float scale, const float* logits,
                             T* dlogits, float* losses) {
  for (std::int64_t r = blockIdx.x; r < of.n; r += gridDim.x) {
    const std::int32_t label = labels[r];
    const bool counts = label != ignored_label;
    const WholeRow whole = whole_row(all, n_ranks, of.n, r);
    if (threadIdx.x == 0) losses[r] = counts ? whole.log_sum - whole.at_label : 0;
    if (dlogits == nullptr) continue;
    const std::int64_t at_label = of.column_of(label);
    const std::int64_t begin = r * of.n_columns;
    for (std::int64_t v = threadIdx.x; v < of.n_columns; v += blockDim.x) {
      float grad = 0;
      if (counts && v < of.part.n_own) {
        grad = scale * expf(logits[begin + v] - whole.log_sum) - (v == at_label ? scale : 0);
      }
      dlogits[begin + v] = round_to<T>(grad);
    }
  }
}

Grid rows_grid(std::int64_t n_rows) {
  constexpr std::int64_t most_blocks = 65'535;
  return {n_rows < most_blocks ? n_rows : most_blocks, block_threads,
          block_threads / lanes * sizeof(float)};
}

}  // namespace

void cross_entropy(cudaStream_t stream, View labels, float scale, View logits, MutView dlogits,
                   MutView losses) {
  const std::int64_t n = logits.shape()[0];
  with_type_of(dlogits.empty() ? Dtype::f32 : dlogits.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, rows_grid(n), kernel<T>, labels.as<std::int32_t>(), scale, n, logits.shape()[1],
           logits.as<float>(), static_cast<T*>(dlogits.data()), losses.as<float>());
  });
}

void cross_entropy_statistics(cudaStream_t stream, View logits, View labels, VocabularyPart part,
                              MutView statistics) {
  const Parts of{logits.shape()[0], logits.shape()[1], part};
  launch(stream, rows_grid(of.n), statistics_kernel, of, logits.as<float>(),
         labels.as<std::int32_t>(), statistics.as<float>());
}

void cross_entropy_of_parts(cudaStream_t stream, View all, View labels, VocabularyPart part,
                            float scale, View logits, MutView dlogits, MutView losses) {
  const Parts of{logits.shape()[0], logits.shape()[1], part};
  with_type_of(dlogits.empty() ? Dtype::f32 : dlogits.dtype(), [&](auto type) {
    using T = decltype(type);
    launch(stream, rows_grid(of.n), parts_kernel<T>, of, all.as<float>(), all.shape()[0],
           labels.as<std::int32_t>(), scale, logits.as<float>(), static_cast<T*>(dlogits.data()),
           losses.as<float>());
  });
}

}  // namespace llm::cuda
