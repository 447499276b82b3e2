#include "src/train/init_from.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "src/base/error.h"
#include "src/base/file.h"
#include "src/io/hf_weights.h"
#include "src/model/init.h"
#include "src/train/rank_plan.h"
#include "src/train/settings_from_config.h"
#include "tests/io/temporary_folder.h"
#include "tests/io/tensors.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

void write_folder(const std::filesystem::path& folder, const ModelConfig& model,
                  std::uint64_t seed) {
  Tensors tensors(model);
  tensors.start(seed);
  write_hf_weights(folder, tensors.specs, tensors.values());
  if (const auto json = hf_config_json(model)) {
    write_file_atomically(folder / "config.json", *json);
  }
}

std::string bytes_of(const View& view) {
  return view.empty() ? ""
                      : std::string(static_cast<const char*>(view.data()),
                                    static_cast<std::size_t>(view.n_bytes()));
}

/// Everything that starts in a rank's memory: masters, what ops read, copies of a table.
std::string starting_bytes(ModelState& state) {
  std::string bytes;
  for (const auto& pieces : state.shard().pieces) {
    for (const OwnedPiece& piece : pieces) {
      bytes += bytes_of(state.master(piece)) + bytes_of(state.rounded(piece));
    }
  }
  if (state.units() == nullptr) {
    bytes += bytes_of(state.compute_bytes({0, state.layout().n_elements}));
    bytes += bytes_of(state.borrowed_embedding());
  }
  if (state.tied_tensor() >= 0 || state.units() != nullptr) {
    for (const MutView& part : state.owned_table()) bytes += bytes_of(part);
  }
  return bytes;
}

LoadedConfig load_with(const std::vector<std::string>& overrides) {
  ConfigSources sources;
  sources.overrides = overrides;
  sources.read_folder = fields_of_folder;
  return load_config(sources);
}

}  // namespace

TEST_CASE("every rank of every layout starts from a folder with the bits of what it holds") {
  int n_ranks = 0;
  for (const ModelConfig& model : {parity_gpt2(), parity_llama(), parity_mixtral()}) {
    const TemporaryFolder folder;
    write_folder(folder.path(), model, 77);
    for (const Dtype compute : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
      for (const Grid grid : {Grid{1, 1, 1},
                              {2, 1, 1},
                              {3, 1, 1},
                              {1, 2, 1},
                              {2, 2, 1},
                              {3, 2, 1},
                              {1, 1, 2},
                              {1, 1, 4},
                              {2, 2, 2}}) {
        for (const int zero_stage : {0, 1, 2, 3}) {
          Settings settings = parity_settings(model, grid.dp, {1, 1}, 1, 1);
          settings.model.compute = compute;
          settings.zero_stage = zero_stage;
          settings.unit_min_parameters = 1;
          settings.grid.tp = grid.tp;
          settings.spreads_experts = model.is_mixture() && grid.dp == 2;
          set_pipeline(settings, {.n_ranks = grid.pp});
          const InitialValues values = values_of_folder(folder.path(), settings.model, true).values;
          for (int rank = 0; rank < grid.n_ranks(); ++rank, ++n_ranks) {
            ModelState expected(model_of(settings, rank), state_shape(settings, rank));
            ModelState state(model_of(settings, rank), state_shape(settings, rank));
            expected.initialize(77);
            state.initialize(values);
            INFO("dp " << grid.dp << " pp " << grid.pp << " tp " << grid.tp << " zero "
                       << zero_stage << " rank " << rank);
            REQUIRE(starting_bytes(state) == starting_bytes(expected));
            REQUIRE_FALSE(starting_bytes(state).empty());
          }
        }
      }
    }
  }
  WARN(n_ranks << " ranks of layouts");
}

TEST_CASE("a rank asks for what it holds alone") {
  const ModelConfig model = parity_llama();
  Settings settings = parity_settings(model, 3, {1, 1}, 1, 1);
  settings.zero_stage = 3;
  std::int64_t n_asked = 0;
  std::int64_t n_all = 0;
  for (int rank = 0; rank < 3; ++rank) {
    ModelState state(settings.model, state_shape(settings, rank));
    std::int64_t n = 0;
    state.initialize([&n](const ParameterSpec&, Range elements, MutView values) {
      n += elements.size();
      std::memset(values.data(), 0, static_cast<std::size_t>(values.n_bytes()));
    });
    n_all += n_asked += n;
    CHECK(n < n_parameters(model) / 2);
    n_asked = 0;
  }
  CHECK(n_all == n_parameters(model));
}

