#include "actors/model_state.h"

#include <algorithm>

#include "src/base/check.h"
#include "src/model/init.h"
#include "tensor/ops/adamw.h"
#include "tensor/ops/elementwise.h"
#include "tensor/upload.h"

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
    case Role::router_weight:
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

/// Starting values of some of a parameter's elements, as ops read them. In parts, so that rounding
/// needs little memory beside them.
void draw_rounded(const ParameterSpec& spec, const InitialValues& source, Range elements,
                  MutView values) {
  if (values.dtype() == Dtype::f32 && values.device() == Device::cpu) {
    source(spec, elements, values);
    return;
  }
  constexpr std::int64_t n_at_a_time = 1 << 20;
  const Storage exact(f32_bytes(std::min(n_at_a_time, elements.size())));
  Queue queue(values.device());
  for (std::int64_t begin = elements.begin; begin < elements.end; begin += n_at_a_time) {
    const Range some{begin, std::min(begin + n_at_a_time, elements.end)};
    const MutView drawn = exact.view(Dtype::f32, {some.size()});
    source(spec, some, drawn);
    const Upload there(queue, drawn);
    convert(queue, there.view(), part(values, begin - elements.begin, {some.size()}));
    queue.finish();
  }
}

/// Among the tensors of a layout, in reversed order of the specs.
std::int64_t tied_tensor_of(const ModelConfig& config, const std::vector<ParameterSpec>& specs) {
  for (std::size_t i = 0; i < specs.size() && config.tie_embeddings; ++i) {
    if (specs[i].role == Role::token_embedding) {
      return static_cast<std::int64_t>(specs.size() - 1 - i);
    }
  }
  return -1;
}

}  // namespace

AccumulationPlan accumulation_plan(Accumulation kind, int n_microbatches) {
  if (kind == Accumulation::tree) return {kind, accumulation_tree(n_microbatches)};
  return {kind, std::vector<AccumulationStep>(static_cast<std::size_t>(n_microbatches), {0, 0})};
}

std::int64_t borrowed_bytes(const ModelConfig& config, const LayerRanges& ranges) {
  if (!borrows_embedding(config, ranges)) return 0;
  return config.local_vocab_size() * config.hidden_size *
         static_cast<std::int64_t>(size_of(config.compute));
}

FlatLayout model_layout(const ModelConfig& config, const LayerRanges& ranges,
                        std::int64_t bucket_bytes, const std::vector<Unit>& units) {
  std::vector<FlatTensor> tensors;
  for (const ParameterSpec& spec : specs_of(config, owned_parameters(config, ranges))) {
    const int unit = units.empty() ? 0 : unit_of(units, spec.layer);
    const bool is_own = config.ep.size > 1 && is_of_experts(config, spec.role);
    tensors.push_back({spec.n_elements(), spec.layer, is_mlp(spec.role) ? 0 : 1, unit, is_own});
  }
  std::reverse(tensors.begin(), tensors.end());
  return flat_layout(tensors, bucket_elements(bucket_bytes), norm_chunk_elements);
}

FlatLayout model_layout(const ModelConfig& config, std::int64_t bucket_bytes) {
  return model_layout(config, {all_layers(config)}, bucket_bytes);
}

ModelState::ModelState(const ModelConfig& config, std::int64_t bucket_bytes, int n_gradient_buffers,
                       bool shares_gradients)
    : ModelState(
          config,
          StateShape{{all_layers(config)}, bucket_bytes, n_gradient_buffers, shares_gradients}) {}

ModelState::ModelState(const ModelConfig& config, const StateShape& shape)
    : config_(config),
      device_(shape.device),
      layout_(model_layout(config, shape.ranges, shape.bucket_bytes, shape.units)),
      shard_(shard_of(layout_, shape.n_pieces, shape.piece, norm_chunk_elements)),
      canonical_(owned_parameters(config, shape.ranges)),
      specs_(specs_of(config, canonical_)),
      tied_tensor_(tied_tensor_of(config, specs_)),
      n_parameters_(parameters(config).size()),
      uses_(parameter_uses(config)),
      compute_layout_(llm::compute_layout(config, shape.ranges)),
      compute_(shape.units.empty() ? compute_layout_.n_bytes() : 0, device_),
      masters_(owned_memory(config.compute == Dtype::f32 ? 0 : f32_bytes(shard_.n_elements),
                            device_, shape.is_offloaded)),
      borrowed_(shape.units.empty() ? borrowed_bytes(config, shape.ranges) : 0, device_),
      m_(owned_memory(f32_bytes(shard_.n_elements), device_, shape.is_offloaded)),
      v_(owned_memory(f32_bytes(shard_.n_elements), device_, shape.is_offloaded)),
      host_gradients_(
          owned_memory(shape.is_offloaded ? f32_bytes(shard_.n_elements) : 0, device_, true)) {
  CHECK_CONTRACT(!shape.is_offloaded || !shape.units.empty(), "units are what is offloaded");
  if (!shape.units.empty()) {
    units_.emplace(layout_, compute_layout_, shape.unit_shape());
  }
  for (int i = 0; i < shape.n_gradient_buffers; ++i) {
    const std::int64_t n_bytes = f32_bytes(layout_.n_elements);
    const bool shares = shape.shares_gradients && i == 0;
    gradients_.push_back(shares ? Storage::shared(n_bytes) : Storage(n_bytes, device_));
  }
}

