#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/cuda/pack.h"
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

constexpr int pack = pack_size<float>;

/// run(class, how many are left) for the packs of a row that a thread has.
template <typename Run>
__device__ void for_each_class(std::int64_t n, const Run& run) {
  for (std::int64_t v = threadIdx.x * pack; v < n; v += blockDim.x * pack) run(v, n - v);
}

/// log of the sum of exp(row[v]), on each thread of the block. Each of them reads its logits once,
/// with a sum that is kept relative to the largest so far.
template <bool is_whole>
__device__ float log_sum_exp(const float* row, std::int64_t n, float* partials) {
  float largest = -INFINITY;
  float sum = 0;
  for_each_class(n, [&](std::int64_t v, std::int64_t n_left) {
    const auto logits = load<pack, is_whole>(row + v, n_left);
    for (int i = 0; i < pack; ++i) {
      const float logit = logits.at[i];
      if (i >= n_left || logit == -INFINITY) continue;  // adds nothing, and has no distance
      if (logit > largest) {
        sum = sum * expf(largest - logit) + 1;
        largest = logit;
      } else {
        sum += expf(logit - largest);
      }
    }
  });
  const float of_all = block_max(largest, partials);
  return of_all + logf(block_sum(sum * expf(largest - of_all), partials));
}

/// A block takes a row. dlogits may be logits, so that the label's logit is read before.
template <typename T, bool is_whole>
__global__ void kernel(const std::int32_t* labels, float scale, std::int64_t n,
                       std::int64_t n_classes, const float* logits, T* dlogits, float* losses) {
  auto* const partials = shared<float>();
  for (std::int64_t r = blockIdx.x; r < n; r += gridDim.x) {
    const float* const row = logits + r * n_classes;
    const std::int32_t label = labels[r];
    const float at_label = label == ignored_label ? 0 : row[label];
    const float log_sum = log_sum_exp<is_whole>(row, n_classes, partials);
    if (threadIdx.x == 0) losses[r] = label == ignored_label ? 0 : log_sum - at_label;
    if (dlogits == nullptr) continue;
    for_each_class(n_classes, [&](std::int64_t v, std::int64_t n_left) {
      const auto of_logits = load<pack, is_whole>(row + v, n_left);
      Pack<T, pack> grads;
      for (int i = 0; i < pack; ++i) {
        const float p = scale * expf(of_logits.at[i] - log_sum);
        const float grad = label == ignored_label ? 0 : p - (v + i == label ? scale : 0);
        grads.at[i] = round_to<T>(grad);
      }
      store<is_whole>(grads, dlogits + r * n_classes + v, n_left);
    });
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

template <bool is_whole>
__global__ void statistics_kernel(Parts of, const float* logits, const std::int32_t* labels,
                                  float* statistics) {
  auto* const partials = shared<float>();
  for (std::int64_t r = blockIdx.x; r < of.n; r += gridDim.x) {
    const float* const row = logits + r * of.n_columns;
    const float log_sum =
        of.part.n_own == 0 ? -INFINITY : log_sum_exp<is_whole>(row, of.part.n_own, partials);
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
template <typename T, bool is_whole>
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
    for_each_class(of.n_columns, [&](std::int64_t v, std::int64_t n_left) {
      const auto of_logits = load<pack, is_whole>(logits + begin + v, n_left);
      Pack<T, pack> grads;
      for (int i = 0; i < pack; ++i) {
        const float p = scale * expf(of_logits.at[i] - whole.log_sum);
        const bool has_grad = counts && v + i < of.part.n_own;
        grads.at[i] = round_to<T>(has_grad ? p - (v + i == at_label ? scale : 0) : 0);
      }
      store<is_whole>(grads, dlogits + begin + v, n_left);
    });
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
  const std::int64_t n_classes = logits.shape()[1];
  with_type_of(dlogits.empty() ? Dtype::f32 : dlogits.dtype(), [&](auto type) {
    using T = decltype(type);
    with_packs_of<float>(n_classes, {logits.data(), dlogits.data()}, [&](auto is_whole) {
      launch(stream, rows_grid(n), kernel<T, is_whole()>, labels.as<std::int32_t>(), scale, n,
             n_classes, logits.as<float>(), static_cast<T*>(dlogits.data()), losses.as<float>());
    });
  });
}

void cross_entropy_statistics(cudaStream_t stream, View logits, View labels, VocabularyPart part,
                              MutView statistics) {
  const Parts of{logits.shape()[0], logits.shape()[1], part};
  with_packs_of<float>(of.n_columns, {logits.data()}, [&](auto is_whole) {
    launch(stream, rows_grid(of.n), statistics_kernel<is_whole()>, of, logits.as<float>(),
           labels.as<std::int32_t>(), statistics.as<float>());
  });
}

void cross_entropy_of_parts(cudaStream_t stream, View all, View labels, VocabularyPart part,
                            float scale, View logits, MutView dlogits, MutView losses) {
  const Parts of{logits.shape()[0], logits.shape()[1], part};
  with_type_of(dlogits.empty() ? Dtype::f32 : dlogits.dtype(), [&](auto type) {
    using T = decltype(type);
    with_packs_of<float>(of.n_columns, {logits.data(), dlogits.data()}, [&](auto is_whole) {
      launch(stream, rows_grid(of.n), parts_kernel<T, is_whole()>, of, all.as<float>(),
             all.shape()[0], labels.as<std::int32_t>(), scale, logits.as<float>(),
             static_cast<T*>(dlogits.data()), losses.as<float>());
    });
  });
}

}  // namespace llm::cuda
