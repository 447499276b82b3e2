#include "src/train/run.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <span>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/base/file.h"
#include "src/base/rank_log.h"
#include "src/base/utf8.h"
#include "src/comm/mpi/mpi_transport.h"
#include "src/config/checks.h"
#include "src/config/load.h"
#include "src/data/bpe_tokenizer.h"
#include "src/io/hf_config.h"
#include "src/io/hf_folder.h"
#include "src/io/hf_weights.h"
#include "src/rt/signals.h"
#include "src/rt/ticker.h"
#include "src/train/cores.h"
#include "src/train/data_setup.h"
#include "src/train/device.h"
#include "src/train/generate.h"
#include "src/train/init_from.h"
#include "src/train/machine.h"
#include "src/train/pipeline_report.h"
#include "src/train/plan_report.h"
#include "src/train/progress.h"
#include "src/train/resume.h"
#include "src/train/run_dir.h"
#include "src/train/settings_from_config.h"
#include "src/train/snapshot.h"
#include "src/train/stalls.h"
#include "src/train/start.h"
#include "src/train/trace_run.h"
#include "src/train/trainer.h"
#include "src/train/unit_report.h"
#include "src/train/whole_model.h"
#include "tensor/ops/matmul.h"
#include "tensor/storage.h"

namespace llm {
namespace {

RunLength length_of(const LoadedConfig& loaded, const Settings& settings, std::int64_t n_samples,
                    std::int64_t n_validation_samples) {
  const Config& config = loaded.config;
  const std::int64_t batch = settings.partition.global_batch();
  if (config.data.steps_per_epoch) n_samples = *config.data.steps_per_epoch * batch;
  return {.n_samples = n_samples,
          .epochs = config.training.epochs,
          .max_steps = config.training.max_steps,
          .validation_interval = config.training.val_interval_steps,
          .n_validation_samples = n_validation_samples};
}

/// Which field decides is said where it is not the usual one.
std::string precision_text(const Settings& s, const Config& config) {
  const std::string name = name_of(s.model.compute);
  if (config.distributed.parallel_strategy != "fsdp") return name;
  return name + " (fsdp_mixed_precision, in place of amp_dtype)";
}

std::string start_line(const MpiSession& session, const Settings& s, const Config& config) {
  return fmt::format(
      "{} rank{} ({} a node{}): {} parameters, {}, global batch {} = microbatch {} x {} x dp {}, "
      "{} "
      "tokens a step, {} steps",
      session.n_ranks(), session.n_ranks() == 1 ? "" : "s", session.ranks_per_node(),
      s.threads_per_rank == 1 ? "" : fmt::format(", {} threads each", s.threads_per_rank),
      n_parameters(s.model), precision_text(s, config), s.partition.global_batch(),
      s.partition.largest_microbatch(), s.partition.n_microbatches(), s.partition.dp,
      s.tokens_per_step(), s.n_steps);
}

/// A parameter's whole f32 values, by its canonical index; good until the next call.
using ValueOf = std::function<View(std::size_t)>;

/// Files of a checkpoint beside its tensors, by name; on rank 0.
std::vector<std::pair<std::string, std::string>> checkpoint_texts(const Start& start) {
  std::vector<std::pair<std::string, std::string>> texts = {{"config.yaml", start.yaml}};
  if (const auto json = hf_config_json(start.settings.model, start.ids)) {
    texts.emplace_back("config.json", *json);
    texts.emplace_back("generation_config.json", hf_generation_config_json(start.ids));
  }
  for (const std::string& name : hf_tokenizer_files(start.run_dir)) {
    texts.emplace_back(name, read_file(std::filesystem::path(start.run_dir) / name));
  }
  return texts;
}

void save_final(const Start& start, const ValueOf& value_of) {
  const std::filesystem::path folder(start.run_dir);
  write_hf_weights(folder, parameters(start.settings.model), value_of);
  if (const auto json = hf_config_json(start.settings.model, start.ids)) {
    write_file_atomically(folder / "config.json", *json);
    write_file_atomically(folder / "generation_config.json", hf_generation_config_json(start.ids));
  }
}

AllValues values_of(const ModelState& state) {
  AllValues values;
  const Range layers = all_layers(state.config());
  for (std::int64_t layer = layers.begin; layer < layers.end; ++layer) {
    values.push_back(state.values(layer));
  }
  return values;
}

std::string sample_of(const Start& start, const DataSet& data, const Decoder& decoder,
                      const AllValues& values) {
  const GenerateOptions options{
      .seed = start.settings.seed, .end_id = data.sample_end_id, .window = start.settings.seq_len};
  return generate(decoder, values, *data.tokenizer, data.sample_prompt, options);
}

constexpr std::chrono::milliseconds early_stop_interval{50};

/// One run of one rank, from its data to its last line.
class Run {
 public:
  Run(MpiSession& session, const RunRequest& request)
      : session_(session),
        request_(request),
        early_stop_(std::in_place, early_stop_interval, [this] { stop_early(); }),
        start_(begin(session, request)) {}

