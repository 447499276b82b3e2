#include "actors/model_state.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/model/init.h"
#include "tensor/ops/adamw.h"
#include "tensor/ops/elementwise.h"

namespace llm {
namespace {

std::int64_t f32_bytes(std::int64_t n_elements) {
  return n_elements * 4;
}

std::int64_t bucket_elements(std::int64_t bucket_bytes) {
  return std::max<std::int64_t>(1, bucket_bytes / 4);
}

}  // namespace

std::int64_t copy_bytes(const ModelConfig& config, const FlatLayout& layout) {
  if (config.compute == Dtype::f32) return 0;
  return layout.n_elements * static_cast<std::int64_t>(size_of(config.compute));
}

AccumulationPlan accumulation_plan(Accumulation kind, int n_microbatches) {
  if (kind == Accumulation::tree) return {kind, accumulation_tree(n_microbatches)};
  return {kind, std::vector<AccumulationStep>(static_cast<std::size_t>(n_microbatches), {0, 0})};
}

FlatLayout model_layout(const ModelConfig& config, std::int64_t bucket_bytes) {
  std::vector<FlatTensor> tensors;
  for (const ParameterSpec& spec : parameters(config)) {
    tensors.push_back({spec.n_elements(), spec.layer});
  }
  std::reverse(tensors.begin(), tensors.end());
  return flat_layout(tensors, bucket_elements(bucket_bytes), norm_chunk_elements);
}

ModelState::ModelState(const ModelConfig& config, std::int64_t bucket_bytes, int n_gradient_buffers,
                       bool shares_gradients)
    : config_(config),
      layout_(model_layout(config, bucket_bytes)),
      specs_(parameters(config)),
      uses_(parameter_uses(config)),
      values_(f32_bytes(layout_.n_elements)),
      copy_(copy_bytes(config, layout_)),
      m_(f32_bytes(layout_.n_elements)),
      v_(f32_bytes(layout_.n_elements)) {
  for (int i = 0; i < n_gradient_buffers; ++i) {
    const std::int64_t n_bytes = f32_bytes(layout_.n_elements);
    gradients_.push_back(shares_gradients && i == 0 ? Storage::shared(n_bytes) : Storage(n_bytes));
  }
}

View ModelState::parameter(std::size_t spec) const {
  const std::size_t tensor = specs_.size() - 1 - spec;
  return part(flat_values(), layout_.tensor_begin[tensor], specs_[spec].shape);
}

void ModelState::initialize(std::uint64_t seed) {
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const std::size_t tensor = specs_.size() - 1 - i;
    const Range all{0, specs_[i].n_elements()};
    llm::initialize(specs_[i], seed, all,
                    part(flat_values(), layout_.tensor_begin[tensor], {all.size()}));
  }
  if (config_.compute == Dtype::f32) return;
  Queue queue;
  convert(queue, flat_values(), flat_copy());
  queue.finish();
}

Values ModelState::values(std::int64_t layer) const {
  std::vector<View> views;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const std::size_t tensor = specs_.size() - 1 - i;
    const bool is_copied = config_.compute != Dtype::f32 && specs_[i].decay != DecayGroup::vector;
    views.push_back(is_copied ? part(flat_copy(), layout_.tensor_begin[tensor], specs_[i].shape)
                              : parameter(i));
  }
  return layer_values(uses_, layer, views);
}

Gradients ModelState::gradients(std::int64_t layer, int buffer) const {
  std::vector<MutView> views;
  for (const ParameterUse& use : uses_) {
    const std::size_t tensor = specs_.size() - 1 - use.parameter;
    views.push_back(
        part(flat_gradients(buffer), layout_.tensor_begin[tensor], specs_[use.parameter].shape));
  }
  return layer_gradients(uses_, layer, views);
}

Range ModelState::layer_range(std::int64_t layer) const {
  Range range{layout_.n_elements, 0};
  for (std::size_t t = 0; t < layout_.tensors.size(); ++t) {
    if (layout_.tensors[t].layer != layer) continue;
    range.begin = std::min(range.begin, layout_.tensor_begin[t]);
    range.end = std::max(range.end, layout_.tensor_begin[t] + layout_.tensors[t].n_elements);
  }
  return range;
}

void ModelState::accumulate(Queue& queue, std::int64_t layer, const AccumulationStep& step) const {
  const Range range = layer_range(layer);
  for (int n = 0; n < step.n_additions; ++n) {
    const int from = step.buffer - n;
    if (!range.empty()) {
      add(queue, part(flat_gradients(from), range.begin, {range.size()}),
          part(flat_gradients(from - 1), range.begin, {range.size()}));
    }
  }
}

}  // namespace llm
