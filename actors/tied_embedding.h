#pragma once
#include <cstdint>

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
class TiedEmbedding {
 public:
  struct Plan {
    int peer = 0;  ///< the other holder
    int tag = 0;
    std::int64_t first_step = 0;
    std::int64_t n_steps = 0;
  };
  /// Sends where `state` owns the embedding, receives where it has a copy.
  TiedEmbedding(Transport& transport, Plan plan, const ModelState& state,
                Port<ParametersUpdated> parameters_updated);

  Inbox<ParametersUpdated>& parameters_updated() { return parameters_updated_; }
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
};

}  // namespace llm
