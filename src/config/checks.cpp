#include "src/config/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/config/rules.h"

namespace llm {
namespace {

/// A grid size that is more than the ranks, or does not divide them.
void check_divides(const LoadedConfig& loaded, const char* field, std::int64_t size,
                   std::int64_t n_ranks) {
  if (size == 0 || n_ranks % size == 0) return;
  refuse(
      place_of(loaded, {field}), field,
      fmt::format("{} does not divide the {} rank{} of this run; start a multiple of {} ranks or "
                  "use 0",
                  size, n_ranks, n_ranks == 1 ? "" : "s", size));
}

std::int64_t derived_accumulation(const LoadedConfig& loaded, std::int64_t n_data_parallel) {
  const TrainingConfig& training = loaded.config.training;
  const auto& written = loaded.config.optimization.gradient_accumulation_steps;
  if (!training.global_batch_size) return written.value_or(1);
  const std::int64_t whole = *training.global_batch_size;
  const std::int64_t together = training.batch_size * n_data_parallel;
  const Place place = place_of(loaded, {"training.global_batch_size"});
  if (whole % together != 0) {
    refuse(place, "training.global_batch_size",
           fmt::format("{} is no multiple of training.batch_size {} x {} data-parallel ranks = {}; "
                       "use {}, or another batch_size",
                       whole, training.batch_size, n_data_parallel, together,
                       std::max<std::int64_t>(1, (whole + together / 2) / together) * together));
  }
  const std::int64_t n_steps = whole / together;
  if (written && *written != n_steps) {
    refuse(
        place, "training.global_batch_size",
        fmt::format("{} needs {} accumulation steps of training.batch_size {} x {} data-parallel "
                    "ranks, but optimization.gradient_accumulation_steps is {}; remove one",
                    whole, n_steps, training.batch_size, n_data_parallel, *written));
  }
  return n_steps;
}

/// `word` as a shell reads it back.
std::string shell_word(const std::string& word) {
  const char* const plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,@%+";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

void check_launch(const LoadedConfig& loaded, std::int64_t n_ranks,
                  const std::vector<std::string>& command) {
  const DistributedConfig& d = loaded.config.distributed;
  const std::int64_t per_node = d.gpus_per_node.value_or(1);
  const std::int64_t n_wanted = per_node * d.num_nodes;
  if (n_ranks != 1 || n_wanted == 1 || !d.gpus_per_node) return;
  std::string line = fmt::format("mpirun -n {}", n_wanted);
  if (d.num_nodes > 1) line += fmt::format(" --map-by ppr:{}:node", per_node);
  for (const std::string& word : command) line += " " + shell_word(word);
  refuse(place_of(loaded, {"distributed.gpus_per_node"}), "distributed.gpus_per_node",
         fmt::format("{} x num_nodes {} is {} ranks, but this process was started alone; start: {}",
                     per_node, d.num_nodes, n_wanted, escaped(line)));
}

RankGrid resolve_grid(const LoadedConfig& loaded, std::int64_t n_ranks) {
  const DistributedConfig& d = loaded.config.distributed;
  const std::string& strategy = d.parallel_strategy;
  check_divides(loaded, "distributed.tp_size", d.tp_size, n_ranks);
  check_divides(loaded, "distributed.pp_size", d.pp_size, n_ranks);
  RankGrid grid;
  grid.tp = d.tp_size > 0 ? d.tp_size : strategy == "tp" ? n_ranks : 1;
  grid.pp = d.pp_size > 0 ? d.pp_size : strategy == "pp" ? n_ranks : 1;
  const std::int64_t of_model = grid.pp * grid.tp;
  if (n_ranks % of_model != 0) {
    refuse(place_of(loaded, {"distributed.tp_size", "distributed.pp_size"}), "distributed.tp_size",
           fmt::format("{} x pp_size {} is {}, which does not divide the {} ranks of this run; "
                       "start a multiple of {} ranks",
                       grid.tp, grid.pp, of_model, n_ranks, of_model));
  }
  const std::int64_t seq_len = loaded.config.data.max_seq_len;
  if (d.sequence_parallel && seq_len < grid.tp) {
    refuse(place_of(loaded, {"distributed.sequence_parallel"}), "distributed.sequence_parallel",
           fmt::format("true cuts the tokens of a sample among {} tensor-parallel ranks, but "
                       "data.max_seq_len is {}; use false, or tp_size: {} or less",
                       grid.tp, seq_len, seq_len));
  }
  grid.dp = n_ranks / of_model;
  if (d.dp_size != 0 && d.dp_size != grid.dp) {
    refuse(place_of(loaded, {"distributed.dp_size"}), "distributed.dp_size",
           fmt::format("{} x pp_size {} x tp_size {} is {}, but this run has {} rank{}; start {} "
                       "or use 0",
                       d.dp_size, grid.pp, grid.tp, d.dp_size * of_model, n_ranks,
                       n_ranks == 1 ? "" : "s", d.dp_size * of_model));
  }
  return grid;
}

int resolve_zero_stage(const LoadedConfig& loaded) {
  const DistributedConfig& d = loaded.config.distributed;
  const std::string& strategy = d.parallel_strategy;
  const char* const field = "distributed.zero_stage";
  if (strategy == "zero" && d.zero_stage == 0) {
    refuse(place_of(loaded, {field}), field,
           "0 shares out nothing, but parallel_strategy is zero; write zero_stage: 1, or "
           "parallel_strategy: ddp");
  }
  if (strategy == "fsdp" && d.zero_stage.value_or(3) != 3) {
    refuse(place_of(loaded, {field}), field,
           fmt::format("{} under parallel_strategy: fsdp, which is zero_stage 3; remove the field, "
                       "or write parallel_strategy: zero",
                       *d.zero_stage));
  }
  return static_cast<int>(d.zero_stage.value_or(strategy == "fsdp"   ? 3
                                                : strategy == "zero" ? 1
                                                                     : 0));
}

bool resolve_expert_parallel(const LoadedConfig& loaded) {
  const char* const field = "distributed.expert_parallel";
  if (loaded.config.distributed.expert_parallel != "dp") return false;
  const ModelSection& model = loaded.config.model;
  if (!model.is_mixture()) {
    refuse(place_of(loaded, {field, "model.mlp_impl"}), field,
           fmt::format("dp, but model.mlp_impl mlp has {} experts; write mlp_impl: moe, or "
                       "expert_parallel: none",
                       model.num_experts));
  }
  return true;
}

namespace {

/// "3,4,4,1" as numbers.
std::vector<std::int64_t> split_of(const LoadedConfig& loaded) {
  std::vector<std::int64_t> n_blocks;
  if (!loaded.config.distributed.pp_split) return n_blocks;
  const std::string& text = *loaded.config.distributed.pp_split;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string word = text.substr(begin, end - begin);
    word.erase(std::remove(word.begin(), word.end(), ' '), word.end());
    const bool is_count = !word.empty() && word.size() < 10 && word[0] != '0' &&
                          word.find_first_not_of("0123456789") == std::string::npos;
    if (!is_count) {
      refuse(place_of(loaded, {"distributed.pp_split"}), "distributed.pp_split",
             fmt::format("{} is not a list of blocks, at least one for each stage; write one like "
                         "\"3,4,4,1\"",
                         printable(text)));
    }
    n_blocks.push_back(std::stoll(word));
    begin = end + 1;
  }
  return n_blocks;
}

std::string stages_text(std::int64_t n_pipeline_ranks, std::int64_t n_chunks) {
  const std::int64_t n_stages = n_pipeline_ranks * n_chunks;
  const std::string ranks =
      fmt::format("{} pipeline rank{}", n_pipeline_ranks, n_pipeline_ranks == 1 ? "" : "s");
  return n_chunks == 1
             ? ranks
             : fmt::format("{} with {} chunks each, {} stages", ranks, n_chunks, n_stages);
}

/// pp_virtual_stages as the schedule takes it.
std::int64_t chunks_of(const LoadedConfig& loaded, const std::string& schedule) {
  const std::int64_t written = loaded.config.distributed.pp_virtual_stages;
  const Place place =
      place_of(loaded, {"distributed.pp_virtual_stages", "distributed.pp_schedule"});
  const auto refused = [&](const char* way_out) {
    refuse(place, "distributed.pp_virtual_stages",
           fmt::format("{} does not go with pp_schedule {}; {}", written, schedule, way_out));
  };
  if (schedule == "file") return written == 1 ? 0 : written;
  if (schedule == "interleaved") {
    if (written < 2) refused("write pp_virtual_stages: 2 or more, or pp_schedule: 1f1b");
    return written;
  }
  if (schedule == "zero_bubble_v") {
    if (written > 2) refused("it has 2, which need not be written");
    return 2;
  }
  if (written > 1) refused("write pp_schedule: interleaved, or pp_virtual_stages: 1");
  return 1;
}

}  // namespace

std::string schedule_file(const Config& config) {
  const std::string prefix = "file:";
  const std::string& schedule = config.distributed.pp_schedule;
  return schedule.rfind(prefix, 0) == 0 ? schedule.substr(prefix.size()) : "";
}

PipelineFields resolve_pipeline(const LoadedConfig& loaded, std::int64_t n_pipeline_ranks) {
  PipelineFields fields;
  const bool is_file = !schedule_file(loaded.config).empty();
  fields.schedule = is_file ? "file" : loaded.config.distributed.pp_schedule;
  fields.n_chunks = chunks_of(loaded, fields.schedule);
  fields.n_blocks = split_of(loaded);
  if (!is_file) check_stages(loaded, n_pipeline_ranks, fields.n_chunks);
  return fields;
}

void check_stages(const LoadedConfig& loaded, std::int64_t n_pipeline_ranks,
                  std::int64_t n_chunks) {
  const std::int64_t n_layers = loaded.config.model.num_layers;
  const std::int64_t n_stages = n_pipeline_ranks * n_chunks;
  if (n_stages > n_layers) {
    const bool is_chunks = n_pipeline_ranks <= n_layers;
    const char* const field = is_chunks ? "distributed.pp_virtual_stages" : "distributed.pp_size";
    const std::int64_t n_chunks_max = n_layers / n_pipeline_ranks;
    const std::string way_out =
        !is_chunks ? fmt::format("pp_size: {} at most", n_layers / n_chunks)
        : n_chunks_max == 1
            ? "fewer ranks or another schedule"
            : fmt::format("at most {} chunks, fewer ranks or another schedule", n_chunks_max);
    refuse(place_of(loaded, {field, "distributed.pp_schedule", "distributed.parallel_strategy"}),
           field,
           fmt::format("{} need a block each, but model.num_layers is {}; use {}",
                       stages_text(n_pipeline_ranks, n_chunks), n_layers, way_out));
  }
  const std::vector<std::int64_t> split = split_of(loaded);
  if (split.empty()) return;
  const Place place = place_of(loaded, {"distributed.pp_split"});
  if (static_cast<std::int64_t>(split.size()) != n_stages) {
    refuse(
        place, "distributed.pp_split",
        fmt::format("{} has {} stage{}, but there are {}; write {} number{}, or remove the field",
                    printable(*loaded.config.distributed.pp_split), split.size(),
                    split.size() == 1 ? "" : "s", stages_text(n_pipeline_ranks, n_chunks), n_stages,
                    n_stages == 1 ? "" : "s"));
  }
  const std::int64_t sum = std::accumulate(split.begin(), split.end(), std::int64_t{0});
  if (sum != n_layers) {
    refuse(place, "distributed.pp_split",
           fmt::format("{} is {} blocks, but model.num_layers is {}; write numbers that add up to "
                       "{}",
                       printable(*loaded.config.distributed.pp_split), sum, n_layers, n_layers));
  }
}

BatchPlan resolve_batch(const LoadedConfig& loaded, std::int64_t n_data_parallel) {
  CHECK_CONTRACT(n_data_parallel >= 1, "a run has at least one data-parallel rank");
  const std::int64_t n_samples = loaded.config.training.batch_size;
  const std::int64_t n_parts = loaded.config.distributed.pp_n_microbatches;
  BatchPlan plan;
  plan.n_accumulation_steps = derived_accumulation(loaded, n_data_parallel);
  for (std::int64_t m = 0; m < n_parts; ++m) {
    plan.microbatch_samples.push_back(n_samples / n_parts + (m < n_samples % n_parts ? 1 : 0));
  }
  plan.n_microbatches = plan.n_accumulation_steps * n_parts;
  plan.global_batch_samples = n_samples * plan.n_accumulation_steps * n_data_parallel;
  return plan;
}

void check_vocabulary(const LoadedConfig& loaded, std::int64_t n_tokenizer_ids) {
  const std::int64_t vocab_size = loaded.config.model.vocab_size;
  if (vocab_size >= n_tokenizer_ids) return;
  refuse(place_of(loaded, {"model.vocab_size"}), "model.vocab_size",
         fmt::format("{} is less than the tokenizer's {} ids; write vocab_size: {}", vocab_size,
                     n_tokenizer_ids, n_tokenizer_ids));
}

void check_task(const LoadedConfig& loaded, std::string_view task) {
  const std::vector<std::string> known = {"lm", "stream_lm", "sft"};
  const std::vector<std::string> later = {"dpo",  "simpo",   "reward",    "ppo",
                                          "grpo", "distill", "regression"};
  const std::string choices = "the tasks are lm, stream_lm and sft";
  if (std::count(later.begin(), later.end(), task)) {
    throw ConfigError(fmt::format("--task {}: is not in this version; {}", task, choices));
  }
  if (!std::count(known.begin(), known.end(), task)) {
    throw ConfigError(fmt::format("--task {}: unknown task; {}{}", printable(task), choices,
                                  did_you_mean(task, known)));
  }
  const DataConfig& data = loaded.config.data;
  if (data.dataset_path.empty()) {
    throw ConfigError(fmt::format(
        "data.dataset_path: not set, but --task {} needs data; write data.dataset_path=FILES",
        task));
  }
  if (task == "stream_lm" && !data.steps_per_epoch) {
    throw ConfigError(
        "data.steps_per_epoch: not set, but --task stream_lm does not know where its data ends; "
        "write "
        "data.steps_per_epoch=N or use --task lm");
  }
  if (data.packing && task != "sft") {
    refuse(
        place_of(loaded, {"data.packing"}), "data.packing",
        fmt::format("true, but samples of --task {} are full anyway; write --task sft, or remove "
                    "it",
                    task));
  }
}

void check_offload(LoadedConfig& loaded, bool on_devices, bool spreads_experts) {
  const char* const field = "distributed.fsdp_cpu_offload";
  if (!loaded.config.distributed.fsdp_cpu_offload || resolve_zero_stage(loaded) != 3) return;
  if (!on_devices) {
    loaded.notes.push_back(
        fmt::format("{}: {}: parameters of ranks on CPUs are in host memory already; it changes "
                    "nothing",
                    loaded.origins.at(field), field));
  } else if (spreads_experts) {
    refuse(place_of(loaded, {field, "distributed.expert_parallel"}), field,
           "true, but under expert_parallel: dp a rank's own experts are read where they are "
           "owned, on its device; write expert_parallel: none, or fsdp_cpu_offload: false");
  }
}

void check_graphs(LoadedConfig& loaded, bool on_devices, bool is_traced) {
  const char* const field = "distributed.cuda_graphs";
  if (!loaded.config.distributed.cuda_graphs || (on_devices && !is_traced)) return;
  loaded.notes.push_back(fmt::format(
      "{}: {}: {}; it changes nothing", loaded.origins.at(field), field,
      on_devices ? "a trace shows ops one by one" : "ranks on CPUs have no device to issue to"));
}

void check_collectives(const LoadedConfig& loaded, bool on_devices) {
  const char* const field = "distributed.collectives";
  const DistributedConfig& d = loaded.config.distributed;
  if (d.collectives != "nccl" || on_devices) return;
  refuse(place_of(loaded, {field}), field,
         fmt::format("nccl, but ranks compute on CPUs (distributed.device: {}), where NCCL adds "
                     "nothing; write collectives: plan, or start on devices",
                     d.device));
}

std::string resolve_backend(const LoadedConfig& loaded, std::int64_t n_devices) {
  const DistributedConfig& d = loaded.config.distributed;
  if (d.device == "cuda" && n_devices == 0) {
    refuse(place_of(loaded, {"distributed.device"}), "distributed.device",
           "cuda, but this rank sees 0 devices; write device: cpu or auto");
  }
  if (d.backend == "nccl" && n_devices == 0) {
    refuse(place_of(loaded, {"distributed.backend"}), "distributed.backend",
           "nccl, but this rank sees 0 devices; write backend: mpi or remove the line");
  }
  const bool on_devices = n_devices > 0 && d.device != "cpu";
  return d.backend.value_or(on_devices ? "nccl" : "mpi");
}

}  // namespace llm
