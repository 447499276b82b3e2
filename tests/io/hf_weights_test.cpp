#include "src/io/hf_weights.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <nlohmann/json.hpp>

#include "src/base/error.h"
#include "src/model/init.h"
#include "tensor/storage.h"
#include "tests/io/temporary_folder.h"
#include "tests/model/configs.h"

namespace llm {
namespace {

/// One tensor for each parameter.
struct Tensors {
  explicit Tensors(const ModelConfig& config) : specs(parameters(config)) {
    for (const ParameterSpec& spec : specs) {
      storages.emplace_back(spec.n_elements() * 4);
      views.push_back(storages.back().view(Dtype::f32, spec.shape));
    }
  }
  void start(std::uint64_t seed) {
    for (std::size_t i = 0; i < specs.size(); ++i) {
      initialize(specs[i], seed, {0, specs[i].n_elements()}, views[i]);
    }
  }
  std::vector<View> values() const { return {views.begin(), views.end()}; }
  std::vector<ParameterSpec> specs;
  std::vector<Storage> storages;
  std::vector<MutView> views;
};

}  // namespace

TEST_CASE("weights written under Hugging Face names come back bit by bit") {
  for (const auto& [name, config] : test_configs()) {
    INFO(name);
    const TemporaryFolder folder;
    Tensors a(config);
    a.start(9);
    write_hf_weights(folder.path(), a.specs, a.values());
    Tensors b(config);
    read_hf_weights(folder / "model.safetensors", b.specs, b.views);
    for (std::size_t i = 0; i < a.specs.size(); ++i) {
      const auto n_bytes = static_cast<std::size_t>(a.views[i].n_bytes());
      CHECK(std::memcmp(a.views[i].data(), b.views[i].data(), n_bytes) == 0);
    }
  }
}

TEST_CASE("a Conv1D weight is stored as (in, out), queries and keys as their own tensors") {
  const TemporaryFolder folder;
  Tensors gpt2(tiny_gpt2());
  gpt2.start(9);
  write_hf_weights(folder.path(), gpt2.specs, gpt2.values());
  const SafetensorsFile file(folder / "model.safetensors");
  CHECK(file.find("h.1.attn.c_attn.weight").shape == std::vector<std::int64_t>{16, 48});
  CHECK_FALSE(file.contains("lm_head.weight"));
  const std::vector<float> stored = file.read_f32("h.1.mlp.c_fc.weight");
  for (std::size_t i = 0; i < gpt2.specs.size(); ++i) {
    if (gpt2.specs[i].name != "blocks.1.up.weight") continue;
    const auto* internal = gpt2.views[i].as<float>();  // (40, 16)
    CHECK(stored[3 * 40 + 7] == internal[7 * 16 + 3]);
    CHECK(stored[0 * 40 + 39] == internal[39 * 16 + 0]);
  }

  Tensors llama(tiny_llama());
  llama.start(9);
  write_hf_weights(folder.path(), llama.specs, llama.values());
  const SafetensorsFile second(folder / "model.safetensors");
  CHECK(second.find("model.layers.0.self_attn.q_proj.weight").shape ==
        std::vector<std::int64_t>{16, 16});
  CHECK(second.find("model.layers.0.self_attn.v_proj.weight").shape ==
        std::vector<std::int64_t>{8, 16});
  CHECK(second.contains("lm_head.weight"));
}

TEST_CASE("a file of another model is refused by the tensor's name") {
  const TemporaryFolder folder;
  Tensors small(tiny_gpt2());
  write_hf_weights(folder.path(), small.specs, small.values());
  ModelConfig config = tiny_gpt2();
  config.intermediate_size = 48;
  Tensors wider(config);
  CHECK_THROWS_WITH(read_hf_weights(folder / "model.safetensors", wider.specs, wider.views),
                    Catch::Contains("h.0.mlp.c_fc.weight") && Catch::Contains("(16, 40)") &&
                        Catch::Contains("(16, 48)"));
  config = tiny_gpt2();
  config.n_layers = 3;
  Tensors deeper(config);
  CHECK_THROWS_WITH(read_hf_weights(folder / "model.safetensors", deeper.specs, deeper.views),
                    Catch::Contains("h.2.ln_1.weight"));
  config.n_layers = 1;
  Tensors shallower(config);
  CHECK_THROWS_WITH(read_hf_weights(folder / "model.safetensors", shallower.specs, shallower.views),
                    Catch::Contains("h.1.") && Catch::Contains("no parameter"));
}

TEST_CASE("config.json says what the model is, and stays away where neither family is") {
  const auto gpt2 = nlohmann::json::parse(hf_config_json(tiny_gpt2()).value());
  CHECK(gpt2.at("model_type") == "gpt2");
  CHECK(gpt2.at("n_inner") == 40);
  CHECK(gpt2.at("activation_function") == "gelu_new");
  CHECK(gpt2.at("layer_norm_epsilon") == 1e-5);
  CHECK(gpt2.at("tie_word_embeddings") == true);
  const auto llama = nlohmann::json::parse(hf_config_json(tiny_llama()).value());
  CHECK(llama.at("model_type") == "llama");
  CHECK(llama.at("architectures") == nlohmann::json{"LlamaForCausalLM"});
  CHECK(llama.at("num_key_value_heads") == 2);
  CHECK(llama.at("rope_theta") == 10000);
  CHECK(llama.at("rope_parameters").at("rope_theta") == 10000);
  CHECK(llama.at("attention_bias") == false);
  const auto mixtral =
      nlohmann::json::parse(hf_config_json(with_experts(tiny_llama(), 4, 2)).value());
  CHECK(mixtral.at("architectures") == nlohmann::json{"MixtralForCausalLM"});
  CHECK(mixtral.at("num_local_experts") == 4);
  CHECK(mixtral.at("num_experts_per_tok") == 2);
  CHECK(mixtral.at("router_aux_loss_coef") == 0.5);
  CHECK(!mixtral.contains("mlp_bias"));

  const auto has_none = [](ModelConfig config, auto change) {
    change(config);
    return !hf_config_json(config).has_value();
  };
  CHECK(has_none(tiny_gpt2(), [](ModelConfig& c) { c.positions = Positions::sinusoidal; }));
  CHECK(has_none(tiny_gpt2(), [](ModelConfig& c) { c.qkv_bias = false; }));
  CHECK(has_none(tiny_gpt2(), [](ModelConfig& c) { c.n_kv_heads = 1; }));
  CHECK(has_none(tiny_gpt2(), [](ModelConfig& c) { c.lm_head_bias = true; }));
  CHECK(has_none(tiny_llama(), [](ModelConfig& c) { c.norm = Norm::layer_norm; }));
  CHECK(has_none(tiny_llama(), [](ModelConfig& c) { c.gated = false; }));
  CHECK(has_none(with_experts(tiny_gpt2(), 2, 1), [](ModelConfig&) {}));
  CHECK(has_none(with_experts(tiny_llama(), 2, 1), [](ModelConfig& c) { c.mlp_bias = true; }));
}

}  // namespace llm