  int run() {
    try {
      open();  // which measures the device
    } catch (const OutOfMemory& error) {
      throw with_plan(error);
    }
    const double timeout = start_.loaded.config.distributed.collective_timeout_seconds;
    Loop loop({.stall_warning_seconds = 60, .stall_timeout_seconds = timeout, .warn = {}});
    std::optional<Trace> trace;
    if (!request_.trace_dir.empty()) {
      loop.trace =
          &trace.emplace(begin_trace(session_, trace_facts(start_.settings, start_.run_dir)));
    }
    MpiTransport wire(session_, loop);
    const auto between_devices = device_transport(wire, start_.settings.device, start_.backend);
    Transport& transport = between_devices ? *between_devices : static_cast<Transport&>(wire);
    const StopSignals signals(loop);
    std::optional<StallMonitor> monitor;  // before what may wait for a disk when it ends
    early_stop_.reset();
    std::optional<Trainer> made;
    try {
      made.emplace(loop, transport, start_.settings, inputs(signals));
      if (trace) made->trace_compute(*trace);
      made->start();
      session_.barrier();  // from here on who does not answer has stopped
      monitor.emplace(transport,
                      stall_options(session_, *made, start_.settings, timeout, start_.run_dir));
      loop.run();
      loop.spawn("end_of_run", monitor->end_together());
      loop.run();
      monitor->close();
    } catch (const OutOfMemory& error) {
      throw with_plan(error);
    }
    Trainer& trainer = *made;
    if (trace) end_trace(session_, *trace, request_.trace_dir);
    return finish(loop, trainer);
  }

 private:
  /// The error with what is held, what is planned and what helps.
  Error with_plan(const OutOfMemory& error) const {
    return Error(error.code(), out_of_memory_text(start_.settings, session_.rank(), error.n_bytes,
                                                  storage_bytes_in_use(start_.settings.device)));
  }

  void open() {
    const auto say = [this](std::string_view text) {
      if (session_.rank() == 0) fmt::print("{}\n", text);
      std::fflush(stdout);
      if (session_.rank() == 0 && text.starts_with("note: ")) log_aside(text);
    };
    open_log();
    for (const std::string& note : start_.loaded.notes) say("note: " + note);
    data_ = open_data(
        start_.loaded,
        {.task = request_.task,
         .cache_folder = cache_dir(start_.loaded.config.data.cache_dir),
         .rank = session_.rank(),
         .broadcast = [this](std::string text) { return session_.broadcast(std::move(text)); },
         .say = say});
    // Whoever reads the weights with this tokenizer has to know where texts end.
    if (start_.ids.end.empty() && start_.loaded.config.data.tokenizer_type == "hf") {
      start_.ids.end = {data_.tokenizer->end_id()};
    }
    const auto& init_from = start_.loaded.config.model.init_from;
    if (!start_.checkpoint.empty()) {
      checkpoint_ = std::make_shared<const CheckpointReader>(start_.checkpoint);
      start_.settings.first_step = checkpoint_->manifest().run.step;
      data_.train->restore(checkpoint_->manifest().run.data);
    } else if (init_from) {
      weights_ = values_of_folder(*init_from, start_.settings.model, false);
    }
    set_length(start_.settings, length_of(start_.loaded, start_.settings, data_.n_epoch_samples,
                                          data_.n_validation_samples));
    if (!request_.trace_dir.empty()) std::filesystem::create_directories(request_.trace_dir);
    if (session_.rank() != 0) return;
    warn_of_few_cores();
    for (const std::string& text :
         {bubble_warning(start_.settings), pairs_warning(start_.settings),
          unit_warning(start_.settings),
          tensor_parallel_warning(start_.settings, session_.node_of_ranks()),
          start_.settings.sums_by_library() ? switch_sums_warning() : ""}) {
      if (!text.empty()) say_aside(text + "\n");
    }
    const LoggingConfig& logging = start_.loaded.config.logging;
    const ProgressStyle style = progress_style(logging.progress);
    if (style != ProgressStyle::off) {
      say(start_line(session_, start_.settings, start_.loaded.config));
      if (session_.n_ranks() > 1) say(binding_table(start_.facts));
      const std::string sums = library_sums_line(start_.settings);
      if (!sums.empty()) say(sums);
      const std::string units = unit_line(start_.settings);
      if (!units.empty()) say(units);
      say("data: " + data_.summary);
      if (!weights_.summary.empty()) say(weights_.summary);
      say_checkpoint(say);
    }
    progress_ = std::make_unique<Progress>(
        start_.settings,
        Progress::Options{
            .style = style,
            .log_interval = logging.log_interval,
            .flops_per_token = flops_per_token(start_.settings.model, start_.settings.seq_len),
            .peak_flops =
                measure_matmul_flops(start_.settings.model.compute, start_.settings.device) *
                session_.n_ranks() * start_.settings.threads_per_rank,
            .seq_len = start_.settings.seq_len,
            .process_begin_ns =
                request_.process_begin.time_since_epoch() / std::chrono::nanoseconds(1),
            .tensorboard = logging.tensorboard},
        fmt::format("{}/metrics{}.jsonl", start_.run_dir, start_.suffix));
  }

