#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "actors/messages.h"
#include "actors/model_state.h"
#include "actors/parameter_source.h"
#include "schedules/collective.h"
#include "src/comm/transport.h"
#include "src/rt/inbox.h"
#include "src/rt/port.h"
#include "src/rt/task.h"

namespace llm {

/// Gathers updated parameters from the ranks that own them, bucket after bucket in the order in
/// which the next forward reads them, while that forward has begun (ZeRO 1 and 2).
///
///   receives  updated(step * n_buckets + bucket)            from the optimizer
///   sends     gathered((step + 1) * n_buckets + bucket)     to GatheredParameters
class ParameterGatherer {
 public:
  struct Plan {
    CollectiveForm form = CollectiveForm::direct;  ///< says which rank has which piece
    int first_tag = 0;                             ///< bucket b has first_tag + b % n_tags
    int n_tags = 1;
    std::int64_t first_step = 0;
    std::int64_t n_steps = 0;
  };
  struct Outbox {
    Port<Ready> gathered;
  };
  ParameterGatherer(Group& group, Plan plan, const ModelState& state, Outbox out);

  Inbox<ParametersUpdated>& updated() { return updated_; }
  Task<> run();

 private:
  struct Gather {
    MutView bytes;  // of the bucket, as ops read it
    std::vector<GatherRound> rounds;
  };

  Group& group_;
  const Plan plan_;
  const Outbox out_;
  Inbox<ParametersUpdated> updated_;
  std::vector<Gather> gathers_;  // by bucket
};

/// Parameters that every rank has whole, once they are gathered.
///
///   receives  gathered(step * n_buckets + bucket)
class GatheredParameters : public ParameterSource {
 public:
  GatheredParameters(Loop& loop, const ModelState& state, std::int64_t first_step);
  Inbox<Ready>& gathered() { return gathered_; }
  Task<> acquire(std::int64_t step, std::int64_t layer) override;
  void release(std::int64_t) override {}
  bool moves() const override { return false; }

 private:
  Inbox<Ready> gathered_;
  std::map<std::int64_t, std::vector<std::size_t>> buckets_;  // by layer
  std::vector<std::int64_t> step_of_;                         // by bucket
};

}  // namespace llm
