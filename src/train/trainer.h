#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "actors/data_feed.h"
#include "actors/decoder_compute.h"
#include "actors/expert_exchange.h"
#include "actors/gradient_reducer.h"
#include "actors/metrics.h"
#include "actors/model_state.h"
#include "actors/optimizer_shard.h"
#include "actors/parameter_gatherer.h"
#include "actors/square_sums.h"
#include "actors/stage.h"
#include "actors/tensor_sums.h"
#include "actors/tied_embedding.h"
#include "actors/unit_gatherer.h"
#include "src/comm/control.h"
#include "src/comm/queue_poller.h"
#include "src/comm/transport.h"
#include "src/model/decoder.h"
#include "src/train/checkpoint_writer.h"
#include "src/train/masters.h"
#include "src/train/settings.h"

namespace llm {

/// Where a run goes on from, with Settings::first_step: read when the trainer is made.
struct ResumedState {
  WholeValues exp_avg;
  WholeValues exp_avg_sq;
  std::int64_t n_updates = 0;
  LossScale loss_scale;
};

/// Where checkpoints go, with Settings::saves.
struct SaveTo {
  std::filesystem::path folder;
  KeptCheckpoints kept;
  /// On rank 0: files of a checkpoint beside its tensors, by name.
  std::vector<std::pair<std::string, std::string>> texts = {};
  Port<SavedCheckpoint> saved = Port<SavedCheckpoint>([](std::int64_t, SavedCheckpoint) {});
};

/// What a rank's actors read from and report to. Sources and ports outlive the trainer.
struct TrainerInputs {
  SampleSource* train = nullptr;
  SampleSource* validation = nullptr;  ///< nullptr: no validation
  InitialValues initial_values = {};   ///< empty: the seed's
  std::optional<ResumedState> resumed = {};
  SaveTo save_to = {};
  /// With Settings::sums_by_library(): what adds up the gradients of a group.
  std::function<std::unique_ptr<LibrarySums>(Group&)> make_library_sums = {};
  std::function<bool()> stop_requested = [] { return false; };
  Port<StepMetrics> step_done = Port<StepMetrics>([](std::int64_t, StepMetrics) {});
  Port<ValidationMetrics> validation_done =
      Port<ValidationMetrics>([](std::int64_t, ValidationMetrics) {});
};

/// One rank of a training run: its memory, its actors and how they are wired. The constructor
/// connects inboxes, `start` spawns the actors; the loop then runs until they have ended.
class Trainer {
 public:
  Trainer(Loop& loop, Transport& transport, const Settings& settings, TrainerInputs inputs);
  ~Trainer();

  void start();
  /// Puts the compute queues' ops on rows of their own.
  void trace_compute(Trace& trace);
  ModelState& state() { return state_; }
  /// Where ranks own a part of the weights each, after the loop has ended: the servers' run() is
  /// spawned on every rank but 0 that has one, and the loop runs again; rank 0 fetches.
  MasterServer* master_server() { return master_server_.get(); }
  MasterFetcher& master_fetcher();
  /// What the control messages of a channel are called.
  std::string kind_of_channel(int channel) const { return control_.kind_of(channel); }
  const Decoder& decoder() const { return decoder_; }
  Queue& compute() { return compute_; }
  /// Whether the run ended because a stop was agreed on. Known once the loop has ended.
  bool stopped() const { return stopped_; }
  std::int64_t n_steps_done() const { return n_steps_done_; }

 private:
  /// Where masters are updated.
  Queue& updates() { return settings_.offloads() ? host_updates_ : compute_; }
  Port<StepFacts> facts_to_all();
  Port<RouterLosses> router_losses_port();
  std::vector<std::vector<std::size_t>> parameters_by_rank() const;
  Port<Ready> to_optimizer();
  void make_metrics();
  void make_optimizer();
  /// ZeRO 1 and 2: every rank has all parameters, once they are gathered.
  bool gathers_once_a_step() const;
  void make_gatherer();
  void make_unit_gatherer();
  Port<LossReport> loss_port(int channel);
  void make_stage();
  void make_feeds();
  void make_master_server();
  void make_checkpoint_writer();
  void make_reducers();
  void connect();

  Loop& loop_;
  Transport& transport_;
  const Settings settings_;
  const TrainerInputs inputs_;
  ControlPlane control_;
  Group data_parallel_;
  Group pipeline_;
  Group tensor_;
  Group kv_;  // those of tensor_ with the same key heads
  const GridPlace place_;
  ThreadPool pool_;  // for the queue of compute or of updates that is on the CPU
  Queue compute_;
  Queue host_updates_;  // of an offloaded state
  Queue reductions_;
  QueuePoller compute_poller_;
  QueuePoller host_updates_poller_;
  QueuePoller reductions_poller_;
  Decoder decoder_;
  ModelState state_;
  bool stopped_ = false;
  std::int64_t n_steps_done_ = 0;

  std::unique_ptr<SquareSums> squares_;
  std::unique_ptr<GatheredParameters> gathered_;  // where ranks own a piece each
  std::unique_ptr<ParameterGatherer> gatherer_;
  std::unique_ptr<UnitGatherer> unit_gatherer_;  // where parameters too are shared out
  std::unique_ptr<TensorSums> tensor_sums_;      // where ranks share each layer
  std::unique_ptr<ExpertExchange> experts_;      // where they share out a mixture's
  std::unique_ptr<DecoderCompute> stage_compute_;
  std::unique_ptr<Stage> stage_;
  std::unique_ptr<TiedEmbedding> tied_embedding_;  // where two ranks hold one
  std::unique_ptr<LibrarySums> library_sums_;      // where a library sums
  std::vector<std::unique_ptr<GradientReducer>> reducers_;
  std::unique_ptr<OptimizerShard> optimizer_;
  std::unique_ptr<DataFeed> data_feed_;
  std::unique_ptr<ValidationFeed> validation_feed_;
  std::unique_ptr<Metrics> metrics_;             // rank 0
  std::unique_ptr<MasterServer> master_server_;  // where rank 0 lacks what this rank owns
  std::unique_ptr<MasterFetcher> master_fetcher_;
  std::unique_ptr<CheckpointWriter> checkpoint_writer_;  // last: its thread reads what stands above
};

}  // namespace llm
