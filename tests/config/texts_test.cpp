#include <catch2/catch.hpp>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "src/config/checks.h"
#include "src/config/explain.h"
#include "src/config/table.h"
#include "tests/config/support.h"

namespace llm {
namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

LoadedConfig shipped(const std::string& name) {
  const std::filesystem::path path = std::filesystem::path(CONFIGS_FOLDER) / name;
  return load_config({.yaml_name = "configs/" + name,
                      .yaml_text = read_config_file(path),
                      .environment = {},
                      .overrides = {}});
}

}  // namespace

TEST_CASE("configs/README.md is what config-readme prints") {
  CHECK(text_of(std::filesystem::path(CONFIGS_FOLDER) / "README.md") == config_readme());
}

TEST_CASE("the readme and the explanation name every field") {
  const std::string readme = config_readme(), all = explain_all();
  for (const Field& field : all_fields()) {
    INFO(field.path());
    CHECK_THAT(readme, Catch::Contains("| `" + field.name + "`"));
    CHECK_THAT(all, Catch::Contains(field.path() + "\n  " + field.meaning));
  }
}

TEST_CASE("an explanation holds all that the table says") {
  CHECK(explain("training.learning_rate") ==
        "training.lr\n"
        "  Peak learning rate.\n"
        "  type: number, more than 0, at most 1000\n"
        "  default: 0.001\n"
        "  also: learning_rate\n"
        "  status: works\n"
        "  set by: training.lr=VALUE, LLM_TRAINING__LR\n");
  CHECK(
      explain("distributed.zero_stage") ==
      "distributed.zero_stage\n"
      "  What data-parallel ranks share out: 1 optimizer state, 2 gradients too once they are "
      "summed, 3 parameters too; null means 1 under zero, 3 under fsdp, 0 otherwise. Never changes "
      "the numbers.\n"
      "  type: integer or null, 0 to 3\n"
      "  default: null\n"
      "  status: works\n"
      "  set by: distributed.zero_stage=VALUE, LLM_DISTRIBUTED__ZERO_STAGE\n");
  CHECK(explain("optimization.num_workers") ==
        "optimization.num_workers\n"
        "  Data loading processes.\n"
        "  type: integer or null\n"
        "  status: only 0: the data feed of each rank reads ahead by itself; remove the field\n");
  CHECK_THAT(explain("numerics"), Catch::StartsWith("numerics.accumulation\n"));
}

TEST_CASE("explaining what does not exist is a usage error with the nearest name") {
  CHECK_THROWS_AS(explain("model.hiden_size"), UsageError);
  CHECK_THROWS_WITH(explain("model.hiden_size"),
                    "--explain: model.hiden_size: unknown field; did you mean hidden_size?");
  CHECK_THROWS_WITH(explain("modle"), "--explain: modle: unknown section; did you mean model?");
  CHECK_THROWS_WITH(explain("hidden_size"),
                    "--explain: hidden_size: a field outside of its section; it is "
                    "model.hidden_size");
}

TEST_CASE("the resolved configuration reads back to the same values") {
  const std::vector<std::string> yamls = {
      "",
      "training: {lr: 0.1, weight_decay: 0.30000000000000004, adam_eps: 1.2345678901234567e-9}",
      "data: {dataset_path: ['a, \"b\"', 'c\\d', \"e\\nf\\x07\"], text_column: 'null'}",
      "logging: {run_dir: '~'}\ndistributed: {backend: gloo, master_addr: \"10.0.0.1 # x\"}",
      "model: {mlp_activation: swish, num_kv_heads: 2}\noptimization: {use_amp: false}",
  };
  for (const std::string& yaml : yamls) {
    const LoadedConfig loaded = test::load(yaml);
    const std::string text = to_yaml(loaded);
    INFO(text);
    CHECK(test::load(text).config == loaded.config);
  }
}

TEST_CASE("the resolved configuration says where each value comes from") {
  const std::string text = to_yaml(test::load("model:\n  hidden_size: 64\n"));
  CHECK_THAT(text, Catch::StartsWith("model:\n  hidden_size: 64  # c.yaml:2:16\n  num_heads: 8\n"));
}

TEST_CASE("the shipped configurations load without notes, run on 1, 2 and 8 ranks, and read back") {
  int n_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(CONFIGS_FOLDER)) {
    if (entry.path().extension() != ".yaml") continue;
    ++n_files;
    const LoadedConfig loaded = shipped(entry.path().filename().string());
    INFO(entry.path());
    CHECK(loaded.notes.empty());
    CHECK(test::load(to_yaml(loaded)).config == loaded.config);
    CHECK_NOTHROW(check_task(loaded, loaded.config.data.packing ? "sft" : "lm"));
    for (const int n_ranks : {1, 2, 8}) {
      const DistributedConfig& d = loaded.config.distributed;
      const std::int64_t tp = std::max<std::int64_t>(1, d.tp_size);
      if (n_ranks % (std::max<std::int64_t>(1, d.pp_size) * tp) != 0) continue;
      const RankGrid grid = resolve_grid(loaded, n_ranks);
      CHECK_NOTHROW(resolve_pipeline(loaded, grid.pp));
      CHECK_NOTHROW(resolve_batch(loaded, grid.dp));
    }
  }
  CHECK(n_files >= 8);
}

TEST_CASE("the shipped sizes are what their names say") {
  CHECK(shipped("quickstart.yaml").config.model.vocab_size == 256);
  CHECK_NOTHROW(check_task(shipped("ddp.yaml"), "stream_lm"));
  CHECK_NOTHROW(check_task(shipped("sft.yaml"), "sft"));
  CHECK(shipped("gpt2-124m.yaml").config.model.hidden_size == 768);
  CHECK(shipped("llama-small.yaml").config.model.n_kv_heads() == 4);
}

}  // namespace llm
