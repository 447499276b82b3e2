#pragma once
#include <cstdint>
#include <vector>

#include "actors/messages.h"
#include "actors/model_state.h"
#include "src/comm/transport.h"
#include "src/rt/inbox.h"
#include "src/rt/port.h"
#include "src/rt/task.h"

namespace llm {

/// Keeps a pipeline's two holders of a tied embedding at the same bits: the head's rank, which
/// updates it, sends the new value after each step, and the first stage's rank hands
/// parameters_updated on only when it is there.
///
///   receives  parameters_updated(step)   from the rank's optimizer
///   sends     parameters_updated(step)   to the rank's stage and data feed: at once on the head's
///             rank, with the new value on the first stage's
/// Where both ranks own a piece of it each, the piece is what is sent.
class TiedEmbedding {
 public:
  struct Plan {
    int peer = 0;  ///< the other holder
    int tag = 0;
    std::int64_t first_step = 0;
    std::int64_t n_steps = 0;
    bool is_gathered = false;    ///< from ranks that own a piece each (ZeRO 1 and 2)
    bool is_shared_out = false;  ///< both holders have pieces of it alone (ZeRO 3)
  };
  /// Sends where `state` owns the embedding, receives where it has a copy.
  TiedEmbedding(Transport& transport, Plan plan, const ModelState& state,
                Port<ParametersUpdated> parameters_updated);

  Inbox<ParametersUpdated>& parameters_updated() { return parameters_updated_; }
  /// gathered(step * n_buckets + bucket): the owner sends when the table's buckets are there.
  void gathered(std::int64_t key);
  Task<> run();

 private:
  Task<> exchange(std::int64_t step);

  Transport& transport_;
  const Plan plan_;
  const ModelState& state_;
  const bool owns_;
  const WaitName wait_;
  const Port<ParametersUpdated> out_;
  Inbox<ParametersUpdated> parameters_updated_;
  Inbox<Ready> gathered_;
  std::vector<MutView> tables_;        // what is sent or received
  std::vector<std::int64_t> buckets_;  // of the table, on its owner
};

}  // namespace llm
