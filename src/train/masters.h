#pragma once
#include <cstdint>
#include <vector>

#include "actors/model_state.h"
#include "schedules/shards.h"
#include "src/comm/control.h"
#include "src/comm/transport.h"
#include "src/rt/inbox.h"
#include "src/rt/task.h"
#include "tensor/storage.h"

namespace llm {

/// The f32 weights (masters) that a rank of the run owns: which parts of which parameters.
struct MasterPieces {
  int rank = 0;
  ModelConfig::TensorParallel tp = {};  ///< the rank's part of each parameter, with ep
  ModelConfig::ExpertParallel ep = {};
  struct Piece {
    std::size_t canonical;  ///< index into parameters(config)
    OwnedPiece owned;
  };
  std::vector<Piece> pieces;
};

/// Asks for a rank's pieces of one parameter; -1 says that nothing more is asked for.
struct MasterRequest {
  std::int64_t canonical = -1;
};

/// Sends what the rank owns of a parameter to whoever writes it, after the rank's last step.
///
///   receives  request(0, 1, ...)   from rank 0
///   sends     the pieces, in their order, to rank 0
class MasterServer {
 public:
  MasterServer(Transport& transport, int tag, MasterPieces own, const ModelState& state);
  Inbox<MasterRequest>& requests() { return requests_; }
  /// Ends when nothing more is asked for.
  Task<> run();

 private:
  Transport& transport_;
  const int tag_;
  const MasterPieces own_;
  const ModelState& state_;
  Inbox<MasterRequest> requests_;
};

/// Brings whole parameters to rank 0, one at a time: what a file is written from where ranks have a
/// part of the model each. No rank holds more than its part and one parameter.
class MasterFetcher {
 public:
  struct Plan {
    std::vector<MasterPieces> sources;  ///< each element once
    int tag = 0;
    int channel = 0;  ///< of the servers' requests
  };
  MasterFetcher(ControlPlane& control, Transport& transport, Plan plan, const ModelState& state);
  /// Afterwards parameter() is this one, f32 under its internal shape.
  Task<> fetch(std::size_t canonical);
  View parameter() const { return parameter_; }
  /// Every server's run() ends.
  void end();

 private:
  Transport& transport_;
  const Plan plan_;
  const ModelState& state_;
  std::vector<Port<MasterRequest>> servers_;  // by source
  std::vector<std::int64_t> n_asked_;
  Storage memory_;
  Storage piece_;  // of a tensor-parallel rank's part
  MutView parameter_;
};

}  // namespace llm
