#include "src/io/hf_config.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <random>

#include "src/base/error.h"
#include "src/model/parameters.h"
#include "tests/io/temporary_folder.h"
#include "tests/model/configs.h"

namespace llm {
namespace {

HfConfig read_text(const std::string& text) {
  const TemporaryFolder folder;
  write_plainly(folder / "config.json", text);
  return read_hf_config(folder.path());
}

const nlohmann::json gpt2 = {{"model_type", "gpt2"}, {"n_layer", 2}};
const nlohmann::json llama = {
    {"model_type", "llama"}, {"hidden_size", 64}, {"num_attention_heads", 4}};
const nlohmann::json mixtral = {
    {"model_type", "mixtral"}, {"hidden_size", 64}, {"num_attention_heads", 8}};

HfConfig read_with(nlohmann::json json, const std::string& key, const nlohmann::json& value) {
  json[key] = value;
  return read_text(json.dump());
}

}  // namespace

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

TEST_CASE("every model that has a config.json comes back from it") {
  int n_models = 0;
  for (const auto& [name, config] : test_configs()) {
    const std::optional<std::string> json = hf_config_json(config, {{1}, {2, 3}});
    if (!json) continue;
    ++n_models;
    INFO(name);
    const HfConfig read = read_text(*json);
    CHECK(hf_config_json(read.model, read.ids) == json);
    CHECK(read.uneven_dropout.empty());
    CHECK(read.ids.begin == std::vector<std::int64_t>{1});
    CHECK(read.ids.end == std::vector<std::int64_t>{2, 3});
  }
  CHECK(n_models >= 4);
}

TEST_CASE("what config.json leaves out has the default of Hugging Face's class") {
  const ModelConfig g = read_text(R"({"model_type":"gpt2"})").model;
  CHECK(g.hidden_size == 768);
  CHECK(g.n_layers == 12);
  CHECK(g.n_heads == 12);
  CHECK(g.intermediate_size == 3072);
  CHECK(g.vocab_size == 50257);
  CHECK(g.max_seq_len == 1024);
  CHECK((g.activation == Activation::gelu_tanh));
  CHECK(g.tie_embeddings);
  CHECK(g.dropout == 0.1f);
  CHECK(n_parameters(g) == 124'439'808);  // GPT-2 small
  const ModelConfig l = read_text(R"({"model_type":"llama"})").model;
  CHECK(n_parameters(l) == 6'738'415'616);  // Llama 7B
  CHECK(l.norm_epsilon == 1e-6f);
  CHECK(l.rope_theta == 1e4f);
  CHECK_FALSE(l.tie_embeddings);
  CHECK(l.dropout == 0);
  const ModelConfig m = read_text(R"({"model_type":"mixtral"})").model;
  CHECK(n_parameters(m) == 46'702'792'704);  // Mixtral 8x7B
  CHECK(m.rope_theta == 1e6f);
  CHECK(read_with(gpt2, "n_inner", nullptr).model.intermediate_size == 3072);
  CHECK(read_with(llama, "num_key_value_heads", nullptr).model.n_kv_heads == 4);
}

TEST_CASE("the rotation's base is read under its old and its current key") {
  const auto theta = [](const nlohmann::json& keys) {
    nlohmann::json json = llama;
    json.update(keys);
    return read_text(json.dump()).model.rope_theta;
  };
  CHECK(theta({{"rope_theta", 500000.0}}) == 500000.0f);
  CHECK(theta({{"rope_theta", 500000}, {"rope_scaling", nullptr}}) == 500000.0f);
  CHECK(theta({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 70.5}}}}) == 70.5f);
  CHECK(theta({{"rope_theta", 9}, {"rope_parameters", {{"rope_theta", 9.0}}}}) == 9.0f);
  CHECK(theta({{"rope_scaling", {{"type", "default"}}}}) == 1e4f);
  const nlohmann::json both = {{"rope_theta", 10000}, {"rope_parameters", {{"rope_theta", 500.0}}}};
  CHECK_THROWS_WITH(
      theta(both),
      Catch::Contains("config.json: rope_parameters: rope_theta: 500 contradicts 10000"));
}

