#include "src/train/trainer.h"

#include "src/rt/clock.h"
#include "src/train/rank_plan.h"

namespace llm {
namespace {

/// Control channels: who a control message is for.
enum Channel : int {
  channel_loss = 1,
  channel_validation_loss,
  channel_step_facts,
  channel_router_losses,
  channel_master_request,
  channel_save_order,
  channel_part_written
};

// Tags of tensor messages: one a bucket in flight. A multiple of the number of lanes, so that two
// lanes never use one tag at a time.
constexpr int reducer_tag = 16;
constexpr int n_reducer_tags_per_lane = 64;
constexpr int squares_tag = 8;
constexpr int embedding_tag = 9;
constexpr int parameter_tag = 10;
constexpr int chunks_tag = 11;
constexpr int tensor_squares_tag = 12;
constexpr int tensor_tag = 13;
constexpr int experts_tag = 14;
constexpr int expert_squares_tag = 15;
constexpr int gather_tag = 2048;
constexpr int n_gather_tags = 1024;

// Sums of buckets are short and messages wait for them: many tiles a turn.
constexpr int reduction_tiles_per_poll = 64;

constexpr int metrics_rank = 0;

// At a time; more take their memory when they come to it.
constexpr int reserved_read_backs = 8;

}  // namespace

Trainer::Trainer(Loop& loop, Transport& transport, const Settings& settings, TrainerInputs inputs)
    : loop_(loop),
      transport_(transport),
      settings_(settings),
      inputs_(std::move(inputs)),
      control_(transport),
      data_parallel_(transport, data_parallel_group(settings.grid, transport.rank())),
      pipeline_(transport, pipeline_group(settings.grid, transport.rank())),
      tensor_(transport, tensor_group(settings.grid, transport.rank())),
      kv_(transport, kv_group(settings, transport.rank())),
      place_(place_of(settings.grid, transport.rank())),
      pool_(settings.threads_per_rank),
      compute_(settings.device, settings.offloads() ? nullptr : &pool_),
      host_updates_(Device::cpu, settings.offloads() ? &pool_ : nullptr),
      reductions_(settings.device),
      compute_poller_(compute_, 1),
      host_updates_poller_(host_updates_, 1),
      reductions_poller_(reductions_, reduction_tiles_per_poll),
      decoder_(model_of(settings, transport.rank()), settings.device),
      state_(decoder_.config(), state_shape(settings, transport.rank())),
      n_steps_done_(settings.first_step) {
  if (settings_.uses_graphs()) compute_.use_graphs(settings_.least_graph_ops);
  if (inputs_.initial_values) {
    state_.initialize(inputs_.initial_values);
  } else {
    state_.initialize(settings_.seed);
  }
  if (inputs_.resumed) state_.set_moments(inputs_.resumed->exp_avg, inputs_.resumed->exp_avg_sq);
  // Losses, their labels and routers' losses; sums of squares.
  const std::int64_t n_tokens =
      compute_plan(settings_, transport.rank()).largest_microbatch * settings_.seq_len;
  compute_.reserve_read_back(2 * n_tokens * 4, reserved_read_backs);
  reductions_.reserve_read_back(
      square_chunk_bytes(decoder_.config(), layers_of(settings_, transport.rank())),
      reserved_read_backs);
  loop_.add_poller(reductions_poller_);
  loop_.add_poller(compute_poller_);
  if (settings_.offloads()) loop_.add_poller(host_updates_poller_);
  connect();
}

Trainer::~Trainer() {
  loop_.drop_actors();    // they wait on inboxes that end here
  library_sums_.reset();  // a sum may wait for ranks that are gone
  compute_.drop();        // threads or a device may still work in memory that ends here
  reductions_.drop();
  host_updates_.drop();
  loop_.remove_poller(reductions_poller_);
  loop_.remove_poller(compute_poller_);
  if (settings_.offloads()) loop_.remove_poller(host_updates_poller_);
}

Port<StepFacts> Trainer::facts_to_all() {
  std::vector<Port<StepFacts>> ports;
  for (int rank = 0; rank < settings_.grid.n_ranks(); ++rank) {
    ports.push_back(control_.port<StepFacts>(rank, channel_step_facts));
  }
  return Port<StepFacts>([ports = std::move(ports)](std::int64_t key, StepFacts facts) {
    for (const Port<StepFacts>& port : ports) port(key, facts);
  });
}

Port<Ready> Trainer::to_optimizer() {
  return Port<Ready>([this](std::int64_t key, Ready ready) {
    const auto n_buckets = static_cast<std::int64_t>(state_.layout().buckets.size());
    if (settings_.zero_stage >= 2) {
      state_.discard_gradients(static_cast<std::size_t>(key % n_buckets));
    }
    optimizer_->reduced().put(key, ready);
  });
}

void Trainer::make_reducers() {
  if (settings_.sums_by_library()) {
    CHECK_CONTRACT(inputs_.make_library_sums != nullptr, "who sums by a library has one");
    library_sums_ = inputs_.make_library_sums(data_parallel_);
  }
  for (int lane = 0; lane < settings_.n_reducer_lanes; ++lane) {
    GradientReducer::Plan plan{.lane = lane,
                               .n_lanes = settings_.n_reducer_lanes,
                               .first_tag = reducer_tag,
                               .n_tags = n_reducer_tags_per_lane * settings_.n_reducer_lanes,
                               .first_step = settings_.first_step,
                               .n_steps = settings_.n_steps};
    if (settings_.sums_in_place()) plan.shared = state_.gradients_handle();
    plan.piece_cuts = piece_cuts(settings_, state_.layout());
    reducers_.push_back(std::make_unique<GradientReducer>(
        loop_, reductions_, std::move(plan), data_parallel_, state_.layout().buckets,
        state_.flat_gradients(0), GradientReducer::Outbox{to_optimizer()}, library_sums_.get()));
  }
}

std::vector<std::vector<std::size_t>> Trainer::parameters_by_rank() const {
  std::vector<std::vector<std::size_t>> by_rank;
  for (const int rank : pipeline_.ranks) {
    by_rank.push_back(owned_parameters(decoder_.config(), layers_of(settings_, rank)));
  }
  return by_rank;
}

void Trainer::make_master_server() {
  if (transport_.rank() == 0) return;
  for (MasterPieces& source : master_pieces(settings_)) {
    if (source.rank != transport_.rank()) continue;
    master_server_ = std::make_unique<MasterServer>(transport_, parameter_tag, std::move(source));
    control_.connect(channel_master_request, master_server_->requests());
  }
}

MasterFetcher& Trainer::master_fetcher() {
  if (!master_fetcher_) {
    master_fetcher_ =
        std::make_unique<MasterFetcher>(control_, transport_,
                                        MasterFetcher::Plan{.sources = master_pieces(settings_),
                                                            .tag = parameter_tag,
                                                            .channel = channel_master_request},
                                        state_.config());
    master_fetcher_->set_source(pieces_of(state_));
  }
  return *master_fetcher_;
}

void Trainer::make_checkpoint_writer() {
  if (!settings_.saves.enabled) return;
  const int rank = transport_.rank();
  CheckpointWriter::Plan plan;
  plan.folder = inputs_.save_to.folder;
  plan.kind = settings_.saves_sharded ? CheckpointKind::sharded : CheckpointKind::full;
  plan.kept = inputs_.save_to.kept;
  plan.copies = settings_.saves.interval_steps > 0;
  plan.global_batch = settings_.partition.global_batch();
  plan.layout = layout_text(settings_);
  plan.sources = master_pieces(settings_);
  plan.texts = inputs_.save_to.texts;
  plan.data_state = [this](std::int64_t step) { return data_feed_->state_before(step); };
  CheckpointWriter::Outbox out;
  out.state_copied = port_to(optimizer_->state_copied());
  out.written = control_.port<PartWritten>(0, channel_part_written);
  out.saved = inputs_.save_to.saved;
  for (int peer = 0; peer < settings_.grid.n_ranks() && rank == 0; ++peer) {
    out.order.push_back(control_.port<SaveOrder>(peer, channel_save_order));
  }
  const bool fetches = rank == 0 && plan.kind == CheckpointKind::full;
  checkpoint_writer_ = std::make_unique<CheckpointWriter>(
      transport_, updates(), std::move(plan), state_, fetches ? &master_fetcher() : nullptr,
      master_server_.get(), std::move(out));
  control_.connect(channel_save_order, checkpoint_writer_->order());
  control_.connect(channel_part_written, checkpoint_writer_->written());
}

void Trainer::make_metrics() {
  if (transport_.rank() != metrics_rank) return;
  metrics_ = std::make_unique<Metrics>(
      loop_,
      Metrics::Plan{.n_global_microbatches = settings_.partition.n_global_microbatches(),
                    .n_router_ranks = settings_.model.is_mixture() ? settings_.grid.n_ranks() : 0,
                    .n_routers = settings_.model.is_mixture() ? settings_.model.n_layers : 0,
                    .validation = settings_.validation,
                    .first_step = settings_.first_step,
                    .n_steps = settings_.n_steps},
      Metrics::Outbox{inputs_.step_done,
                      Port<ValidationMetrics>([this](std::int64_t key, ValidationMetrics metrics) {
                        // Not after a stop, so that the plan alone says who waits.
                        if (settings_.saves.after(metrics.step, false) != Save::never) {
                          checkpoint_writer_->validated().put(metrics.step, metrics.loss);
                        }
                        inputs_.validation_done(key, metrics);
                      })});
  control_.connect(channel_loss, metrics_->loss());
  control_.connect(channel_validation_loss, metrics_->validation_loss());
  control_.connect(channel_router_losses, metrics_->router_losses());
}

void Trainer::make_optimizer() {
  const Port<ParametersUpdated> to_stage_and_feed(
      [this](std::int64_t step, ParametersUpdated message) {
        if (loop_.trace != nullptr) loop_.trace->end_step(step, now_ns());
        if (unit_gatherer_ && tied_embedding_ && state_.tied_tensor() < 0) {
          unit_gatherer_->table_received().put(step, Ready{});
        }
        stage_->parameters_updated().put(step, message);
        data_feed_->parameters_updated().put(step, message);
      });
  Port<ParametersUpdated> updated = to_stage_and_feed;
  const EmbeddingHolders holders = embedding_holders(settings_, transport_.rank());
  const bool is_holder = transport_.rank() == holders.owner || transport_.rank() == holders.copy;
  if (settings_.model.tie_embeddings && holders.owner != holders.copy && is_holder) {
    const int peer = transport_.rank() == holders.owner ? holders.copy : holders.owner;
    tied_embedding_ = std::make_unique<TiedEmbedding>(
        transport_,
        TiedEmbedding::Plan{.peer = peer,
                            .tag = embedding_tag,
                            .first_step = settings_.first_step,
                            .n_steps = settings_.n_steps,
                            .is_gathered = gathers_once_a_step(),
                            .is_shared_out = settings_.shares_parameters()},
        state_, to_stage_and_feed);
    updated = port_to(tied_embedding_->parameters_updated());
  }
  OptimizerShard::Plan plan;
  plan.config = settings_.optimizer;
  plan.n_ranks = settings_.grid.n_ranks();
  plan.loss_scale_exponent = loss_scale_exponent(settings_.partition, settings_.seq_len);
  plan.first_step = settings_.first_step;
  plan.n_steps = settings_.n_steps;
  plan.saves = settings_.saves;
  if (inputs_.resumed) {
    plan.n_updates = inputs_.resumed->n_updates;
    plan.loss_scale = inputs_.resumed->loss_scale;
  }
  SquareSums::Plan squares;
  squares.parameters_by_rank = parameters_by_rank();
  squares.piece_by_member = pieces_of_ranks(settings_);
  squares.chunks_tag = chunks_tag;
  squares.parameters_tag = squares_tag;
  squares.tensor_tag = tensor_squares_tag;
  squares.experts_tag = expert_squares_tag;
  squares_ =
      std::make_unique<SquareSums>(pipeline_, data_parallel_, tensor_, std::move(squares), state_);
  optimizer_ = std::make_unique<OptimizerShard>(
      loop_, reductions_, updates(), std::move(plan), state_, *squares_,
      OptimizerShard::Outbox{std::move(updated),
                             Port<StepReport>([this](std::int64_t step, StepReport report) {
                               stopped_ = report.stop && step + 1 < settings_.n_steps;
                               n_steps_done_ = step + 1;
                               if (metrics_) metrics_->step_report().put(step, report);
                             }),
                             Port<ParametersUpdated>([this](std::int64_t key, ParametersUpdated m) {
                               if (gatherer_) gatherer_->updated().put(key, m);
                               if (unit_gatherer_) unit_gatherer_->updated().put(key, m);
                             }),
                             Port<StepEnd>([this](std::int64_t n, StepEnd end) {
                               checkpoint_writer_->step_end().put(n, end);
                             })});
  control_.connect(channel_step_facts, optimizer_->step_facts());
}

bool Trainer::gathers_once_a_step() const {
  return settings_.zero_stage > 0 && !settings_.shares_parameters();
}

void Trainer::make_unit_gatherer() {
  if (!settings_.shares_parameters()) return;
  unit_gatherer_ = std::make_unique<UnitGatherer>(
      data_parallel_, reductions_, compute_,
      UnitGatherer::Plan{.uses = use_plan(settings_, transport_.rank()),
                         .policy = settings_.gather_policy,
                         .form = shard_form(settings_),
                         .first_tag = gather_tag,
                         .n_tags = n_gather_tags},
      state_);
}

void Trainer::make_gatherer() {
  if (!gathers_once_a_step()) return;
  gathered_ = std::make_unique<GatheredParameters>(loop_, state_, settings_.first_step);
  gatherer_ = std::make_unique<ParameterGatherer>(
      data_parallel_,
      ParameterGatherer::Plan{.form = shard_form(settings_),
                              .first_tag = gather_tag,
                              .n_tags = n_gather_tags,
                              .first_step = settings_.first_step,
                              .n_steps = settings_.n_steps},
      state_, ParameterGatherer::Outbox{Port<Ready>([this](std::int64_t key, Ready ready) {
        gathered_->gathered().put(key, ready);
        if (tied_embedding_) tied_embedding_->gathered(key);
      })});
}

Port<LossReport> Trainer::loss_port(int channel) {
  if (tells_loss(settings_, transport_.rank())) {
    return control_.port<LossReport>(metrics_rank, channel);
  }
  return Port<LossReport>([](std::int64_t, LossReport) {});
}

void Trainer::make_stage() {
  const int rank = transport_.rank();
  const Port<Ready> grads_ready([this](std::int64_t key, Ready ready) {
    const auto n_buckets = static_cast<std::int64_t>(state_.layout().buckets.size());
    const std::int64_t lane = key % n_buckets % settings_.n_reducer_lanes;
    reducers_[static_cast<std::size_t>(lane)]->grads_ready().put(key, ready);
  });
  if (settings_.grid.tp > 1) {
    TensorSums::Plan plan = tensor_sums_plan(settings_, rank);
    plan.tag = tensor_tag;
    tensor_sums_ = std::make_unique<TensorSums>(tensor_, kv_, reductions_, plan);
  }
  if (decoder_.config().ep.size > 1) {
    experts_ = std::make_unique<ExpertExchange>(data_parallel_, reductions_, experts_tag);
  }
  ParameterSource* parameters = gathered_.get();
  if (unit_gatherer_) parameters = unit_gatherer_.get();
  stage_compute_ =
      std::make_unique<DecoderCompute>(compute_, compute_plan(settings_, rank), decoder_, state_,
                                       grads_ready, parameters, tensor_sums_.get(), experts_.get());
  stage_ = std::make_unique<Stage>(
      transport_, compute_, stage_plan(settings_, rank), *stage_compute_,
      Stage::Outbox{loss_port(channel_loss), loss_port(channel_validation_loss),
                    Port<Ready>([this](std::int64_t key, Ready ready) {
                      validation_feed_->wanted().put(key, ready);
                    }),
                    router_losses_port()});
}

Port<RouterLosses> Trainer::router_losses_port() {
  const Port<RouterLosses> to_metrics =
      control_.port<RouterLosses>(metrics_rank, channel_router_losses);
  const int n_ranks = settings_.grid.n_ranks();
  return Port<RouterLosses>(
      [to_metrics, n_ranks, rank = transport_.rank()](std::int64_t step, RouterLosses losses) {
        to_metrics(step * n_ranks + rank, losses);
      });
}

void Trainer::make_feeds() {
  const int rank = transport_.rank();
  const Uploads uploads{&compute_, settings_.model.vocab_size};
  data_feed_ = std::make_unique<DataFeed>(
      loop_,
      DataFeed::Plan{.partition = settings_.partition,
                     .dp_rank = place_.dp,
                     .rank = rank,
                     .n_ranks = settings_.grid.n_ranks(),
                     .has_tokens = reads_tokens(settings_, rank),
                     .has_labels = reads_labels(settings_, rank),
                     .counts_labels = tells_loss(settings_, rank),
                     .keeps_states = settings_.saves.enabled && rank == 0,
                     .first_step = settings_.first_step,
                     .n_steps = settings_.n_steps,
                     .uploads = uploads},
      *inputs_.train, inputs_.stop_requested,
      DataFeed::Outbox{port_to(stage_->microbatches()), facts_to_all()});
  CHECK_CONTRACT(
      inputs_.validation != nullptr || settings_.validation.n_rounds(settings_.first_step) == 0,
      "validation that is planned has a source");
  if (inputs_.validation == nullptr) return;
  const Stage::Plan stage = stage_plan(settings_, rank);
  validation_feed_ = std::make_unique<ValidationFeed>(
      loop_,
      ValidationFeed::Plan{.microbatches = stage.validation_microbatches,
                           .microbatch_samples = settings_.validation.microbatch_samples,
                           .n_samples = settings_.validation.n_samples,
                           .n_rounds = settings_.validation.n_rounds(settings_.first_step),
                           .n_buffers = stage.n_validation_buffers,
                           .has_tokens = reads_tokens(settings_, rank),
                           .has_labels = reads_labels(settings_, rank),
                           .n_spare = stage.n_spare_validations,
                           .uploads = uploads},
      *inputs_.validation, port_to(stage_->validation()));
}

void Trainer::connect() {
  make_metrics();
  make_optimizer();
  make_gatherer();
  make_unit_gatherer();
  make_reducers();
  make_stage();
  make_feeds();
  make_master_server();
  make_checkpoint_writer();
}

void Trainer::trace_compute(Trace& trace) {
  const auto observe = [&trace](Queue& queue, const std::string& row_name) {
    const int row = trace.add_row(row_name);
    queue.observe([&trace, row](const char* op, std::int64_t begin_ns, std::int64_t end_ns) {
      trace.op(row, op, begin_ns, end_ns);
    });
  };
  observe(compute_, "compute queue");
  for (Queue* const lane : stage_compute_->lanes()) {
    observe(*lane, std::string("compute queue") + lane->name());
  }
  observe(reductions_, "reduction queue");
  if (settings_.offloads()) observe(host_updates_, "update queue, on the host");
}

void Trainer::start() {
  ParametersUpdated initial;
  if (settings_.optimizer.loss_scale) initial.loss_scale = settings_.optimizer.loss_scale->initial;
  if (inputs_.resumed) initial.loss_scale = inputs_.resumed->loss_scale.scale;
  if (settings_.first_step >= settings_.n_steps) return;
  if (loop_.trace != nullptr) loop_.trace->begin_steps(now_ns());
  stage_->parameters_updated().put(settings_.first_step, initial);
  data_feed_->parameters_updated().put(settings_.first_step, initial);
  loop_.spawn("data_feed", data_feed_->run());
  stage_->spawn();
  if (tensor_sums_) loop_.spawn_background("tensor_sums", tensor_sums_->run());
  if (experts_) loop_.spawn_background("expert_exchange", experts_->run());
  if (gatherer_) loop_.spawn("parameter_gatherer", gatherer_->run());
  if (unit_gatherer_) loop_.spawn("unit_gatherer", unit_gatherer_->run());
  if (tied_embedding_) loop_.spawn("tied_embedding", tied_embedding_->run());
  for (std::size_t lane = 0; lane < reducers_.size(); ++lane) {
    loop_.spawn_background("gradient_reducer " + std::to_string(lane), reducers_[lane]->run());
  }
  loop_.spawn("optimizer_shard", optimizer_->run());
  if (validation_feed_) loop_.spawn_background("validation_feed", validation_feed_->run());
  if (metrics_) loop_.spawn("metrics", metrics_->run());
  if (checkpoint_writer_) loop_.spawn("checkpoint_writer", checkpoint_writer_->run());
}

}  // namespace llm
