#pragma once
#include <cstdint>
#include <vector>

#include "actors/model_state.h"
#include "src/comm/transport.h"
#include "src/model/parameters.h"
#include "src/rt/task.h"
#include "tensor/storage.h"

namespace llm {

/// All parameters of a model on one rank, f32, in canonical order: what is written and what
/// generates at the end of a run, where the ranks of a pipeline have a part each.
class WholeModel {
 public:
  explicit WholeModel(const ModelConfig& config);
  MutView parameter(std::size_t canonical) const { return views_[canonical]; }
  std::vector<View> parameters() const { return {views_.begin(), views_.end()}; }
  /// What each layer's ops read, by layer + 1: rounded to the compute dtype like a rank's own copy.
  std::vector<Values> values();

 private:
  ModelConfig config_;
  std::vector<ParameterSpec> specs_;
  Storage storage_;
  Storage copy_;
  std::vector<MutView> views_;
};

/// Brings the parameters of a pipeline's ranks to its first rank, where `whole` is set; nullptr on
/// the others. Every rank of the pipeline calls it, after its last step.
Task<> gather_parameters(Group& pipeline, int tag,
                         std::vector<std::vector<std::size_t>> parameters_by_rank,
                         const ModelState& state, WholeModel* whole);

}  // namespace llm
