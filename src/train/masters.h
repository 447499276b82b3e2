#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "actors/model_state.h"
#include "schedules/shards.h"
#include "src/checkpoint/boxes.h"
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

/// Where a rank's pieces lie: in its state, or in a copy of it.
using PieceSource = std::function<View(TensorPart part, const OwnedPiece& piece)>;
PieceSource pieces_of(const ModelState& state);

/// Asks for a rank's pieces of one parameter's weight or moment; -1 says that nothing more is asked
/// for.
struct MasterRequest {
  std::int64_t canonical = -1;
  std::int64_t part = 0;  ///< TensorPart
};

/// Sends what the rank owns of a parameter to whoever writes it.
///
///   receives  request(0, 1, ...)   from rank 0, numbered over all runs
///   sends     the pieces, in their order, to rank 0
class MasterServer {
 public:
  MasterServer(Transport& transport, int tag, MasterPieces own);
  Inbox<MasterRequest>& requests() { return requests_; }
  /// Ends when nothing more is asked for; it may run again.
  Task<> run(PieceSource source);

 private:
  Transport& transport_;
  const int tag_;
  const MasterPieces own_;
  std::int64_t n_requests_ = 0;
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
  MasterFetcher(ControlPlane& control, Transport& transport, Plan plan, const ModelConfig& model);
  /// Where this rank's own pieces are from now on.
  void set_source(PieceSource own) { own_ = std::move(own); }
  /// Afterwards parameter() is this one, f32 under its internal shape: where the rank has it whole
  /// in its place, otherwise in memory that the next fetch takes.
  Task<> fetch(std::size_t canonical, TensorPart part = TensorPart::weight);
  View parameter() const { return parameter_; }
  /// Every server's run() ends.
  void end();

 private:
  /// The parameter in this rank's memory, where it is there in one; otherwise empty.
  View own_parameter(std::size_t canonical, const ParameterSpec& spec, TensorPart part) const;
  Task<> fetch_from(std::size_t source, std::size_t canonical, TensorPart part, MutView into);

  Transport& transport_;
  const Plan plan_;
  const ModelConfig whole_;
  PieceSource own_;
  std::vector<Port<MasterRequest>> servers_;  // by source
  std::vector<std::int64_t> n_asked_;
  Storage memory_;
  Storage piece_;  // of a tensor-parallel rank's part
  View parameter_;
};

}  // namespace llm