  /// What this rank says, beside what mpirun makes of all ranks' lines.
  void open_log() const {
    const std::string name = fmt::format("rank-{}.log", session_.rank());
    open_rank_log(std::filesystem::path(start_.run_dir) / "logs" / name);
    log_aside(fmt::format("rank {} of {}, process {}, cores {}", session_.rank(),
                          session_.n_ranks(), getpid(), cores_text(bound_cores())));
  }

  void say_checkpoint(const std::function<void(std::string_view)>& say) const {
    const Config& config = start_.loaded.config;
    if (checkpoint_) {
      const RunState& run = checkpoint_->manifest().run;
      say(fmt::format("resumed: {}, step {} of {}, saved by {}", start_.checkpoint, run.step,
                      start_.settings.n_steps, run.layout));
      if (run.step >= start_.settings.n_steps) say("nothing is left to train");
    } else if (config.checkpoint.resume_from_checkpoint) {
      say(fmt::format("no checkpoint in {}: starting afresh",
                      checkpoint_folder(config, start_.run_dir).string()));
    }
    for (const std::string& change : start_.changes) {
      say("note: since the checkpoint: " + change);
    }
  }

  /// On standard error, by rank 0.
  void warn_of_few_cores() const {
    std::vector<int> n_cores;
    for (const RankFacts& facts : start_.facts) n_cores.push_back(facts.n_cores);
    const std::string warning = cores_warning(n_cores, start_.settings.threads_per_rank);
    if (!warning.empty()) say_aside(warning + "\n");
  }

  TrainerInputs inputs(const StopSignals& signals) {
    TrainerInputs inputs;
    inputs.train = data_.train.get();
    inputs.validation = data_.validation.get();
    inputs.initial_values = weights_.values;
    if (start_.settings.sums_by_library()) inputs.make_library_sums = device_sums;
    inputs.stop_requested = [&signals] { return signals.requested(); };
    const Config& config = start_.loaded.config;
    inputs.save_to.folder = checkpoint_folder(config, start_.run_dir);
    inputs.save_to.kept = {config.checkpoint.keep_last_n, config.checkpoint.save_best};
    if (checkpoint_) resume_from(checkpoint_, start_.settings, inputs);
    if (progress_) {
      inputs.step_done = Port<StepMetrics>([this](std::int64_t, StepMetrics metrics) {
        for (const auto& lock : start_.locks) lock->check();
        progress_->step_done(metrics);
      });
      inputs.save_to.texts = checkpoint_texts(start_);
      inputs.save_to.saved = Port<SavedCheckpoint>(
          [this](std::int64_t, SavedCheckpoint saved) { progress_->saved(saved); });
      inputs.validation_done = Port<ValidationMetrics>(
          [this](std::int64_t, ValidationMetrics metrics) { progress_->validation_done(metrics); });
    }
    return inputs;
  }

  int finish(Loop& loop, Trainer& trainer) {
    const bool stopped = trainer.stopped();
    log_aside(fmt::format("{} {} of {} steps", stopped ? "stopped by a signal after" : "done:",
                          trainer.n_steps_done(), start_.settings.n_steps));
    const Settings& s = start_.settings;
    const bool has_all = s.device == Device::cpu && s.grid.pp == 1 && s.grid.tp == 1 &&
                         s.zero_stage == 0 && !s.spreads_experts;
    std::optional<Snapshot> snapshot;  // of a device's state
    PieceSource pieces = pieces_of(trainer.state());
    if (s.owned_device() != Device::cpu) {
      snapshot.emplace(trainer.state());
      snapshot->take_memory();
      snapshot->enqueue(trainer.compute());
      trainer.compute().finish();
      pieces = snapshot->pieces();
    }
    if (session_.rank() == 0) {
      const bool quiet = start_.loaded.config.logging.progress == "off";
      const bool says_sample = !quiet && !stopped;
      if (has_all) {
        save_final(start_, [&trainer](std::size_t i) { return trainer.state().parameter(i); });
        if (says_sample) say_sample(trainer.decoder(), values_of(trainer.state()));
      } else {
        save_from_all(loop, trainer, pieces, says_sample);
      }
      if (!quiet) {
        progress_->say(
            fmt::format("{} {} of {} steps; files in {}: model.safetensors, metrics{}.jsonl, "
                        "config{}.yaml",
                        stopped ? "stopped by a signal after" : "done:", trainer.n_steps_done(),
                        start_.settings.n_steps, start_.run_dir, start_.suffix, start_.suffix));
        if (start_.settings.uses_graphs()) say_graphs(trainer.compute().graph_counts());
      }
    } else if (!has_all && trainer.master_server() != nullptr) {
      loop.spawn("master_server", trainer.master_server()->run(pieces));
      loop.run();
    }
    return static_cast<int>(stopped ? ExitCode::stopped : ExitCode::ok);
  }

