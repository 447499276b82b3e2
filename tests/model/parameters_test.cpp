#include "src/model/parameters.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "src/base/error.h"
#include "src/model/init.h"
#include "tests/model/configs.h"

namespace llm {
namespace {

std::vector<float> started(const ParameterSpec& spec, std::uint64_t seed) {
  std::vector<float> values(static_cast<std::size_t>(spec.n_elements()));
  initialize(spec, seed, {0, spec.n_elements()},
             MutView(values.data(), Dtype::f32, {spec.n_elements()}));
  return values;
}

std::vector<std::string> hf_names(const ModelConfig& config) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : parameters(config)) {
    for (const HfPiece& piece : spec.pieces) names.push_back(piece.name);
  }
  return names;
}

ModelConfig gpt2_124m() {
  ModelConfig config;
  config.hidden_size = 768;
  config.n_layers = 12;
  config.n_heads = config.n_kv_heads = 12;
  config.intermediate_size = 3072;
  config.max_seq_len = 1024;
  return config;
}

ModelConfig llama2_7b() {
  ModelConfig config = tiny_llama();
  config.hidden_size = 4096;
  config.n_layers = 32;
  config.n_heads = config.n_kv_heads = 32;
  config.intermediate_size = 11008;
  config.vocab_size = 32000;
  return config;
}

}  // namespace

TEST_CASE("known models have their known numbers of parameters") {
  CHECK(n_parameters(gpt2_124m()) == 124'439'808);
  CHECK(n_parameters(llama2_7b()) == 6'738'415'616);
}

TEST_CASE("operations a token are six a matrix weight and twelve a layer, width and position") {
  // GPT-2 124M: 85M weights in blocks (12 * 12 * 768^2) and the head's 50257 * 768.
  const double weights = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
  CHECK(flops_per_token(gpt2_124m(), 256) == 6 * weights + 12.0 * 12 * 768 * 256);
}

TEST_CASE("the pieces of every parameter cover each of its elements exactly once") {
  for (const auto& [name, config] : test_configs()) {
    for (const ParameterSpec& spec : parameters(config)) {
      INFO(name << " " << spec.name);
      const std::int64_t width = spec.shape.n_dims() == 2 ? spec.shape[1] : 1;
      std::int64_t next_row = 0;
      for (const HfPiece& piece : spec.pieces) {
        CHECK(piece.rows.begin == next_row);
        next_row = piece.rows.end;
        std::vector<std::int64_t> shape{piece.rows.size()};
        if (spec.shape.n_dims() == 2) shape.push_back(width);
        if (piece.transposed) std::swap(shape[0], shape[1]);
        CHECK(piece.shape == shape);
      }
      CHECK(next_row == spec.shape[0]);
    }
  }
}

TEST_CASE("Hugging Face names are unique, and those of GPT-2 and Llama") {
  for (const auto& [name, config] : test_configs()) {
    std::map<std::string, int> count;
    for (const std::string& hf : hf_names(config)) ++count[hf];
    for (const auto& [hf, n] : count) {
      INFO(name << " " << hf);
      CHECK(n == 1);
    }
  }
  ModelConfig gpt2 = tiny_gpt2();
  gpt2.n_layers = 1;
  CHECK(hf_names(gpt2) ==
        std::vector<std::string>{"wte.weight", "wpe.weight", "h.0.ln_1.weight", "h.0.ln_1.bias",
                                 "h.0.attn.c_attn.weight", "h.0.attn.c_attn.bias",
                                 "h.0.attn.c_proj.weight", "h.0.attn.c_proj.bias",
                                 "h.0.ln_2.weight", "h.0.ln_2.bias", "h.0.mlp.c_fc.weight",
                                 "h.0.mlp.c_fc.bias", "h.0.mlp.c_proj.weight",
                                 "h.0.mlp.c_proj.bias", "ln_f.weight", "ln_f.bias"});
  ModelConfig llama = tiny_llama();
  llama.n_layers = 1;
  CHECK(hf_names(llama) ==
        std::vector<std::string>{
            "model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
            "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
            "model.layers.0.self_attn.v_proj.weight", "model.layers.0.self_attn.o_proj.weight",
            "model.layers.0.post_attention_layernorm.weight", "model.layers.0.mlp.gate_proj.weight",
            "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight",
            "model.norm.weight", "lm_head.weight"});
}

TEST_CASE("weight decay groups follow shapes, embeddings apart") {
  for (const auto& [name, config] : test_configs()) {
    for (const ParameterSpec& spec : parameters(config)) {
      INFO(name << " " << spec.name);
      const bool is_embedding =
          spec.role == Role::token_embedding || spec.role == Role::position_embedding;
      const DecayGroup expected = is_embedding               ? DecayGroup::embedding
                                  : spec.shape.n_dims() == 2 ? DecayGroup::matrix
                                                             : DecayGroup::vector;
      CHECK((spec.decay == expected));
    }
  }
}

TEST_CASE("only a tied embedding has two uses, the second in the head") {
  for (const auto& [name, config] : test_configs()) {
    INFO(name);
    const auto specs = parameters(config);
    const auto uses = parameter_uses(config);
    REQUIRE(uses.size() == specs.size() + (config.tie_embeddings ? 1 : 0));
    std::map<std::size_t, int> count;
    int n_head_weights = 0;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      ++count[uses[i].parameter];
      if (i > 0) CHECK(uses[i - 1].layer <= uses[i].layer);
      if (uses[i].role == Role::head_weight) {
        ++n_head_weights;
        CHECK(uses[i].layer == head_layer(config));
        CHECK((uses[i].parameter == 0) == config.tie_embeddings);
      }
    }
    CHECK(n_head_weights == 1);
    for (const auto& [parameter, n] : count) {
      CHECK(n == (parameter == 0 && config.tie_embeddings ? 2 : 1));
    }
  }
}

