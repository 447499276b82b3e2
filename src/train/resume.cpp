#include "src/train/resume.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.h"
#include "src/base/file.h"
#include "src/checkpoint/store.h"
#include "src/config/table.h"
#include "src/train/settings_from_config.h"

namespace llm {
namespace {

namespace fs = std::filesystem;

constexpr const char* field = "checkpoint.resume_from_checkpoint";

bool is_set_to(const Config& config, const char* word) {
  return config.checkpoint.resume_from_checkpoint == std::string(word);
}

/// Fields that change what a run computes.
bool changes_numbers(const Field& one) {
  return one.section == "training" || one.section == "optimization" || one.section == "data" ||
         one.section == "numerics" || one.path() == "distributed.collectives";
}

LoadedConfig saved_config(const fs::path& path) {
  ConfigSources sources;
  sources.yaml_name = path.string();
  sources.yaml_text = read_file(path);
  return load_config(sources);
}

/// What a model computes, beyond the names and shapes of its tensors.
void check_same_model(const ModelSection& saved, const ModelSection& now) {
  const ModelConfig a = decoder_config(saved);
  const ModelConfig b = decoder_config(now);
  const auto check = [](const char* name, auto before, auto after) {
    if (before == after) return;
    throw ConfigError(fmt::format(
        "model.{}: {} contradicts the checkpoint of {}, whose model has {}; set it back, or start "
        "afresh with model.init_from",
        name, after, field, before));
  };
  check("hidden_size", a.hidden_size, b.hidden_size);
  check("num_layers", a.n_layers, b.n_layers);
  check("num_heads", a.n_heads, b.n_heads);
  check("num_kv_heads", a.n_kv_heads, b.n_kv_heads);
  check("intermediate_size", a.intermediate_size, b.intermediate_size);
  check("vocab_size", a.vocab_size, b.vocab_size);
  if (a.positions == Positions::learned) check("max_seq_len", a.max_seq_len, b.max_seq_len);
  check("norm_impl", saved.norm_impl, now.norm_impl);
  check("norm_eps", a.norm_epsilon, b.norm_epsilon);
  check("mlp_activation", saved.mlp_activation, now.mlp_activation);
  check("use_glu", a.gated, b.gated);
  check("use_rope", saved.use_rope, now.use_rope);
  check("pos_encoding_learned", saved.pos_encoding_learned, now.pos_encoding_learned);
  if (a.positions == Positions::rotary) check("rope_theta", a.rope_theta, b.rope_theta);
  check("qkv_bias", a.qkv_bias, b.qkv_bias);
  check("mlp_bias", a.mlp_bias, b.mlp_bias);
  check("lm_head_bias", a.lm_head_bias, b.lm_head_bias);
  check("tie_embeddings", a.tie_embeddings, b.tie_embeddings);
  check("num_experts", a.n_experts, b.n_experts);
  check("top_k", a.top_k, b.top_k);
}

}  // namespace

fs::path checkpoint_folder(const Config& config, const std::string& run_dir) {
  if (config.checkpoint.checkpoint_dir) return *config.checkpoint.checkpoint_dir;
  return fs::path(run_dir) / "checkpoints";
}

std::optional<Candidates> resume_candidates(const Config& config) {
  const std::optional<std::string>& asked = config.checkpoint.resume_from_checkpoint;
  if (!asked) return std::nullopt;
  const bool is_auto = is_set_to(config, "auto");
  if (!is_auto && !is_set_to(config, "latest")) {
    if (!fs::exists(fs::path(*asked) / manifest_name)) {
      const std::vector<std::int64_t> inside = list_checkpoints(*asked);
      throw FileError(fmt::format(
          "{}: {} is no checkpoint: it has no {}; {}", field, *asked, manifest_name,
          inside.empty()
              ? "name a folder step-NNNNNNNN of a checkpoint_dir"
              : fmt::format("name one in it, as {}",
                            (fs::path(*asked) / checkpoint_name(inside.back())).string())));
    }
    return Candidates{{*asked}, false};
  }
  if (!config.checkpoint.checkpoint_dir && !config.logging.run_dir) {
    throw ConfigError(
        fmt::format("{}: {} looks in a folder of earlier starts, but checkpoint.checkpoint_dir and "
                    "logging.run_dir are not set and new for each start; set one of them",
                    field, *asked));
  }
  const fs::path folder = checkpoint_folder(config, config.logging.run_dir.value_or(""));
  std::vector<std::int64_t> steps = list_checkpoints(folder);
  if (steps.empty() && is_auto) return std::nullopt;
  if (steps.empty()) {
    throw FileError(fmt::format(
        "{}: latest, but {} holds no checkpoint; auto starts afresh where there is none", field,
        folder.string()));
  }
  std::reverse(steps.begin(), steps.end());
  Candidates candidates{{}, is_auto};
  for (const std::int64_t step : steps) {
    candidates.checkpoints.push_back(folder / checkpoint_name(step));
    if (!is_auto) break;
  }
  return candidates;
}

void check_fresh_folder(const Config& config, const fs::path& folder) {
  const std::vector<std::int64_t> steps = list_checkpoints(folder);
  if (steps.empty() || config.checkpoint.resume_from_checkpoint) return;
  throw ConfigError(fmt::format(
      "checkpoint.checkpoint_dir: {} holds {} checkpoint{} of an earlier start, up to step {}; set "
      "{}: auto to go on from there, or name another folder",
      folder.string(), steps.size(), steps.size() == 1 ? "" : "s", steps.back(), field));
}

Problem verify_share(const fs::path& checkpoint, int rank, int n_ranks) {
  try {
    const Manifest manifest = read_manifest(checkpoint);
    for (std::size_t i = static_cast<std::size_t>(rank); i < manifest.files.size();
         i += static_cast<std::size_t>(n_ranks)) {
      verify_file(checkpoint, manifest.files[i]);
    }
    const CheckpointReader reader(checkpoint);  // every rank sees every file
  } catch (const Error& error) {
    return {error.what(), error.code()};
  }
  return {};
}

std::vector<std::string> check_resumable(const CheckpointReader& checkpoint,
                                         const LoadedConfig& loaded, const Settings& settings) {
  std::vector<std::string> changes;
  const fs::path path = checkpoint.folder() / "config.yaml";
  if (fs::exists(path)) {
    const Config saved = saved_config(path).config;
    check_same_model(saved.model, loaded.config.model);
    for (const Field& one : all_fields()) {
      if (!one.is_stored() || !changes_numbers(one)) continue;
      const Value before = one.get(saved);
      const Value after = one.get(loaded.config);
      if (before == after) continue;
      changes.push_back(
          fmt::format("{} {} -> {}", one.path(), to_plain_text(before), to_plain_text(after)));
    }
  }
  checkpoint.check_model(settings.model);
  const std::int64_t before = checkpoint.manifest().run.global_batch;
  const std::int64_t now = settings.partition.global_batch();
  if (before != now) {
    throw ConfigError(fmt::format(
        "training.batch_size: a step of {} samples does not go on from the checkpoint {}, whose "
        "steps had {}; set batch_size or gradient_accumulation_steps so that {} data-parallel "
        "ranks have {} together",
        now, checkpoint.folder().string(), before, settings.grid.dp, before));
  }
  return changes;
}

void resume_from(const std::shared_ptr<const CheckpointReader>& checkpoint, Settings& settings,
                 TrainerInputs& inputs) {
  const RunState& run = checkpoint->manifest().run;
  settings.first_step = run.step;
  const auto values_of = [&checkpoint](TensorPart part) {
    return WholeValues(
        [checkpoint, part](const ParameterSpec& spec, Range elements, MutView values) {
          checkpoint->read(spec, part, elements, values);
        });
  };
  inputs.initial_values = values_of(TensorPart::weight);
  inputs.resumed = ResumedState{.exp_avg = values_of(TensorPart::exp_avg),
                                .exp_avg_sq = values_of(TensorPart::exp_avg_sq),
                                .n_updates = run.n_updates,
                                .loss_scale = {run.loss_scale, run.n_good_steps}};
}

}  // namespace llm
