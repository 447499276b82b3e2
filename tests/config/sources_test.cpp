#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>

#include "tests/config/support.h"

namespace llm {
namespace {

using test::load;
using test::refusal;

LoadedConfig with_environment(std::map<std::string, std::string> environment,
                              const std::string& yaml = "") {
  return load_config(
      {.yaml_name = "c.yaml", .yaml_text = yaml, .environment = environment, .overrides = {}});
}

LoadedConfig with_overrides(std::vector<std::string> overrides, const std::string& yaml = "") {
  return load_config(
      {.yaml_name = "c.yaml", .yaml_text = yaml, .environment = {}, .overrides = overrides});
}

/// A folder of this test alone, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "config-test-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
    return path_ / name;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

TEST_CASE("sources win in order: default, file, guide's variable, LLM variable, command line") {
  ConfigSources sources{.yaml_name = "c.yaml", .yaml_text = "", .environment = {}, .overrides = {}};
  const auto nodes = [&] {
    const LoadedConfig loaded = load_config(sources);
    return std::pair(loaded.config.distributed.num_nodes,
                     loaded.origins.at("distributed.num_nodes"));
  };
  using Pair = std::pair<std::int64_t, std::string>;
  CHECK(nodes() == Pair(1, "default"));
  sources.yaml_text = "distributed:\n  num_nodes: 2\n";
  CHECK(nodes() == Pair(2, "c.yaml:2:14"));
  sources.environment["NUM_NODES"] = "3";
  CHECK(nodes() == Pair(3, "environment NUM_NODES"));
  sources.environment["LLM_DISTRIBUTED__NUM_NODES"] = "4";
  CHECK(nodes() == Pair(4, "environment LLM_DISTRIBUTED__NUM_NODES"));
  sources.overrides = {"distributed.num_nodes=5"};
  CHECK(nodes() == Pair(5, "command line"));
  sources.overrides.push_back("distributed.num_nodes=6");
  CHECK(nodes() == Pair(6, "command line"));
}

TEST_CASE("a value that is overridden must still be well typed and in range") {
  CHECK(refusal([] { with_overrides({"training.lr=1"}, "training: {lr: fast}"); }) ==
        "c.yaml:1:16: training.lr: fast is not a finite number; write one like 0.001 or 1e-3");
}

TEST_CASE("a value that does not work yet can be overridden by one that does") {
  const std::string yaml = "training: {use_qat: true}";
  CHECK(test::refusal_of(yaml) ==
        "c.yaml:1:21: training.use_qat: true is not in this version; remove the field");
  CHECK_NOTHROW(with_overrides({"training.use_qat=false"}, yaml));
}

TEST_CASE("the guide's six variables are read without a prefix") {
  const LoadedConfig loaded = with_environment({{"BACKEND", "gloo"},
                                                {"NUM_NODES", "2"},
                                                {"NODE_RANK", "1"},
                                                {"GPUS_PER_NODE", "4"},
                                                {"MASTER_ADDR", "192.168.1.1"},
                                                {"MASTER_PORT", "12356"}});
  const DistributedConfig& d = loaded.config.distributed;
  CHECK(d.backend == "mpi");
  CHECK(d.num_nodes == 2);
  CHECK(d.node_rank == 1);
  CHECK(d.gpus_per_node == 4);
  CHECK(d.master_addr == "192.168.1.1");
  CHECK(d.master_port == "12356");
  CHECK(loaded.notes ==
        std::vector<std::string>{"environment BACKEND: distributed.backend: gloo means mpi",
                                 "environment MASTER_ADDR: distributed.master_addr: MPI needs "
                                 "neither master_addr nor master_port"});
}

TEST_CASE("an empty guide's variable counts as not set") {
  CHECK(with_environment({{"BACKEND", ""}, {"NUM_NODES", ""}}).config == Config{});
}

TEST_CASE("LLM variables are read in any case, and others are left alone") {
  CHECK(with_environment({{"llm_Model__Hidden_Size", "64"}}).config.model.hidden_size == 64);
  CHECK(with_environment({{"LLM_TRAINING__LEARNING_RATE", "0.5"}}).config.training.lr == 0.5);
  CHECK(with_environment({{"LLM_HOME", "x"}, {"LLM__X", "y"}, {"PATH", "z"}, {"LLM_X_Y", "1"}})
            .config == Config{});
  CHECK(refusal([] { with_environment({{"LLM_MODLE__HIDDEN_SIZE", "1"}}); }) ==
        "environment LLM_MODLE__HIDDEN_SIZE: modle: unknown section; did you mean model?");
  CHECK(refusal([] { with_environment({{"LLM_MODEL__HIDEN_SIZE", "1"}}); }) ==
        "environment LLM_MODEL__HIDEN_SIZE: model.hiden_size: unknown field; did you mean "
        "hidden_size?");
  CHECK(refusal([] { with_environment({{"LLM_MODEL__HIDDEN_SIZE", ""}}); }) ==
        "environment LLM_MODEL__HIDDEN_SIZE: model.hidden_size: is empty; write a value or remove "
        "it");
  CHECK(refusal([] {
          with_environment({{"LLM_MODEL__HIDDEN_SIZE", "8"}, {"llm_model__hidden_size", "8"}});
        }) ==
        "environment llm_model__hidden_size: model.hidden_size: sets the same field as hidden_size "
        "at environment LLM_MODEL__HIDDEN_SIZE; keep one");
}

TEST_CASE("a wrong guide's variable is named") {
  CHECK(
      refusal([] { with_environment({{"NUM_NODES", "two"}}); }) ==
      "environment NUM_NODES: distributed.num_nodes: two is not an integer; write a whole number");
}

TEST_CASE("an override that is none is shown") {
  const std::string tail = ": not an override; write section.field=value";
  for (const char* text : {"model.hidden_size", "hidden_size=3", "", "=", "a=b.c", "--plan"}) {
    CHECK(refusal([&] { with_overrides({text}); }) == "command line: " + std::string(text) + tail);
  }
  CHECK(refusal([] { with_overrides({"model.hiden_size=3"}); }) ==
        "command line: model.hiden_size: unknown field; did you mean hidden_size?");
  CHECK(refusal([] { with_overrides({"model.=3"}); }) == "command line: model.: unknown field");
}

TEST_CASE("an override takes everything after the first equals sign") {
  CHECK(with_overrides({"logging.run_dir=a=b.c"}).config.logging.run_dir == "a=b.c");
}

TEST_CASE("null sets a nullable field back") {
  const std::string yaml = "model: {num_kv_heads: 4}\ndata: {dataset_path: a}";
  CHECK_FALSE(with_overrides({"model.num_kv_heads=null"}, yaml).config.model.num_kv_heads);
  CHECK(with_overrides({"data.dataset_path=null"}, yaml).config.data.dataset_path.empty());
  CHECK_FALSE(load("model: {num_kv_heads: ~}").config.model.num_kv_heads);
  CHECK_FALSE(load("model: {num_kv_heads: }").config.model.num_kv_heads);
}

TEST_CASE("paths are a list, or one text cut at commas outside of braces") {
  using Paths = std::vector<std::string>;
  CHECK(load("data: {dataset_path: a.txt}").config.data.dataset_path == Paths{"a.txt"});
  CHECK(load("data: {dataset_path: ['a, b', \"c\"]}").config.data.dataset_path ==
        Paths{"a, b", "c"});
  CHECK(load("data: {dataset_path: \"src/**/*.{h,cpp}, docs/*.md\"}").config.data.dataset_path ==
        Paths{"src/**/*.{h,cpp}", "docs/*.md"});
  CHECK(with_overrides({"data.dataset_path=a,{b,{c,d}}e,f"}).config.data.dataset_path ==
        Paths{"a", "{b,{c,d}}e", "f"});
}

TEST_CASE("learning_rate and swish are other spellings of lr and silu") {
  const Config config =
      load("training: {learning_rate: 2e-4}\nmodel: {mlp_activation: swish}").config;
  CHECK(config.training.lr == 2e-4);
  CHECK(config.model.mlp_activation == "silu");
  CHECK(load("optimization: {gradient_checkpointing: false}")
            .config.optimization.gradient_checkpointing == "none");
  CHECK(load("optimization: {gradient_checkpointing: true}")
            .config.optimization.gradient_checkpointing == "block");
  CHECK(with_overrides({"training.learning_rate=0.5"}, "training: {lr: 0.25}").config.training.lr ==
        0.5);
}

TEST_CASE("numbers are read as people write them") {
  CHECK(load("distributed: {fsdp_auto_wrap_min_params: 10_000_000}").config == Config{});
  CHECK(load("training: {lr: 1e-3, beta1: .9, weight_decay: 1, adam_eps: 1.0E-8}")
            .config.training.beta1 == 0.9);
  CHECK(load("training: {seed: +7}").config.training.seed == 7);
}

TEST_CASE("the guide's blocks load as they are printed") {
  const auto strategy = [](const std::string& yaml) {
    return load("distributed:\n" + yaml).config.distributed;
  };
  const DistributedConfig ddp = strategy(
      "  gpus_per_node: 2        # defaults to torch.cuda.device_count()\n"
      "  parallel_strategy: ddp  # default; shown for clarity\n"
      "  backend: nccl\n");
  CHECK(ddp.gpus_per_node == 2);
  CHECK(ddp.backend == "nccl");
  CHECK(strategy("  parallel_strategy: fsdp\n"
                 "  # Optional FSDP knobs (defaults shown):\n"
                 "  fsdp_mixed_precision: bf16\n"
                 "  fsdp_auto_wrap_min_params: 10000000\n"
                 "  fsdp_cpu_offload: false\n")
            .parallel_strategy == "fsdp");
  CHECK(strategy("  parallel_strategy: zero\n"
                 "  backend: nccl        # gloo also works (e.g. for CPU/gloo e2e tests)\n")
            .parallel_strategy == "zero");
  CHECK(strategy("  parallel_strategy: tp\n  backend: nccl\n").tp_size == 0);
  CHECK(strategy("  parallel_strategy: tp\n  tp_size: 2\n  backend: nccl\n").tp_size == 2);
  CHECK(strategy("  parallel_strategy: pp\n  backend: nccl\n").pp_size == 0);
  CHECK(strategy("  parallel_strategy: pp\n  pp_size: 2\n  backend: nccl\n").pp_size == 2);
}

TEST_CASE("a configuration file that cannot be read is named") {
  const TemporaryFolder folder;
  const auto message = [](const std::filesystem::path& path) {
    return refusal([&] { read_config_file(path); });
  };
  CHECK(message(folder.path() / "no.yaml") ==
        (folder.path() / "no.yaml").string() +
            ": No such file or directory; name a YAML file with --config-path");
  CHECK(message(folder.path()) == folder.path().string() + ": is a folder; name a YAML file");
  const auto large = folder.write("large.yaml", std::string((1 << 20) + 1, '#'));
  CHECK(message(large) == large.string() + ": a configuration has at most 1048576 bytes");
  const std::string text = "model: {hidden_size: 64}\n";
  CHECK(read_config_file(folder.write("good.yaml", text)) == text);
  CHECK(read_config_file(folder.write("full.yaml", std::string(1 << 20, '#'))).size() == 1 << 20);
}

TEST_CASE("the process's environment holds what the process was given") {
  ::setenv("CONFIG_TEST_VARIABLE", "a=b", 1);
  CHECK(process_environment().at("CONFIG_TEST_VARIABLE") == "a=b");
}

}  // namespace llm
