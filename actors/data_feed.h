#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "actors/messages.h"
#include "schedules/partition.h"
#include "src/data/sample_source.h"
#include "src/rt/inbox.h"
#include "src/rt/port.h"
#include "src/rt/task.h"
#include "tensor/queue.h"
#include "tensor/storage.h"

namespace llm {

/// Where ops read token ids, and where a device's are written first.
struct Uploads {
  Queue* queue = nullptr;  ///< of a device: the one whose ops read them; else nothing is copied
  std::int64_t vocab_size = 0;  ///< ids are checked before they are on a device
};

/// Tokens or labels: n ids where their source writes them and, where ops run on a device, there
/// too.
class TokenIds {
 public:
  TokenIds(std::int64_t n, const Uploads& uploads);
  bool empty() const { return here_.n_bytes() == 0; }
  /// Of the ids from `begin` on: where they are written; empty where there are none.
  MutView here(std::int64_t n, std::int64_t begin) const;
  /// Where ops read them, once they are written: what is put into the queue after this reads them.
  View there(std::int64_t n, std::int64_t begin) const;

 private:
  Uploads uploads_;
  Storage here_;
  Storage there_;
};

/// Fetches the samples of its rank's microbatches, one step ahead of the stage.
///
///   receives  parameters_updated(step)   from the optimizer: step - 1 is over, its buffer is free
///   sends     microbatch(step * A + m)   to the stage
///             step_facts(step * n_ranks + rank)  to the optimizer of every rank: valid tokens (of
///             a pipeline from one rank that has the labels), stop
///   holds     tokens and labels of two steps, where the rank's stages read them
class DataFeed {
 public:
  struct Plan {
    Partition partition;
    int dp_rank = 0;
    int rank = 0;
    int n_ranks = 1;
    bool has_tokens = true;  ///< views of what the rank does not read are empty
    bool has_labels = true;
    bool counts_labels = true;  ///< one rank of each pipeline does
    bool keeps_states = false;  ///< one rank of the run does, where checkpoints are saved
    std::int64_t first_step = 0;
    std::int64_t n_steps = 0;
    Uploads uploads = {};
  };
  struct Outbox {
    Port<Microbatch> microbatch;
    Port<StepFacts> step_facts;  ///< leads to all ranks
  };

  /// `stop_requested` is asked once a step.
  DataFeed(Loop& loop, Plan plan, SampleSource& source, std::function<bool()> stop_requested,
           Outbox out);

  Inbox<ParametersUpdated>& parameters_updated() { return parameters_updated_; }
  Task<> run();
  /// The source's state before the samples of `step`, which is the next one or the one after it:
  /// what a checkpoint of so many steps keeps. Where the plan keeps states.
  std::string state_before(std::int64_t step) const;

 private:
  void feed(std::int64_t step);

  const Plan plan_;
  SampleSource& source_;
  std::int64_t fed_step_ = -1;  // the last one that was fed, and the state before it
  std::string state_before_;
  const std::function<bool()> stop_requested_;
  const Outbox out_;
  Inbox<ParametersUpdated> parameters_updated_;
  TokenIds tokens_;  // (2, samples of a rank and step, seq_len) i32: by parity of the step
  TokenIds labels_;
};

/// Fetches validation microbatches when the stage wants them.
///
///   receives  wanted(round * n + i)       from the stage, at most n_buffers outstanding
///   sends     validation(round * n + i)   to the stage
///   holds     n_buffers microbatches
class ValidationFeed {
 public:
  struct Plan {
    Range microbatches;                   ///< of the rank, among all of a round
    std::int64_t microbatch_samples = 1;  ///< the last one may be smaller
    std::int64_t n_samples = 0;           ///< of the validation set
    std::int64_t n_rounds = 0;
    std::int64_t n_buffers = 2;
    bool has_tokens = true;
    bool has_labels = true;
    std::int64_t n_spare = 0;  ///< after the rank's own so many times spare_validation
    Uploads uploads = {};
  };

  ValidationFeed(Loop& loop, Plan plan, SampleSource& source, Port<Microbatch> validation);

  Inbox<Ready>& wanted() { return wanted_; }
  Task<> run();

 private:
  const Plan plan_;
  SampleSource& source_;
  const Port<Microbatch> validation_;
  Inbox<Ready> wanted_;
  TokenIds tokens_;  // (n_buffers, microbatch_samples, seq_len) i32
  TokenIds labels_;
};

}  // namespace llm