TEST_CASE("fields that nothing sets are the folder's, and the resolved configuration has them") {
  for (const ModelConfig& model : {parity_gpt2(0.25f), parity_llama(), parity_mixtral()}) {
    const TemporaryFolder folder;
    write_folder(folder.path(), model, 1);
    const std::string init_from = "model.init_from=" + folder.path().string();
    const LoadedConfig loaded = load_with({init_from, "data.max_seq_len=4"});
    const ModelConfig config = decoder_config(loaded.config.model);
    CHECK(hf_config_json(config) == hf_config_json(model));
    CHECK(config.dropout == model.dropout);
    CHECK(loaded.origins.at("model.hidden_size") == folder.path().string());
    ConfigSources again;
    again.yaml_text = to_yaml(loaded);
    CHECK(load_config(again).config == loaded.config);
    again.read_folder = fields_of_folder;
    CHECK(load_config(again).config == loaded.config);
  }
}

TEST_CASE("a field that contradicts the folder is refused with both values") {
  const TemporaryFolder folder;
  const ModelConfig model = parity_llama();
  write_folder(folder.path(), model, 1);
  const auto load = [&](const std::string& field) {
    return load_with({"model.init_from=" + folder.path().string(), "data.max_seq_len=4", field});
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"model.hidden_size=7777", std::to_string(model.hidden_size)},
      {"model.num_layers=77", std::to_string(model.n_layers)},
      {"model.num_heads=1", std::to_string(model.n_heads)},
      {"model.vocab_size=7777", std::to_string(model.vocab_size)},
      {"model.max_seq_len=7777", std::to_string(model.max_seq_len)},
      {"model.norm_impl=layer_norm", "rms_norm"},
      {"model.norm_eps=0.5", "1e-05"},
      {"model.rope_theta=77", "10000"},
      {"model.use_rope=false", "true"},
      {"model.mlp_activation=relu", "silu"},
      {"model.mlp_impl=moe", "mlp"}};
  for (const auto& [field, of_folder] : cases) {
    INFO(field);
    const std::string value = field.substr(field.find('=') + 1);
    CHECK_THROWS_WITH(load(field), Catch::Contains(field.substr(0, field.find('='))) &&
                                       Catch::Contains(value + " contradicts model.init_from") &&
                                       Catch::Contains("has " + of_folder));
    CHECK_THROWS_AS(load(field), ConfigError);
  }
  CHECK(load("model.max_seq_len=5").config.model.max_seq_len == 5);  // rotary: no table
  CHECK(load("model.dropout=0.5").config.model.dropout == 0.5);
  CHECK(load("model.norm_eps=0.00001").config.model.norm_eps == 1e-5);
  CHECK(load("model.num_kv_heads=null").config.model.num_kv_heads == model.n_kv_heads);
}

TEST_CASE("dropout rates that differ need a field, and other weights are refused before a run") {
  const TemporaryFolder folder;
  write_folder(folder.path(), parity_gpt2(), 1);
  std::string json = read_file(folder / "config.json");
  const std::string rate = "\"attn_pdrop\": 0.0";
  REQUIRE(json.find(rate) != std::string::npos);
  json.replace(json.find(rate), rate.size(), "\"attn_pdrop\": 0.5");
  write_file_atomically(folder / "config.json", json);
  const std::string init_from = "model.init_from=" + folder.path().string();
  CHECK_THROWS_WITH(load_with({init_from, "data.max_seq_len=4"}),
                    Catch::Contains("attn_pdrop 0.5") && Catch::Contains("write model.dropout"));
  CHECK(load_with({init_from, "data.max_seq_len=4", "model.dropout=0.1"}).config.model.dropout ==
        0.1);
  CHECK_THROWS_AS(values_of_folder(folder.path(), parity_llama(), true), DataError);
  CHECK_THROWS_AS(load_with({"model.init_from=" + (folder / "none").string()}), FileError);
}
