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

std::vector<ParameterSpec> specs_of(const ModelConfig& config,
                                    const std::vector<std::size_t>& indices) {
  const std::vector<ParameterSpec> all = parameters(config);
  std::vector<ParameterSpec> specs;
  for (const std::size_t i : indices) specs.push_back(all[i]);
  return specs;
}

/// A norm inside a block: its gradients come with the input half of the block's backward.
bool is_block_norm(Role role) {
  return role == Role::norm1_weight || role == Role::norm1_bias || role == Role::norm2_weight ||
         role == Role::norm2_bias;
}

/// Of a block's second half.
bool is_mlp(Role role) {
  switch (role) {
    case Role::norm2_weight:
    case Role::norm2_bias:
    case Role::gate_weight:
    case Role::gate_bias:
    case Role::up_weight:
    case Role::up_bias:
    case Role::down_weight:
    case Role::down_bias:
      return true;
    default:
      return false;
  }
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

std::int64_t borrowed_bytes(const ModelConfig& config, const LayerRanges& ranges) {
  if (!borrows_embedding(config, ranges)) return 0;
  return config.vocab_size * config.hidden_size *
         static_cast<std::int64_t>(size_of(config.compute));
}

FlatLayout model_layout(const ModelConfig& config, const LayerRanges& ranges,
                        std::int64_t bucket_bytes) {
  std::vector<FlatTensor> tensors;
  for (const ParameterSpec& spec : specs_of(config, owned_parameters(config, ranges))) {
    tensors.push_back({spec.n_elements(), spec.layer, is_mlp(spec.role) ? 0 : 1});
  }
  std::reverse(tensors.begin(), tensors.end());
  return flat_layout(tensors, bucket_elements(bucket_bytes), norm_chunk_elements);
}

FlatLayout model_layout(const ModelConfig& config, std::int64_t bucket_bytes) {
  return model_layout(config, {all_layers(config)}, bucket_bytes);
}

ModelState::ModelState(const ModelConfig& config, std::int64_t bucket_bytes, int n_gradient_buffers,
                       bool shares_gradients)
    : ModelState(config, {all_layers(config)}, bucket_bytes, n_gradient_buffers, shares_gradients) {
}

ModelState::ModelState(const ModelConfig& config, const LayerRanges& ranges,
                       std::int64_t bucket_bytes, int n_gradient_buffers, bool shares_gradients)
    : config_(config),
      layout_(model_layout(config, ranges, bucket_bytes)),
      canonical_(owned_parameters(config, ranges)),
      specs_(specs_of(config, canonical_)),
      n_parameters_(parameters(config).size()),
      uses_(parameter_uses(config)),
      values_(f32_bytes(layout_.n_elements)),
      borrowed_(borrowed_bytes(config, ranges)),
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

View ModelState::compute_value(std::size_t spec) const {
  const bool is_copied = config_.compute != Dtype::f32 && specs_[spec].decay != DecayGroup::vector;
  if (!is_copied) return parameter(spec);
  return part(flat_copy(), layout_.tensor_begin[specs_.size() - 1 - spec], specs_[spec].shape);
}

std::int64_t ModelState::tied_tensor() const {
  for (std::size_t i = 0; i < specs_.size() && config_.tie_embeddings; ++i) {
    if (specs_[i].role == Role::token_embedding) {
      return static_cast<std::int64_t>(specs_.size() - 1 - i);
    }
  }
  return -1;
}

MutView ModelState::borrowed_embedding() const {
  if (borrowed_.n_bytes() == 0) return {};
  return borrowed_.view(config_.compute, {config_.vocab_size, config_.hidden_size});
}

View ModelState::tied_embedding() const {
  return compute_value(spec_of(tied_tensor()));
}

void ModelState::initialize(std::uint64_t seed) {
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const std::size_t tensor = specs_.size() - 1 - i;
    const Range all{0, specs_[i].n_elements()};
    llm::initialize(specs_[i], seed, all,
                    part(flat_values(), layout_.tensor_begin[tensor], {all.size()}));
  }
  Queue queue;
  if (const MutView embedding = borrowed_embedding(); !embedding.empty()) {
    const ParameterSpec spec = parameters(config_).front();
    const Storage drawn(f32_bytes(spec.n_elements()));
    const MutView values = drawn.view(Dtype::f32, {spec.n_elements()});
    llm::initialize(spec, seed, {0, spec.n_elements()}, values);
    convert(queue, values, part(embedding, 0, {spec.n_elements()}));
    queue.finish();
  }
  if (config_.compute != Dtype::f32) convert(queue, flat_values(), flat_copy());
  queue.finish();
}

Values ModelState::values(std::int64_t layer) const {
  std::vector<View> views(n_parameters_);
  for (std::size_t i = 0; i < specs_.size(); ++i) views[canonical_[i]] = compute_value(i);
  if (borrowed_.n_bytes() != 0) views[0] = borrowed_embedding();
  return layer_values(uses_, layer, views);
}

Gradients ModelState::gradients(std::int64_t layer, int buffer) const {
  std::vector<MutView> by_parameter(n_parameters_);
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const std::size_t tensor = specs_.size() - 1 - i;
    by_parameter[canonical_[i]] =
        part(flat_gradients(buffer), layout_.tensor_begin[tensor], specs_[i].shape);
  }
  std::vector<MutView> by_use;
  for (const ParameterUse& use : uses_) by_use.push_back(by_parameter[use.parameter]);
  return layer_gradients(uses_, layer, by_use);
}

bool ModelState::completes(std::int64_t tensor, std::int64_t layer, GradientPart part) const {
  if (layout_.tensors[static_cast<std::size_t>(tensor)].layer != layer) return false;
  const Role role = specs_[spec_of(tensor)].role;
  switch (part) {
    case GradientPart::all:
      return true;
    case GradientPart::mlp:
      return is_mlp(role);
    case GradientPart::attention:
      return !is_mlp(role);
    case GradientPart::norms:
      return is_block_norm(role);
    case GradientPart::matrices:
      return !is_block_norm(role);
  }
  return false;
}

void ModelState::accumulate(Queue& queue, std::int64_t layer, const AccumulationStep& step,
                            GradientPart part_of_layer) const {
  // Neighbours in the layout are added in one go, the padding between them included.
  std::vector<Range> runs;
  const auto n_tensors = static_cast<std::int64_t>(specs_.size());
  bool in_run = false;
  for (std::int64_t t = 0; t < n_tensors; ++t) {
    const bool is_in = t != tied_tensor() && completes(t, layer, part_of_layer);
    const std::int64_t begin = layout_.tensor_begin[static_cast<std::size_t>(t)];
    if (is_in && !in_run) runs.push_back({begin, begin});
    if (is_in) runs.back().end = begin + layout_.tensors[static_cast<std::size_t>(t)].n_elements;
    in_run = is_in;
  }
  for (int n = 0; n < step.n_additions; ++n) {
    const int from = step.buffer - n;
    for (const Range& run : runs) {
      add(queue, part(flat_gradients(from), run.begin, {run.size()}),
          part(flat_gradients(from - 1), run.begin, {run.size()}));
    }
  }
}

}  // namespace llm