MutView ModelState::compute_view(std::int64_t tensor, std::int64_t first_element,
                                 Shape shape) const {
  const auto t = static_cast<std::size_t>(tensor);
  const Dtype dtype = compute_layout_.dtype[t];
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  if (units_) {
    const MutView bytes = units_->tensor(tensor);
    if (bytes.empty()) return {};
    return {static_cast<std::byte*>(bytes.data()) + first_element * width, dtype, shape, device_};
  }
  return compute_.view(dtype, shape, compute_layout_.begin[t] + first_element * width);
}

MutView ModelState::compute_value(std::size_t spec) const {
  const auto tensor = static_cast<std::int64_t>(specs_.size() - 1 - spec);
  return compute_view(tensor, 0, specs_[spec].shape);
}

View ModelState::parameter(std::size_t spec) const {
  if (masters_.n_bytes() == 0) return compute_value(spec);
  CHECK_CONTRACT(shard_.n_elements == layout_.n_elements, "a whole parameter is on its one owner");
  const std::int64_t begin = layout_.tensor_begin[specs_.size() - 1 - spec];
  return masters_.view(Dtype::f32, specs_[spec].shape, f32_bytes(begin));
}

MutView ModelState::master(const OwnedPiece& piece) const {
  if (masters_.n_bytes() != 0) return of_shard(masters_, piece);
  return owned_view(piece);
}

MutView ModelState::owned_view(const OwnedPiece& piece) const {
  if (units_) return units_->owned(piece);
  return compute_view(piece.tensor, piece.elements.begin, {piece.elements.size()});
}

MutView ModelState::gradient(const OwnedPiece& piece) const {
  return part(flat_gradients(0), piece.flat_begin, {piece.elements.size()});
}

View ModelState::update_gradient(const OwnedPiece& piece) const {
  return host_gradients_.n_bytes() == 0 ? gradient(piece) : of_shard(host_gradients_, piece);
}

void ModelState::fetch_gradients(Queue& queue, std::size_t bucket) const {
  if (host_gradients_.n_bytes() == 0) return;
  for (const OwnedPiece& piece : shard_.pieces[bucket]) {
    copy(queue, gradient(piece), of_shard(host_gradients_, piece));
  }
}

void ModelState::discard_gradients(std::size_t bucket) const {
  const Range whole = layout_.buckets[bucket].flat;
  const Range own = shard_.flat[bucket];
  const Storage& sums = gradients_.front();
  sums.discard(f32_bytes(whole.begin), f32_bytes(own.begin - whole.begin));
  sums.discard(f32_bytes(own.end), f32_bytes(whole.end - own.end));
  for (std::size_t i = 1; i < gradients_.size(); ++i) {
    gradients_[i].discard(f32_bytes(whole.begin), f32_bytes(whole.size()));
  }
}

MutView ModelState::rounded(const OwnedPiece& piece) const {
  if (masters_.n_bytes() == 0) return {};
  return owned_view(piece);
}

MutView ModelState::compute_bytes(Range flat) const {
  const std::int64_t begin = compute_layout_.byte_of(layout_, flat.begin);
  const std::int64_t end = compute_layout_.byte_of(layout_, flat.end);
  return compute_.view(Dtype::u8, {end - begin}, begin);
}

std::vector<std::size_t> ModelState::buckets_of(std::int64_t layer) const {
  std::vector<bool> is_read(n_parameters_, false);
  for (const ParameterUse& use : uses_) {
    if (use.layer == layer) is_read[use.parameter] = true;
  }
  std::vector<std::size_t> buckets;
  for (std::size_t b = 0; b < layout_.buckets.size(); ++b) {
    const auto& pieces = layout_.buckets[b].pieces;
    if (std::any_of(pieces.begin(), pieces.end(), [&](const BucketPiece& piece) {
          return is_read[canonical_[spec_of(piece.tensor)]];
        })) {
      buckets.push_back(b);
    }
  }
  return buckets;
}

