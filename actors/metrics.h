#pragma once
#include <cstdint>

#include "actors/messages.h"
#include "schedules/validation.h"
#include "src/rt/inbox.h"
#include "src/rt/port.h"
#include "src/rt/task.h"
#include "tensor/ops/router.h"

namespace llm {

/// What is known of a step once it is over.
struct StepMetrics {
  std::int64_t step = 0;
  double loss = 0;  ///< mean over the global batch's valid tokens, in nats; 0 where there are none
  double seconds = 0;
  StepReport report;
  RouterLosses router;  ///< of a mixture: means over valid tokens and blocks
};
struct ValidationMetrics {
  std::int64_t step = 0;  ///< the last step before it
  double loss = 0;        ///< mean over all valid tokens of the validation set
  std::int64_t n_tokens = 0;
  double seconds = 0;
};

/// Gathers losses of all ranks on rank 0 and hands each step's numbers out. Losses are added in
/// order of the global microbatch, never of arrival.
///
///   receives  loss(step * N + global m)                 from every stage that has the head
///             validation_loss(round * N' + global i)    likewise
///             router_losses(step * ranks + rank)        of a mixture, from the stage of every rank
///             step_report(step)                         from this rank's optimizer
///   sends     step_done(step), validation_done(step)    to whoever records them
class Metrics {
 public:
  struct Plan {
    int n_global_microbatches = 1;  ///< N
    int n_router_ranks = 0;         ///< ranks that tell router_losses; 0: no mixture
    std::int64_t n_routers = 0;     ///< blocks of the model with a router
    ValidationPlan validation;      ///< N' is its n_microbatches()
    std::int64_t first_step = 0;
    std::int64_t n_steps = 0;
  };
  struct Outbox {
    Port<StepMetrics> step_done;
    Port<ValidationMetrics> validation_done;
  };

  Metrics(Loop& loop, Plan plan, Outbox out);

  Inbox<LossReport>& loss() { return loss_; }
  Inbox<LossReport>& validation_loss() { return validation_loss_; }
  Inbox<RouterLosses>& router_losses() { return router_losses_; }
  Inbox<StepReport>& step_report() { return step_report_; }
  Task<> run();

 private:
  Task<RouterLosses> take_router_losses(std::int64_t step);

  const Plan plan_;
  const Outbox out_;
  Inbox<LossReport> loss_;
  Inbox<LossReport> validation_loss_;
  Inbox<RouterLosses> router_losses_;
  Inbox<StepReport> step_report_;
};

}  // namespace llm
