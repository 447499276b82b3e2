#pragma once
#include <cstdint>
#include <vector>

#include "actors/model_state.h"
#include "schedules/shards.h"
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

/// The masters that a rank of the run has: which, of which parameters.
struct MasterPieces {
  int rank = 0;
  struct Piece {
    std::size_t canonical;
    OwnedPiece owned;
  };
  std::vector<Piece> pieces;
};

/// Brings the masters of all ranks in `sources` to rank 0, where `whole` is set; nullptr on the
/// others. Each rank in `sources` calls it, after its last step.
Task<> gather_parameters(Transport& transport, int tag, std::vector<MasterPieces> sources,
                         const ModelState& state, WholeModel* whole);

}  // namespace llm
