#pragma once
#include <cstdint>
#include <vector>

#include "src/model/parameters.h"
#include "tensor/storage.h"
#include "tensor/upload.h"

namespace llm {

/// All parameters of a model on one rank, f32, in canonical order: what generates at the end of a
/// run where ranks have a part each.
class WholeModel {
 public:
  explicit WholeModel(const ModelConfig& config);
  MutView parameter(std::size_t canonical) const { return views_[canonical]; }
  /// What each layer's ops read, by layer + 1: rounded to the compute dtype like a rank's own copy,
  /// and where they are to be read.
  std::vector<Values> values(Device device = Device::cpu);

 private:
  ModelConfig config_;
  std::vector<ParameterSpec> specs_;
  Storage storage_;
  Storage copy_;
  std::vector<Upload> uploads_;  // of a device's
  std::vector<MutView> views_;
};

}  // namespace llm