TEST_CASE("any range of a parameter starts as the same range of the whole") {
  int n_ranges = 0;
  for (const auto& [name, config] : test_configs()) {
    for (const ParameterSpec& spec : parameters(config)) {
      const std::vector<float> whole = started(spec, 3);
      for (std::int64_t begin = 0; begin < spec.n_elements(); begin += 1 + begin / 3) {
        const Range range{begin, std::min(begin + 97, spec.n_elements())};
        std::vector<float> some(static_cast<std::size_t>(range.size()));
        initialize(spec, 3, range, MutView(some.data(), Dtype::f32, {range.size()}));
        const bool equal = std::equal(some.begin(), some.end(), whole.begin() + begin);
        if (!equal) FAIL_CHECK(name << " " << spec.name << " from element " << begin);
        ++n_ranges;
      }
    }
  }
  CHECK(n_ranges > 1000);
}

TEST_CASE("a starting value is a function of the Hugging Face name and index alone") {
  for (const auto& [name, config] : test_configs()) {
    for (const ParameterSpec& spec : parameters(config)) {
      if (spec.init.deviation == 0) continue;
      INFO(name << " " << spec.name);
      const std::vector<float> whole = started(spec, 5);
      const std::int64_t width = spec.shape[1];
      for (const HfPiece& piece : spec.pieces) {
        const std::int64_t n = piece.rows.size() * width;
        std::vector<float> logical(static_cast<std::size_t>(n));
        fill_normal(init_key(5, piece.name), 0, n, spec.init.deviation, logical.data());
        bool equal = true;
        for (std::int64_t i = 0; i < n; ++i) {
          const std::int64_t row = i / width;
          const std::int64_t column = i % width;
          const std::int64_t index =
              piece.transposed ? column * piece.rows.size() + row : row * width + column;
          const std::int64_t internal = (piece.rows.begin + row) * width + column;
          equal = equal && whole[static_cast<std::size_t>(internal)] ==
                               logical[static_cast<std::size_t>(index)];
        }
        CHECK(equal);
      }
    }
  }
}

TEST_CASE("starting values are normal: moments, tails, no equal neighbours, another seed differs") {
  constexpr std::int64_t n = 1 << 20;
  std::vector<float> z(n);
  std::vector<float> other(n);
  fill_normal(init_key(1, "a"), 0, n, 1, z.data());
  fill_normal(init_key(2, "a"), 0, n, 1, other.data());
  double sum = 0, squares = 0, fourth = 0, product = 0, neighbours = 0;
  std::int64_t beyond_two = 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    const auto x = static_cast<double>(z[i]);
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    product += x * static_cast<double>(other[i]);
    if (i > 0) neighbours += x * static_cast<double>(z[i - 1]);
    if (std::abs(x) > 2) ++beyond_two;
  }
  // Standard errors at a million draws: 0.001, 0.0014, 0.0096, 0.001; bounds at five of them.
  CHECK(std::abs(sum / n) < 0.005);
  CHECK(std::abs(squares / n - 1) < 0.007);
  CHECK(std::abs(fourth / n - 3) < 0.05);
  CHECK(std::abs(product / n) < 0.005);
  CHECK(std::abs(neighbours / n) < 0.005);
  CHECK(static_cast<double>(beyond_two) / n == Approx(0.0455).margin(0.001));
}

TEST_CASE("GPT-2 starts residual projections narrower with depth, Llama does not") {
  ModelConfig gpt2 = tiny_gpt2();
  gpt2.n_layers = 8;
  for (const ParameterSpec& spec : parameters(gpt2)) {
    if (spec.shape.n_dims() != 2) continue;
    const bool is_residual =
        spec.role == Role::attention_out_weight || spec.role == Role::down_weight;
    CHECK(spec.init.deviation == Approx(is_residual ? 0.005 : 0.02));
  }
  for (const ParameterSpec& spec : parameters(tiny_llama())) {
    if (spec.shape.n_dims() == 2) CHECK(spec.init.deviation == 0.02f);
  }
}

TEST_CASE("a model that cannot be built is refused by field") {
  const auto refuses = [](const char* what, auto change) {
    ModelConfig config = tiny_gpt2();
    change(config);
    CHECK_THROWS_WITH(check(config), Catch::Contains(what));
    CHECK_THROWS_AS(parameters(config), ConfigError);
  };
  refuses("model.num_heads: 3", [](ModelConfig& c) { c.n_heads = 3; });
  refuses("model.num_kv_heads: 3", [](ModelConfig& c) { c.n_kv_heads = 3; });
  refuses("model.num_kv_heads: 0", [](ModelConfig& c) { c.n_kv_heads = 0; });
  refuses("model.num_layers: 0", [](ModelConfig& c) { c.n_layers = 0; });
  refuses("model.vocab_size: -1", [](ModelConfig& c) { c.vocab_size = -1; });
  refuses("model.dropout: 1", [](ModelConfig& c) { c.dropout = 1; });
  refuses("model.dropout: nan", [](ModelConfig& c) { c.dropout = std::nanf(""); });
  refuses("hidden_size / num_heads is 1", [](ModelConfig& c) {
    c.positions = Positions::rotary;
    c.n_heads = c.n_kv_heads = c.hidden_size;
  });
}

}  // namespace llm
