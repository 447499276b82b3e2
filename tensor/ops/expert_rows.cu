#include "tensor/ops/expert_rows.h"

#include "tensor/cuda/launch.h"
#include "tensor/cuda/ops.h"
#include "tensor/cuda/pack.h"

namespace llm::cuda {
namespace {

/// Rows of one rank for one expert: a segment, of which the order is by expert and then by rank.
struct Segments {
  std::int64_t n_ranks;
  std::int64_t n_experts;
  __device__ const std::int32_t* bounds_of(const std::int32_t* bounds, std::int64_t rank) const {
    return bounds + rank * (n_experts + 1);
  }
  __device__ std::int32_t size(const std::int32_t* bounds, std::int64_t segment) const {
    const std::int32_t* const bound = bounds_of(bounds, segment % n_ranks) + segment / n_ranks;
    return bound[1] - bound[0];
  }
};

/// A block places a segment's rows; where they begin, it adds up from all segments before it.
__global__ void order_kernel(Segments of, const std::int32_t* bounds, std::int64_t n_places,
                             std::int32_t* begins, std::int32_t* order) {
  auto* const partials = shared<std::int32_t>();
  const std::int64_t segment = blockIdx.x;
  const std::int64_t expert = segment / of.n_ranks;
  const std::int64_t rank = segment % of.n_ranks;
  std::int32_t sum = 0;
  for (std::int64_t s = threadIdx.x; s < segment; s += blockDim.x) sum += of.size(bounds, s);
  const std::int32_t begin = block_sum(sum, partials);
  sum = 0;  // of the ranks before
  for (std::int64_t r = threadIdx.x; r < rank; r += blockDim.x) {
    const std::int32_t* const of_rank = of.bounds_of(bounds, r);
    sum += of_rank[of.n_experts] - of_rank[0];
  }
  const std::int32_t* const own = of.bounds_of(bounds, rank);
  const std::int32_t first = block_sum(sum, partials) + own[expert] - own[0];
  const std::int32_t n = of.size(bounds, segment);
  if (threadIdx.x == 0 && rank == 0) begins[expert] = begin;
  if (threadIdx.x == 0 && segment + 1 == of.n_ranks * of.n_experts) {
    begins[of.n_experts] = begin + n;
  }
  for (std::int64_t i = threadIdx.x; i < n && begin + i < n_places; i += blockDim.x) {
    order[begin + i] = static_cast<std::int32_t>(first + i);
  }
}

enum class Way : bool { by_expert, by_rank };

/// A warp takes a row.
template <typename Unit>
__global__ void move_kernel(Way way, std::int64_t n_places, const std::int32_t* n_rows,
                            const std::int32_t* order, std::int64_t n_units, const Unit* x,
                            Unit* y) {
  const std::int64_t n = *n_rows < n_places ? *n_rows : n_places;
  for (std::int64_t r = first_warp(); r < n; r += warp_stride()) {
    const std::int64_t place = order[r];
    const Unit* const from = x + (way == Way::by_expert ? place : r) * n_units;
    Unit* const to = y + (way == Way::by_expert ? r : place) * n_units;
    for (std::int64_t u = lane_of_warp(); u < n_units; u += lanes) to[u] = from[u];
  }
}

void move_rows(cudaStream_t stream, Way way, const View& begins, const View& order, const View& x,
               const MutView& y) {
  const std::int64_t row_bytes = x.shape()[1] * static_cast<std::int64_t>(size_of(x.dtype()));
  const std::int64_t n = x.shape()[0];
  with_unit_of(row_bytes, {x.data(), y.data()}, [&](auto unit) {
    using Unit = decltype(unit);
    launch(stream, warps_grid(n), move_kernel<Unit>, way, n,
           begins.as<std::int32_t>() + begins.n_elements() - 1, order.as<std::int32_t>(),
           row_bytes / static_cast<std::int64_t>(sizeof(Unit)), static_cast<const Unit*>(x.data()),
           static_cast<Unit*>(y.data()));
  });
}

}  // namespace

void order_by_expert(cudaStream_t stream, View bounds, MutView begins, MutView order) {
  const Segments of{bounds.shape()[0], bounds.shape()[1] - 1};
  const Grid grid{of.n_ranks * of.n_experts, block_threads, partials_bytes<std::int32_t>};
  launch(stream, grid, order_kernel, of, bounds.as<std::int32_t>(), order.n_elements(),
         begins.as<std::int32_t>(), order.as<std::int32_t>());
}

void rows_by_expert(cudaStream_t stream, View begins, View order, View by_rank, MutView by_expert) {
  move_rows(stream, Way::by_expert, begins, order, by_rank, by_expert);
}

void rows_by_rank(cudaStream_t stream, View begins, View order, View by_expert, MutView by_rank) {
  move_rows(stream, Way::by_rank, begins, order, by_expert, by_rank);
}

}  // namespace llm::cuda
