#include "src/train/whole_model.h"

#include "tensor/ops/elementwise.h"
#include "tensor/queue.h"

namespace llm {
WholeModel::WholeModel(const ModelConfig& config)
    : config_(config), specs_(llm::parameters(config)), storage_(n_parameters(config) * 4) {
  std::int64_t begin = 0;
  for (const ParameterSpec& spec : specs_) {
    views_.push_back(storage_.view(Dtype::f32, spec.shape, begin));
    begin += spec.n_elements() * 4;
  }
}

std::vector<Values> WholeModel::values(Device device) {
  std::vector<View> views(views_.begin(), views_.end());
  if (config_.compute != Dtype::f32) {
    const auto width = static_cast<std::int64_t>(size_of(config_.compute));
    copy_ = Storage(storage_.n_bytes() / 4 * width);
    Queue queue;
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      const MutView rounded = copy_.view(config_.compute, specs_[i].shape, begin);
      begin += rounded.n_bytes();
      if (specs_[i].decay == DecayGroup::vector) continue;
      convert(queue, views_[i], rounded);
      views[i] = rounded;
    }
    queue.finish();
  }
  if (device != Device::cpu) {
    Queue queue(device);
    for (View& view : views) {
      Upload& there = uploads_.emplace_back(queue, view);
      view = there.view();
      queue.finish();
      there.landed();
    }
  }
  const std::vector<ParameterUse> uses = parameter_uses(config_);
  std::vector<Values> by_layer;
  const Range layers = all_layers(config_);
  for (std::int64_t layer = layers.begin; layer < layers.end; ++layer) {
    by_layer.push_back(layer_values(uses, layer, views));
  }
  return by_layer;
}

}  // namespace llm
