#include "src/config/rules.h"

#include <fmt/format.h>

#include <algorithm>

namespace llm {
namespace {

void check_choice(const Field& field, const std::string& text, const Place& place) {
  for (const auto& [value, instead] : field.refused_values) {
    if (value == text)
      refuse(place, field.path(), fmt::format("{} is not here; {}", value, instead));
  }
  if (field.choices.empty()) return;
  const bool is_choice = std::count(field.choices.begin(), field.choices.end(), text) > 0 ||
                         (!field.open_choice.empty() && text.rfind(field.open_choice, 0) == 0 &&
                          text.size() > field.open_choice.size());
  if (is_choice) return;
  const auto choices = offered_choices(field);
  refuse(place, field.path(),
         fmt::format("{} is not one of {}{}", printable(text), joined(choices),
                     did_you_mean(text, choices)));
}

/// Divisors of n around x, for a way out: "6 or 8".
std::string divisors_near(std::int64_t n, std::int64_t x) {
  std::int64_t below = std::min(x, n);
  while (below > 1 && n % below != 0) --below;
  std::int64_t above = x + 1;
  while (above < n && n % above != 0) ++above;
  return above <= n ? fmt::format("{} or {}", below, above) : fmt::format("{}", below);
}

void check_model(const LoadedConfig& loaded) {
  const ModelSection& model = loaded.config.model;
  if (model.hidden_size % model.num_heads != 0) {
    refuse(place_of(loaded, {"model.num_heads", "model.hidden_size"}), "model.num_heads",
           fmt::format("{} does not divide model.hidden_size {}; use {}", model.num_heads,
                       model.hidden_size, divisors_near(model.hidden_size, model.num_heads)));
  }
  if (model.num_heads % model.n_kv_heads() != 0) {
    refuse(place_of(loaded, {"model.num_kv_heads", "model.num_heads"}), "model.num_kv_heads",
           fmt::format("{} does not divide model.num_heads {}; use {}", model.n_kv_heads(),
                       model.num_heads, divisors_near(model.num_heads, model.n_kv_heads())));
  }
  if (model.use_rope && model.head_size() % 2 != 0) {
    refuse(place_of(loaded, {"model.use_rope"}), "model.use_rope",
           fmt::format("rotary positions need an even head size, and model.hidden_size {} / "
                       "model.num_heads {} is {}; use another num_heads",
                       model.hidden_size, model.num_heads, model.head_size()));
  }
  if (model.use_rope && model.pos_encoding_learned) {
    refuse(place_of(loaded, {"model.pos_encoding_learned", "model.use_rope"}),
           "model.pos_encoding_learned",
           "true contradicts model.use_rope true; keep one kind of positions");
  }
}

void check_mixture(const LoadedConfig& loaded) {
  const ModelSection& model = loaded.config.model;
  const auto refuse_field = [&](const char* field, std::int64_t value, const std::string& why) {
    refuse(place_of(loaded, {field, "model.mlp_impl"}), field, fmt::format("{} {}", value, why));
  };
  if (!model.is_mixture()) {
    const char* const contradiction = "contradicts model.mlp_impl mlp; write mlp_impl: moe, or 0";
    if (model.num_experts > 0) refuse_field("model.num_experts", model.num_experts, contradiction);
    if (model.top_k > 0) refuse_field("model.top_k", model.top_k, contradiction);
    return;
  }
  const char* const none = "contradicts model.mlp_impl moe; write 1 or more, or mlp_impl: mlp";
  if (model.num_experts == 0) refuse_field("model.num_experts", 0, none);
  if (model.top_k == 0) refuse_field("model.top_k", 0, none);
  if (model.top_k > model.num_experts) {
    refuse_field("model.top_k", model.top_k,
                 fmt::format("is more than model.num_experts {}; lower it", model.num_experts));
  }
}

void check_lengths(const LoadedConfig& loaded) {
  const Config& config = loaded.config;
  if (config.data.max_seq_len > config.model.max_seq_len) {
    refuse(place_of(loaded, {"data.max_seq_len", "model.max_seq_len"}), "data.max_seq_len",
           fmt::format("{} is more than model.max_seq_len {}; lower it or raise model.max_seq_len",
                       config.data.max_seq_len, config.model.max_seq_len));
  }
  const TrainingConfig& training = config.training;
  if (training.max_steps > 0 && training.warmup_steps > training.max_steps) {
    refuse(place_of(loaded, {"training.warmup_steps", "training.max_steps"}),
           "training.warmup_steps",
           fmt::format("{} is more than training.max_steps {}; lower it", training.warmup_steps,
                       training.max_steps));
  }
  if (training.scheduler_type == "wsd" && training.wsd_decay_steps && training.max_steps > 0 &&
      training.warmup_steps + *training.wsd_decay_steps > training.max_steps) {
    refuse(place_of(loaded,
                    {"training.wsd_decay_steps", "training.warmup_steps", "training.max_steps"}),
           "training.wsd_decay_steps",
           fmt::format("{} and training.warmup_steps {} are more than training.max_steps {}; lower "
                       "one",
                       *training.wsd_decay_steps, training.warmup_steps, training.max_steps));
  }
  if (config.distributed.pp_n_microbatches > training.batch_size) {
    refuse(
        place_of(loaded, {"distributed.pp_n_microbatches", "training.batch_size"}),
        "distributed.pp_n_microbatches",
        fmt::format("{} microbatches cannot be cut from training.batch_size {} samples; lower it",
                    config.distributed.pp_n_microbatches, training.batch_size));
  }
}

void check_tokenizer(const LoadedConfig& loaded) {
  const DataConfig& data = loaded.config.data;
  if (data.tokenizer_type == "hf" && !data.tokenizer_path) {
    refuse(place_of(loaded, {"data.tokenizer_type"}), "data.tokenizer_type",
           "hf needs a tokenizer.json; write data.tokenizer_path: FILE");
  }
  if (data.tokenizer_type == "byte" && data.tokenizer_path) {
    refuse(place_of(loaded, {"data.tokenizer_path"}), "data.tokenizer_path",
           fmt::format("{} contradicts data.tokenizer_type byte; write tokenizer_type: hf, or "
                       "remove it",
                       printable(*data.tokenizer_path)));
  }
}

void check_grid(const LoadedConfig& loaded) {
  const DistributedConfig& d = loaded.config.distributed;
  const std::string& strategy = d.parallel_strategy;
  if (d.tp_size > 1 && strategy != "tp" && strategy != "3d") {
    refuse(place_of(loaded, {"distributed.tp_size", "distributed.parallel_strategy"}),
           "distributed.tp_size",
           fmt::format("{} contradicts parallel_strategy {}; write parallel_strategy: tp, or "
                       "tp_size: 0",
                       d.tp_size, strategy));
  }
  if (d.sequence_parallel && strategy != "tp" && strategy != "3d") {
    refuse(place_of(loaded, {"distributed.sequence_parallel", "distributed.parallel_strategy"}),
           "distributed.sequence_parallel",
           fmt::format("true contradicts parallel_strategy {}, whose ranks share no layer; write "
                       "parallel_strategy: tp, or sequence_parallel: false",
                       strategy));
  }
  if (d.pp_size > 1 && strategy != "pp" && strategy != "3d") {
    refuse(place_of(loaded, {"distributed.pp_size", "distributed.parallel_strategy"}),
           "distributed.pp_size",
           fmt::format("{} contradicts parallel_strategy {}; write parallel_strategy: pp, or "
                       "pp_size: 0",
                       d.pp_size, strategy));
  }
  if (d.node_rank >= d.num_nodes) {
    refuse(place_of(loaded, {"distributed.node_rank", "distributed.num_nodes"}),
           "distributed.node_rank",
           fmt::format("{} is not below distributed.num_nodes {}", d.node_rank, d.num_nodes));
  }
  if (d.backend == "nccl" && d.device == "cpu") {
    refuse(place_of(loaded, {"distributed.backend"}), "distributed.backend",
           "nccl contradicts distributed.device cpu; write backend: mpi");
  }
  if (d.collectives == "nccl" && d.backend == "mpi") {
    refuse(place_of(loaded, {"distributed.collectives", "distributed.backend"}),
           "distributed.collectives",
           "nccl contradicts distributed.backend mpi; write backend: nccl, or collectives: plan");
  }
  const bool is_port = d.master_port.size() <= 5 && !d.master_port.empty() &&
                       d.master_port.find_first_not_of("0123456789") == std::string::npos;
  if (!is_port || std::stoi(d.master_port) < 1 || std::stoi(d.master_port) > 65535) {
    refuse(place_of(loaded, {"distributed.master_port"}), "distributed.master_port",
           printable(d.master_port) + " is not a port; write 1 to 65535");
  }
}

template <typename Note>
void note_idle_fsdp_fields(const Config& config, const Note& note) {
  const DistributedConfig& d = config.distributed;
  const DistributedConfig defaults;
  const bool is_fsdp = d.parallel_strategy == "fsdp";
  const bool has_units = is_fsdp || d.zero_stage == 3;
  const char* const no_units = "without parallel_strategy: fsdp or zero_stage: 3";
  note(is_fsdp && config.optimization.amp_dtype != Config().optimization.amp_dtype,
       "optimization.amp_dtype",
       "under parallel_strategy: fsdp, where distributed.fsdp_mixed_precision decides");
  note(d.fsdp_mixed_precision != defaults.fsdp_mixed_precision && !is_fsdp,
       "distributed.fsdp_mixed_precision",
       "without parallel_strategy: fsdp; optimization.amp_dtype decides");
  note(d.fsdp_auto_wrap_min_params != defaults.fsdp_auto_wrap_min_params && !has_units,
       "distributed.fsdp_auto_wrap_min_params", no_units);
  note(d.fsdp_cpu_offload && !has_units, "distributed.fsdp_cpu_offload", no_units);
  note(d.fsdp_prefetch_units != defaults.fsdp_prefetch_units && !has_units,
       "distributed.fsdp_prefetch_units", no_units);
  note(d.fsdp_reshard_after_forward != defaults.fsdp_reshard_after_forward && !has_units,
       "distributed.fsdp_reshard_after_forward", no_units);
}

/// Set, and without effect beside the other values.
void note_idle_fields(LoadedConfig& loaded) {
  const auto note = [&](bool is_idle, const char* field, const char* reason) {
    if (is_idle) {
      loaded.notes.push_back(
          fmt::format("{}: {}: has no effect {}", loaded.origins.at(field), field, reason));
    }
  };
  const Config& config = loaded.config;
  const Config defaults;
  note(config.model.rope_theta != defaults.model.rope_theta && !config.model.use_rope,
       "model.rope_theta", "without model.use_rope: true");
  const bool is_mixture = config.model.is_mixture();
  note(config.model.router_aux_loss_coef != defaults.model.router_aux_loss_coef && !is_mixture,
       "model.router_aux_loss_coef", "without model.mlp_impl: moe");
  note(config.model.router_z_loss_coef != defaults.model.router_z_loss_coef && !is_mixture,
       "model.router_z_loss_coef", "without model.mlp_impl: moe");
  note(config.training.wsd_decay_steps && config.training.scheduler_type != "wsd",
       "training.wsd_decay_steps", "without training.scheduler_type: wsd");
  note(config.data.shuffle_buffer != defaults.data.shuffle_buffer && !config.data.shuffle,
       "data.shuffle_buffer", "without data.shuffle: true");
  note_idle_fsdp_fields(config, note);
}

}  // namespace

std::vector<std::string> offered_choices(const Field& field) {
  std::vector<std::string> choices = field.choices;
  for (const Synonym& synonym : field.synonyms) choices.push_back(synonym.written);
  if (!field.open_choice.empty()) choices.push_back(field.open_choice + "PATH");
  return choices;
}

void check_range(const Field& field, const Value& value, const Place& place) {
  if (const auto* text = std::get_if<std::string>(&value)) check_choice(field, *text, place);
  const auto* integer = std::get_if<std::int64_t>(&value);
  const auto* real = std::get_if<double>(&value);
  if (!integer && !real) return;
  if (field.bounds.holds(real ? *real : static_cast<double>(*integer))) return;
  refuse(place, field.path(),
         fmt::format("{} is out of range; write {} {}", to_plain_text(value),
                     integer ? "an integer," : "a number,", field.bounds.text()));
}

void check_works(const Field& field, const Value& value, const Place& place) {
  if (field.limit == Field::Limit::none) return;
  const bool is_default = field.is_stored() && value == field.default_value();
  if (is_default || std::count(field.accepted.begin(), field.accepted.end(), value)) return;
  const bool is_later = field.limit == Field::Limit::later;
  refuse(
      place, field.path(),
      fmt::format("{} {}; {}", printable(to_plain_text(value)),
                  is_later ? "is not in this version" : "has no counterpart here", field.instead));
}

Place place_of(const LoadedConfig& loaded, std::initializer_list<const char*> fields) {
  for (const char* field : fields) {
    const Place& place = loaded.origins.at(field);
    if (place != "default") return place;
  }
  return "default";
}

void check_together(LoadedConfig& loaded) {
  check_model(loaded);
  check_mixture(loaded);
  check_lengths(loaded);
  check_tokenizer(loaded);
  check_grid(loaded);
  note_idle_fields(loaded);
}

}  // namespace llm
