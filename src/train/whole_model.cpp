#include "src/train/whole_model.h"

#include "src/rt/event.h"
#include "tensor/ops/elementwise.h"

namespace llm {
namespace {

const WaitName wait_parameter{"parameter", "a rank of the pipeline"};

}  // namespace

WholeModel::WholeModel(const ModelConfig& config)
    : config_(config), specs_(llm::parameters(config)), storage_(n_parameters(config) * 4) {
  std::int64_t begin = 0;
  for (const ParameterSpec& spec : specs_) {
    views_.push_back(storage_.view(Dtype::f32, spec.shape, begin));
    begin += spec.n_elements() * 4;
  }
}

std::vector<Values> WholeModel::values() {
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
  const std::vector<ParameterUse> uses = parameter_uses(config_);
  std::vector<Values> by_layer;
  const Range layers = all_layers(config_);
  for (std::int64_t layer = layers.begin; layer < layers.end; ++layer) {
    by_layer.push_back(layer_values(uses, layer, views));
  }
  return by_layer;
}

Task<> gather_parameters(Group& pipeline, int tag,
                         std::vector<std::vector<std::size_t>> parameters_by_rank,
                         const ModelState& state, WholeModel* whole) {
  Transport& transport = pipeline.transport;
  for (std::size_t rank = 0; rank < parameters_by_rank.size(); ++rank) {
    const bool is_own = static_cast<int>(rank) == pipeline.index;
    if (!is_own && pipeline.index != 0) continue;
    for (std::size_t i = 0; i < parameters_by_rank[rank].size(); ++i) {
      const std::size_t canonical = parameters_by_rank[rank][i];
      const Header header(MessageKind::parameter, 0, static_cast<std::int32_t>(canonical), 0);
      Event done(transport.loop(), wait_parameter, static_cast<std::int64_t>(canonical));
      if (is_own && whole != nullptr) {
        const View own = state.parameter(i);
        Queue queue;
        copy(queue, own, whole->parameter(canonical));
        queue.finish();
        continue;
      }
      if (is_own) {
        transport.send(pipeline.rank_of(0), tag, header, state.parameter(i), done);
      } else {
        transport.receive(pipeline.rank_of(static_cast<int>(rank)), tag, header,
                          whole->parameter(canonical), done);
      }
      co_await done;
    }
  }
}

}  // namespace llm