TEST_CASE("what would change the formulas is refused by key and value") {
  const auto refused = [](const nlohmann::json& json, const std::string& key,
                          const nlohmann::json& value, const std::string& problem) {
    INFO(key << " " << value);
    CHECK_THROWS_WITH(read_with(json, key, value), Catch::Contains("config.json: ") &&
                                                       Catch::Contains(key) &&
                                                       Catch::Contains(problem));
    CHECK_THROWS_AS(read_with(json, key, value), DataError);
  };
  refused(gpt2, "model_type", "gpt_neox", "\"gpt_neox\" is not one of gpt2, llama, mixtral");
  refused(gpt2, "model_type", nullptr, "nothing is not one of");
  refused(gpt2, "architectures", {"GPT2ForSequenceClassification"},
          "GPT2LMHeadModel and GPT2Model");
  refused(gpt2, "architectures", "GPT2LMHeadModel", "is not in this version");
  refused(gpt2, "activation_function", "gelu_fast", "gelu_new");
  refused(gpt2, "scale_attn_weights", false, "computes true alone");
  refused(gpt2, "scale_attn_by_inverse_layer_idx", true, "computes false alone");
  refused(gpt2, "add_cross_attention", true, "computes false alone");
  refused(gpt2, "quantization_config", {{"bits", 4}}, "quantized weights are not read");
  refused(llama, "rope_scaling", {{"type", "linear"}, {"factor", 2.0}},
          "\"linear\" is not in this version");
  refused(llama, "rope_parameters", {{"rope_type", "llama3"}}, "\"llama3\" is not in this version");
  refused(llama, "rope_parameters", {{"full_attention", {{"rope_theta", 1}}}}, "one rotation");
  refused(llama, "rope_parameters", 3, "not an object");
  refused(llama, "partial_rotary_factor", 0.5, "computes 1.0 alone");
  refused(llama, "head_dim", 32, "32 x num_attention_heads 4 is not hidden_size 64");
  refused(llama, "sliding_window", 128, "128 is less than max_position_embeddings 2048");
  refused(llama, "hidden_act", "quick_gelu", "silu");
  refused(mixtral, "attention_bias", true, "computes false alone");
  refused(mixtral, "router_jitter_noise", 0.1, "computes 0.0 alone");
}

TEST_CASE("numbers that make no model are refused as the fields that they become") {
  CHECK_THROWS_WITH(
      read_with(gpt2, "n_head", 7),
      Catch::Contains("config.json: ") && Catch::Contains("model.num_heads: 7 does not divide"));
  CHECK_THROWS_WITH(read_with(mixtral, "num_experts_per_tok", 9),
                    Catch::Contains("model.top_k: 9 is more than model.num_experts 8"));
}

