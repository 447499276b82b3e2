#pragma once
#include <vector>

#include "src/model/init.h"
#include "src/model/parameters.h"
#include "tensor/storage.h"

namespace llm {

/// One tensor for each parameter.
struct Tensors {
  explicit Tensors(const ModelConfig& config) : specs(parameters(config)) {
    for (const ParameterSpec& spec : specs) {
      storages.emplace_back(spec.n_elements() * 4);
      views.push_back(storages.back().view(Dtype::f32, spec.shape));
    }
  }
  void start(std::uint64_t seed) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      initialize(specs[i], seed, {0, specs[i].n_elements()}, views[i]);
    }
  }
  std::vector<View> values() const { return {views.begin(), views.end()}; }
  std::vector<ParameterSpec> specs;
  std::vector<Storage> storages;
  std::vector<MutView> views;
};

}  // namespace llm