  void say_graphs(const Queue::GraphCounts& counts) {
    progress_->say(
        fmt::format("CUDA graphs of rank 0: {} captured, launched {} times with {} ops; {} ops "
                    "went alone, coming for the first time",
                    counts.n_captured, counts.n_launched, counts.n_ops_launched, counts.n_ops_new));
  }

  void say_sample(const Decoder& decoder, const AllValues& values) {
    progress_->say("sample:\n" + shown_text(sample_of(start_, data_, decoder, values)));
  }

  /// Rank 0, where ranks own a part of the weights each.
  void save_from_all(Loop& loop, Trainer& trainer, const PieceSource& pieces, bool says_sample) {
    MasterFetcher& fetcher = trainer.master_fetcher();
    fetcher.set_source(pieces);
    const ValueOf fetch = [&loop, &fetcher](std::size_t canonical) {
      loop.spawn("master_fetcher", fetcher.fetch(canonical));
      loop.run();
      return fetcher.parameter();
    };
    save_final(start_, fetch);
    // Text needs the whole model on this rank, which may have no room for it.
    constexpr std::int64_t most_parameters = std::int64_t{1} << 26;
    const std::int64_t n = n_parameters(start_.settings.model);
    if (says_sample && n <= most_parameters) {
      WholeModel whole(start_.settings.model);
      const std::size_t n_tensors = parameters(start_.settings.model).size();
      for (std::size_t i = 0; i < n_tensors; ++i) {
        const View value = fetch(i);
        std::memcpy(whole.parameter(i).data(), value.data(),
                    static_cast<std::size_t>(value.n_bytes()));
      }
      say_sample(Decoder(start_.settings.model), whole.values());
    } else if (says_sample) {
      progress_->say("no sample: the model's parts are on several ranks");
    }
    fetcher.end();
  }

  /// Before the first step there is nothing to save, and no step to agree on.
  void stop_early() const {
    if (!EarlyStopSignals::requested()) return;
    session_.fail(ExitCode::stopped, "stopped by a signal before the first step: nothing to save");
  }

  MpiSession& session_;
  const RunRequest& request_;
  EarlyStopSignals early_signals_;
  std::optional<Ticker> early_stop_;  // until there is a loop: data may take minutes to read
  Start start_;
  DataSet data_;
  FolderValues weights_;                                // where model.init_from is set
  std::shared_ptr<const CheckpointReader> checkpoint_;  // where the run goes on from one
  std::unique_ptr<Progress> progress_;                  // rank 0
};

}  // namespace

std::string plan_run(const RunRequest& request, std::int64_t n_ranks, std::int64_t ranks_per_node) {
  LoadedConfig loaded = load(request);
  Settings settings = settings_from(loaded, n_ranks, has_fast_bf16(), read_schedule(loaded));
  // For ranks that are not here: what is written counts, or else what this machine has.
  const bool on_devices = find_device(loaded.config.distributed.device, 0).index >= 0 ||
                          loaded.config.distributed.device == "cuda";
  if (on_devices) settings.device = Device::cuda;
  check_offload(loaded, on_devices, settings.spreads_experts);
  check_graphs(loaded, on_devices, !request.trace_dir.empty());
  check_collectives(loaded, on_devices);
  settings.shares_memory = n_ranks > 1 && n_ranks <= ranks_per_node;
  std::string text;
  for (const std::string& note : loaded.notes) text += "note: " + note + "\n";
  const std::int64_t n_samples = estimate_samples(loaded, request.task);
  if (n_samples > 0 || loaded.config.data.steps_per_epoch) {
    set_length(settings, length_of(loaded, settings, n_samples, n_samples > 0 ? 1 : 0));
  }
  return text + plan_text(settings, ranks_per_node, on_devices ? 0 : machine_memory_bytes());
}

int run_training(MpiSession& session, const RunRequest& request) {
  return Run(session, request).run();
}

}  // namespace llm