TEST_CASE("ill-typed values and malformed files are refused by key or place") {
  for (const nlohmann::json& value : std::vector<nlohmann::json>{
           "2", 2.0, 0, -1, true, nlohmann::json::array(), std::uint64_t{1} << 31}) {
    CHECK_THROWS_WITH(read_with(gpt2, "n_layer", value),
                      Catch::Contains("config.json: n_layer: " + value.dump()));
  }
  CHECK_THROWS_WITH(read_with(gpt2, "resid_pdrop", 1.0),
                    Catch::Contains("resid_pdrop: 1 is not in [0, 1)"));
  CHECK_THROWS_WITH(read_with(gpt2, "layer_norm_epsilon", 0),
                    Catch::Contains("layer_norm_epsilon"));
  CHECK_THROWS_WITH(read_with(gpt2, "tie_word_embeddings", 1),
                    Catch::Contains("not true or false"));
  CHECK_THROWS_WITH(read_with(gpt2, "activation_function", 1), Catch::Contains("not a text"));
  CHECK_THROWS_WITH(read_with(llama, "rms_norm_eps", "1e-5"), Catch::Contains("not a number"));
  CHECK_THROWS_WITH(read_with(llama, "eos_token_id", "x"), Catch::Contains("eos_token_id"));
  CHECK_THROWS_WITH(read_with(llama, "rope_theta", -1),
                    Catch::Contains("rope_theta: -1 is not above 0"));
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  for (const std::string& text : std::vector<std::string>{
           "", "{", "[]", "3", "{\"a\":1}x",
           "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_layer\":2}", "{\"a\":" + deep + "}",
           "{\"a\":\"\xff\"}", "{\"a\":1e999}", "{\"a\":NaN}"}) {
    INFO(text);
    CHECK_THROWS_WITH(read_text(text), Catch::Contains("config.json: "));
    CHECK_THROWS_AS(read_text(text), DataError);
  }
  const TemporaryFolder folder;
  CHECK_THROWS_AS(read_hf_config(folder.path()), FileError);
}

TEST_CASE("a mutated config.json is a model or refused by the file's name") {
  constexpr unsigned seed = 11;
  constexpr int n_inputs = 4000;
  std::mt19937 random(seed);
  const TemporaryFolder folder;
  std::vector<std::string> bases;
  for (const auto& [name, config] : test_configs()) {
    if (const auto json = hf_config_json(config, {{1}, {2, 3}})) bases.push_back(*json);
  }
  const std::vector<std::string> pieces = {
      "null", "-1", "0",  "1e999", "99999999999999999999", "[",
      "]",    "{}", "\"", "true",  "18446744073709551615", "4"};
  int n_read = 0;
  for (int i = 0; i < n_inputs; ++i) {
    std::string text = bases[static_cast<std::size_t>(i) % bases.size()];
    for (unsigned k = 0; k < 1 + random() % 3; ++k) {
      // Mostly whole values: these get past the parser.
      const std::size_t at = text.find(": ", random() % text.size());
      const std::string& piece = pieces[random() % pieces.size()];
      if (at == std::string::npos || random() % 4 == 0) {
        text[random() % text.size()] = static_cast<char>(random());
      } else {
        text.replace(at + 2, text.find_first_of(",\n", at) - at - 2, piece);
      }
    }
    write_plainly(folder / "config.json", text);
    INFO("seed " << seed << ", input " << i << ": " << text);
    try {
      read_hf_config(folder.path());
      ++n_read;
    } catch (const DataError& error) {
      REQUIRE_THAT(error.what(), Catch::Contains("config.json: "));
    }
  }
  WARN(n_inputs << " mutated files, " << n_read << " read");
  CHECK(n_read > n_inputs / 20);
  CHECK(n_read < n_inputs);
}

TEST_CASE("dropout rates that differ are told, and ids may be one, several or none") {
  nlohmann::json json = gpt2;
  json["attn_pdrop"] = 0;
  CHECK(read_text(json.dump()).uneven_dropout ==
        "resid_pdrop 0.1, embd_pdrop 0.1 and attn_pdrop 0");
  CHECK(read_with(llama, "attention_dropout", 0.5).uneven_dropout ==
        "attention_dropout 0.5 and no other");
  CHECK(read_with(llama, "eos_token_id", nullptr).ids.end.empty());
  CHECK(read_with(llama, "eos_token_id", -1).ids.end.empty());
  CHECK(read_with(llama, "eos_token_id", 7).ids.end == std::vector<std::int64_t>{7});
  const auto written = nlohmann::json::parse(hf_generation_config_json({{}, {7, 8}}));
  CHECK(written.at("bos_token_id").is_null());
  CHECK(written.at("eos_token_id") == nlohmann::json{7, 8});
}

}  // namespace llm