MutView ModelState::borrowed_embedding() const {
  const Shape shape{config_.local_vocab_size(), config_.hidden_size};
  if (units_) {
    const MutView bytes = units_->table();
    return bytes.empty() ? MutView() : MutView(bytes.data(), config_.compute, shape, device_);
  }
  if (borrowed_.n_bytes() == 0) return {};
  return borrowed_.view(config_.compute, shape);
}

std::vector<MutView> ModelState::owned_table() const {
  std::vector<MutView> views;
  for (const auto& pieces : shard_.pieces) {
    for (const OwnedPiece& piece : pieces) {
      if (piece.tensor == tied_tensor_) views.push_back(owned_view(piece));
    }
  }
  if (!units_) return views;
  for (const UnitMemory::TablePiece& piece : units_->owned_table()) {
    views.emplace_back(piece.bytes.data(), config_.compute, Shape{piece.elements.size()},
                       piece.bytes.device());
  }
  return views;
}

MutView ModelState::tied_embedding() const {
  return compute_value(spec_of(tied_tensor()));
}

void ModelState::draw(std::int64_t tensor, Range elements, const InitialValues& source) const {
  if (elements.empty()) return;
  draw_rounded(specs_[spec_of(tensor)], source, elements,
               compute_view(tensor, elements.begin, {elements.size()}));
}

void ModelState::draw_owned(const OwnedPiece& piece, const InitialValues& source) const {
  draw_rounded(specs_[spec_of(piece.tensor)], source, piece.elements, master(piece));
  if (rounded(piece).empty()) return;
  Queue queue(owned_device());
  convert(queue, master(piece), rounded(piece));
  queue.finish();
}

void ModelState::initialize(std::uint64_t seed) {
  initialize([seed](const ParameterSpec& parameter, Range elements, MutView values) {
    llm::initialize(parameter, seed, elements, values);
  });
}

void ModelState::initialize(const InitialValues& whole) {
  const InitialValues source = [&whole](const ParameterSpec& parameter, Range elements,
                                        MutView values) {
    read_slice(parameter, elements, whole, values);
  };
  for (std::size_t b = 0; b < layout_.buckets.size(); ++b) {
    for (const OwnedPiece& piece : shard_.pieces[b]) draw_owned(piece, source);
    if (units_) continue;
    const Range own = shard_.flat[b];
    for (const BucketPiece& piece : layout_.buckets[b].pieces) {
      // What others own, before and after this rank's part.
      const std::int64_t shift = piece.elements.begin - piece.flat_begin;
      const std::int64_t end = piece.elements.end;
      draw(piece.tensor, {piece.elements.begin, std::min(end, own.begin + shift)}, source);
      draw(piece.tensor, {std::max(piece.elements.begin, own.end + shift), end}, source);
    }
  }
  const ParameterSpec table = parameters(config_).front();
  if (borrowed_.n_bytes() != 0) {
    const Range all{0, table.n_elements()};
    draw_rounded(table, source, all, part(borrowed_embedding(), 0, {all.size()}));
  }
  if (!units_) return;
  for (const UnitMemory::TablePiece& piece : units_->owned_table()) {
    draw_rounded(table, source, piece.elements,
                 MutView(piece.bytes.data(), config_.compute, {piece.elements.size()},
                         piece.bytes.device()));
  }
}

void ModelState::set_moments(const WholeValues& m, const WholeValues& v) const {
  for (const std::vector<OwnedPiece>& pieces : shard_.pieces) {
    for (const OwnedPiece& piece : pieces) {
      const ParameterSpec& spec = specs_[spec_of(piece.tensor)];
      for (const auto& [values, into] : {std::pair(&m, this->m(piece)), {&v, this->v(piece)}}) {
        draw_rounded(
            spec,
            [values](const ParameterSpec& of, Range elements, MutView some) {
              read_slice(of, elements, *values, some);
            },
            piece.elements, into);
      }
    }
  }
}

Values ModelState::values(std::int64_t layer) const {
  std::vector<View> views(n_parameters_);
  for (std::size_t i = 0; i < specs_.size(); ++i) views[canonical_[i]] = compute_value(i);
  if (const MutView table = borrowed_embedding(); !table.empty()) views[0] = table;
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
  if (step.n_additions == 0) return;
  // Neighbours in the layout are added in one go, the padding between them included.
  std::vector<Range> runs;
  const auto n_tensors = static_cast<std::int64_t>(specs_.size());
  bool in_run = false;
  for (std::int64_t t = 0; t < n_tensors; ++t) {
    const bool is_in = t != tied_tensor_ && completes(t, layer, part_of_layer);
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
