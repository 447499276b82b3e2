#include "src/train/start.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include "src/base/error.h"
#include "src/base/file.h"
#include "src/base/rank_log.h"
#include "src/comm/mpi/shared_ranks.h"
#include "src/config/checks.h"
#include "src/data/bpe_tokenizer.h"
#include "src/io/hf_folder.h"
#include "src/train/data_setup.h"
#include "src/train/device.h"
#include "src/train/init_from.h"
#include "src/train/resume.h"
#include "src/train/run_dir.h"
#include "src/train/settings_from_config.h"
#include "tensor/ops/matmul.h"

namespace llm {
namespace {

LoadedConfig load_resolved(const std::string& yaml) {
  ConfigSources sources;
  sources.yaml_name = "resolved configuration";
  sources.yaml_text = yaml;
  return load_config(sources);
}

/// The checkpoint to go on from, which all ranks have found whole; empty where there is none to be.
/// Every rank calls it; rank 0 knows the candidates.
std::string agree_on_checkpoint(const MpiSession& session,
                                const std::optional<Candidates>& candidates) {
  std::string first_problem;
  for (std::size_t i = 0;; ++i) {
    const bool is_there = candidates && i < candidates->checkpoints.size();
    const std::string path =
        session.broadcast(is_there ? candidates->checkpoints[i].string() : std::string());
    if (path.empty() && !first_problem.empty()) {
      throw DataError(fmt::format(
          "checkpoint.resume_from_checkpoint: auto, but no checkpoint is whole: {}; remove them to "
          "start afresh",
          first_problem));
    }
    if (path.empty()) return path;
    const Problem own = verify_share(path, session.rank(), session.n_ranks());
    std::string problem;
    for (const std::string& text : session.gather(own.text)) {
      if (problem.empty()) problem = text;
    }
    const bool is_whole = session.broadcast(problem.empty() ? "1" : "0") == "1";
    if (is_whole) return path;
    if (session.rank() != 0) continue;
    if (!candidates->falls_back) {
      throw DataError(fmt::format(
          "checkpoint.resume_from_checkpoint: {}; name another checkpoint, or auto for the newest "
          "that is whole",
          problem));
    }
    if (first_problem.empty()) first_problem = problem;
    say_aside(fmt::format("warning: {} is passed over: {}\n", path, problem));
  }
}

/// Whether all ranks' CPUs multiply bf16; every rank then uses the kernels that all of them have.
bool agree_on_bf16(const MpiSession& session) {
  const std::vector<std::string> all = session.gather(has_fast_bf16() ? "1" : "0");
  const bool everyone =
      std::all_of(all.begin(), all.end(), [](const std::string& one) { return one == "1"; });
  const bool agreed = session.broadcast(everyone ? "1" : "0") == "1";
  set_product_kernel(agreed ? ProductKernel::bf16 : ProductKernel::f32_copies);
  return agreed;
}

/// What rank 0 alone reads of a Hugging Face folder or a checkpoint, and makes of the run's folder.
void open_run_dir(Start& start) {
  const Config& config = start.loaded.config;
  std::string source = config.model.init_from.value_or("");
  if (!start.checkpoint.empty()) source = start.checkpoint;
  std::int64_t first_step = 0;
  if (!start.checkpoint.empty()) {
    const CheckpointReader checkpoint(start.checkpoint);
    start.changes = check_resumable(checkpoint, start.loaded, start.settings);
    first_step = checkpoint.manifest().run.step;
  } else if (config.model.init_from) {
    values_of_folder(source, start.settings.model, true);
  }
  if (!source.empty() && std::filesystem::exists(std::filesystem::path(source) / "config.json")) {
    start.ids = read_hf_config(source).ids;
  }
  start.suffix = file_suffix(start.run_dir, first_step);
  start.yaml = to_yaml(start.loaded);
  const std::filesystem::path folder(start.run_dir);
  if (!source.empty()) copy_hf_tokenizer(source, folder);
  if (config.data.tokenizer_type == "hf") {  // what the weights go with, for who reads them
    const TokenizerFiles files = read_tokenizer_files(*config.data.tokenizer_path);
    write_file_atomically(folder / "tokenizer.json", files.json);
    if (!files.config.empty()) {
      write_file_atomically(folder / "tokenizer_config.json", files.config);
    }
  }
  write_file_atomically(folder / ("config" + start.suffix + ".yaml"), start.yaml);
  if (!start.schedule.empty()) {
    write_file_atomically(folder / ("schedule" + start.suffix + ".txt"), start.schedule);
  }
}

/// What every rank finds, on rank 0.
std::vector<RankFacts> gather_facts(const MpiSession& session, const RunRequest& request) {
  std::vector<RankFacts> facts;
  for (const std::string& one :
       session.gather(to_text(own_facts(request.config_path, request.command)))) {
    facts.push_back(facts_of(one));
  }
  return facts;
}

int rank_on_node(const MpiSession& session) {
  const std::vector<int>& node_of = session.node_of_ranks();
  const auto own = node_of.begin() + session.rank();
  return static_cast<int>(std::count(node_of.begin(), own, *own));
}

/// Every rank calls it: where all of them compute. Rank 0 has the configuration.
Device agree_on_device(const MpiSession& session, Start& start) {
  const std::string asked = session.broadcast(start.loaded.config.distributed.device);
  if (asked == "cpu") {
    if (session.rank() == 0) resolve_backend(start.loaded, 0);
    return Device::cpu;
  }
  const FoundDevice own = find_device(asked, rank_on_node(session));
  std::vector<FoundDevice> found;
  for (const std::string& one : session.gather(to_text(own))) {
    found.push_back(found_device_of(one));
  }
  bool is_cuda = false;
  if (session.rank() == 0) {
    const bool may_share = std::getenv("LLM_SHARE_DEVICE") != nullptr;
    const DeviceChoice choice = choose_device(asked, found, start.facts, may_share);
    is_cuda = choice.is_cuda;
    const bool is_quiet = start.loaded.config.logging.progress == "off";
    if (!choice.note.empty() && !is_quiet) start.loaded.notes.push_back(choice.note);
    start.backend = resolve_backend(start.loaded, is_cuda ? own.n_devices : 0);
    for (std::size_t rank = 0; rank < found.size() && is_cuda; ++rank) {
      start.facts[rank].device = device_text(found[rank]);
    }
  }
  is_cuda = session.broadcast(is_cuda ? "1" : "0") == "1";
  start.backend = session.broadcast(start.backend);
  if (is_cuda) take_device(own);
  return is_cuda ? Device::cuda : Device::cpu;
}

bool is_within(const std::filesystem::path& folder, const std::filesystem::path& whole) {
  const auto inner = std::filesystem::weakly_canonical(folder);
  const auto outer = std::filesystem::weakly_canonical(whole);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

/// Makes and locks the folders that the run writes into.
void take_folders(Start& start) {
  const Config& config = start.loaded.config;
  start.run_dir = run_dir_of(config.logging.run_dir);
  start.locks.push_back(std::make_unique<RunLock>("logging.run_dir", start.run_dir));
  if (!config.checkpoint.resume_from_checkpoint) check_unused(start.run_dir);
  if (!config.checkpoint.checkpoint_dir) return;
  const std::string& checkpoints = *config.checkpoint.checkpoint_dir;
  check_fresh_folder(config, checkpoints);
  if (is_within(checkpoints, start.run_dir)) return;
  start.locks.push_back(std::make_unique<RunLock>("checkpoint.checkpoint_dir", checkpoints));
}

/// Every rank calls it: each node has to see rank 0's folders.
void check_folders(const MpiSession& session, const Start& start) {
  std::vector<std::string> hosts;
  for (const RankFacts& one : start.facts) hosts.push_back(one.host);
  const int n_folders = std::stoi(session.broadcast(std::to_string(start.locks.size())));
  for (int i = 0; i < n_folders; ++i) {
    const RunLock* const lock =
        start.locks.empty() ? nullptr : start.locks[static_cast<std::size_t>(i)].get();
    check_all_nodes_see(session, lock ? lock->field() : "", lock ? lock->folder() : "", hosts);
  }
}

}  // namespace

LoadedConfig load(const RunRequest& request) {
  ConfigSources sources;
  if (!request.config_path.empty()) {
    sources.yaml_name = request.config_path;
    sources.yaml_text = read_config_file(request.config_path);
  }
  sources.environment = process_environment();
  sources.overrides = request.overrides;
  sources.read_folder = fields_of_folder;
  return load_config(sources);
}

Start begin(const MpiSession& session, const RunRequest& request) {
  Start start;
  const bool cpus_have_bf16 = agree_on_bf16(session);
  const bool is_first = session.rank() == 0;
  std::optional<Candidates> candidates;
  start.facts = gather_facts(session, request);
  if (is_first) {
    check_alike(start.facts, session.node_of_ranks(), request.config_path);
    start.loaded = load(request);
    check_task(start.loaded, request.task);
    check_launch(start.loaded, session.n_ranks(), request.command);
    for (std::string& note : check_nodes(start.loaded, session.node_of_ranks())) {
      start.loaded.notes.push_back(std::move(note));
    }
    start.schedule = read_schedule(start.loaded);
  }
  const Device device = agree_on_device(session, start);
  const bool has_bf16 = cpus_have_bf16 || device == Device::cuda;
  if (is_first) {
    start.settings = settings_from(start.loaded, session.n_ranks(), has_bf16, start.schedule);
    check_offload(start.loaded, device == Device::cuda, start.settings.spreads_experts);
    check_graphs(start.loaded, device == Device::cuda, !request.trace_dir.empty());
    check_collectives(start.loaded, device == Device::cuda);
    take_folders(start);
    candidates = resume_candidates(start.loaded.config);
  }
  check_folders(session, start);
  start.checkpoint = agree_on_checkpoint(session, candidates);
  if (is_first) open_run_dir(start);
  const std::string yaml = session.broadcast(start.yaml);
  start.run_dir = session.broadcast(start.run_dir);
  start.schedule = session.broadcast(start.schedule);
  if (!is_first) {
    start.loaded = load_resolved(yaml);
    start.settings = settings_from(start.loaded, session.n_ranks(), has_bf16, start.schedule);
  }
  start.settings.device = device;
  start.settings.shares_memory = ranks_share_memory(session);
  return start;
}

}  // namespace llm
