#include "actors/compute_layout.h"

#include <algorithm>

#include "schedules/shards.h"
#include "tensor/ops/adamw.h"
#include "tensor/storage.h"

namespace llm {

ComputeLayout compute_layout(const ModelConfig& config, const LayerRanges& ranges) {
  ComputeLayout layout;
  layout.begin = {0};
  const std::vector<ParameterSpec> all = parameters(config);
  std::vector<std::size_t> indices = owned_parameters(config, ranges);
  std::reverse(indices.begin(), indices.end());
  for (const std::size_t i : indices) {
    layout.dtype.push_back(all[i].decay == DecayGroup::vector ? Dtype::f32 : config.compute);
    layout.begin.push_back(layout.begin.back() +
                           Arena::bytes_for(layout.dtype.back(), {all[i].n_elements()}));
  }
  return layout;
}

std::int64_t ComputeLayout::byte_of(const FlatLayout& layout, std::int64_t element) const {
  const auto after =
      std::upper_bound(layout.tensor_begin.begin(), layout.tensor_begin.end(), element);
  const auto tensor = static_cast<std::size_t>(after - layout.tensor_begin.begin() - 1);
  const std::int64_t inside = element - layout.tensor_begin[tensor];
  if (inside >= layout.tensors[tensor].n_elements) return begin[tensor + 1];
  return begin[tensor] + inside * static_cast<std::int64_t>(size_of(dtype[tensor]));
}

std::vector<std::int64_t> compute_cuts(const FlatLayout& layout, const ComputeLayout& compute,
                                       std::size_t bucket, int n_pieces) {
  const std::int64_t begin = layout.buckets[bucket].flat.begin;
  std::vector<std::int64_t> cuts;
  for (const std::int64_t cut : shard_cuts(layout, bucket, n_pieces, norm_chunk_elements)) {
    cuts.push_back(compute.byte_of(layout, begin + cut) - compute.byte_of(layout, begin));
  }
  return cuts;
}

}  // namespace llm
