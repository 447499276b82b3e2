#pragma once
#include <cstdint>
#include <vector>

#include "actors/messages.h"
#include "actors/model_state.h"
#include "actors/parameter_source.h"
#include "schedules/collective.h"
#include "schedules/units.h"
#include "schedules/validation.h"
#include "src/comm/transport.h"
#include "src/rt/inbox.h"
#include "src/rt/task.h"
#include "tensor/queue.h"
#include "tensor/storage.h"

namespace llm {

/// What ops read in a row: by use, the layer; and what is gathered for it.
struct UseList {
  std::vector<std::int64_t> layers;
  GatherPlan gathers;
};

/// Everything that a run's uses follow from: a list a step, and after the steps that are validated
/// one for each microbatch of a chunk.
struct UsePlan {
  UseList step;
  std::vector<UseList> chunks;  ///< by chunk of the rank: a validation microbatch's
  ValidationPlan validation;    ///< when
  std::vector<int> order;       ///< of a round: chunks, by microbatch and stage
  std::vector<bool> is_own;     ///< whether this rank has that microbatch; others of its group do
  std::int64_t first_step = 0;
  std::int64_t n_steps = 0;
  /// By slot, large enough for every list.
  std::vector<std::int64_t> slot_bytes() const;
};

/// A run's lists one after the other.
class UseCursor {
 public:
  explicit UseCursor(const UsePlan& plan);
  bool is_done() const { return step_ >= plan_.n_steps; }
  const UseList& list() const;
  /// The parameters are those of this step.
  std::int64_t version() const { return in_round_ < 0 ? step_ : step_ + 1; }
  /// Whether this rank's stage reads them.
  bool is_own() const;
  /// Of the list's first gather, over the whole run.
  std::int64_t first_gather() const { return first_gather_; }
  void advance();

 private:
  const UsePlan& plan_;
  std::int64_t step_;
  std::int64_t in_round_ = -1;  // index into order, or the training step
  std::int64_t first_gather_ = 0;
};

/// Brings each unit's parameters from the ranks that own a part of them (ZeRO 3): in the order in
/// which the schedule uses them, ahead of their use, into memory that is planned.
///
///   receives  updated(step * n_buckets + bucket)   from the optimizer
///             table_received(step)                 a borrowed table's owned part is that of `step`
///   serves    acquire and release                  of the rank's compute
///   holds     the slots of the plan
class UnitGatherer : public ParameterSource {
 public:
  struct Plan {
    UsePlan uses;
    GatherPolicy policy;
    CollectiveForm form = CollectiveForm::direct;  ///< says which rank has which piece
    int first_tag = 0;                             ///< bucket b has first_tag + b % n_tags
    int n_tags = 1;
  };
  /// `copies` runs the copies of owned pieces, also from the host to a device; `compute` what reads
  /// the units.
  UnitGatherer(Group& group, Queue& copies, Queue& compute, Plan plan, ModelState& state);

  Inbox<ParametersUpdated>& updated() { return updated_; }
  Inbox<Ready>& table_received() { return table_received_; }
  Task<> run();

  Task<> acquire(std::int64_t step, std::int64_t layer) override;
  void release(std::int64_t layer) override;
  bool moves() const override { return true; }

 private:
  struct Part {
    UnitPart part;
    std::vector<GatherRound> rounds;
  };
  /// False: the run stops before this version is used.
  Task<bool> wait_for_version(const std::vector<Part>& parts, std::int64_t version);
  Task<> gather(const std::vector<Part>& parts, MutView unit, std::int64_t key);
  MutView slot_of(const UnitGather& gather) const;

  Group& group_;
  Loop& loop_;
  Queue& copies_;
  Queue& compute_;
  const Plan plan_;
  ModelState& state_;
  Inbox<ParametersUpdated> updated_;
  Inbox<Ready> table_received_;
  Inbox<Ready> begun_;                    // by gather: its first use has
  Inbox<Ready> gathered_;                 // by gather
  Inbox<Ready> freed_;                    // by gather: nobody reads it any more
  std::vector<std::vector<Part>> parts_;  // by unit
  std::vector<Storage> slots_;
  std::vector<std::int64_t> version_;  // by bucket, and then of the table
  std::vector<std::int64_t> in_slot_;  // by slot: the gather that had it last, or -1
  UseCursor use_;                      // of the compute
  std::size_t n_acquired_ = 0;         // uses of its list
  std::size_t n_released_ = 0;
};

}  // namespace llm
