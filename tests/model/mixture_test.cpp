#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "src/base/error.h"
#include "src/base/philox.h"
#include "tests/model/configs.h"
#include "tests/model/whole_model.h"

namespace llm {
namespace {

ModelConfig mixtral_8x7b() {
  ModelConfig config = with_experts(tiny_llama(), 8, 2);
  config.hidden_size = 4096;
  config.n_layers = 32;
  config.n_heads = 32;
  config.n_kv_heads = 8;
  config.intermediate_size = 14336;
  config.vocab_size = 32000;
  return config;
}

/// Of 2 samples of 8 tokens; every fifth label is ignored.
TestBatch some_batch() {
  TestBatch out{.batch = 2, .seq_len = 8, .tokens = {}, .labels = {}};
  for (std::uint64_t i = 0; i < 16; ++i) {
    const PhiloxBlock drawn = philox_at(7, i);
    out.tokens.push_back(static_cast<std::int32_t>(drawn[0] % 29));
    out.labels.push_back(i % 5 == 4 ? ignored_label : static_cast<std::int32_t>(drawn[1] % 29));
  }
  return out;
}

std::vector<std::string> names_of_experts(ModelConfig config) {
  config.n_layers = 1;
  config.n_experts = 2;
  std::vector<std::string> names;
  for (const ParameterSpec& spec : parameters(config)) {
    if (spec.role < Role::router_weight || spec.role > Role::down_bias) continue;
    for (const HfPiece& piece : spec.pieces) names.push_back(piece.name);
  }
  return names;
}

double norm(const std::vector<float>& x, std::size_t begin, std::size_t end) {
  double sum = 0;
  for (std::size_t i = begin; i < end; ++i) sum += static_cast<double>(x[i]) * x[i];
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("Mixtral 8x7B has its known number of parameters, and of operations what is active") {
  CHECK(n_parameters(mixtral_8x7b()) == 46'702'792'704);
  // 12.88B parameters are read for a token; the embedding's and the norms' are in no product.
  const double in_products =
      32.0 * (2 * 3 * 4096.0 * 14336 + 4096.0 * (2 * 4096 + 2 * 1024) + 8 * 4096.0) +
      32000.0 * 4096;
  CHECK(in_products == Approx(12.88e9 - 32000.0 * 4096).epsilon(1e-3));
  CHECK(flops_per_token(mixtral_8x7b(), 128) == 6 * in_products + 12.0 * 32 * 4096 * 128);
}

TEST_CASE("a mixture's names are Mixtral's, or in GPT-2's pattern") {
  const std::string layer = "model.layers.0.block_sparse_moe.";
  CHECK(names_of_experts(with_experts(tiny_llama(), 2, 1)) ==
        std::vector<std::string>{layer + "gate.weight", layer + "experts.0.w1.weight",
                                 layer + "experts.1.w1.weight", layer + "experts.0.w3.weight",
                                 layer + "experts.1.w3.weight", layer + "experts.0.w2.weight",
                                 layer + "experts.1.w2.weight"});
  CHECK(names_of_experts(with_experts(tiny_gpt2(), 2, 1)) ==
        std::vector<std::string>{"h.0.mlp.gate.weight", "h.0.mlp.experts.0.c_fc.weight",
                                 "h.0.mlp.experts.1.c_fc.weight", "h.0.mlp.experts.0.c_fc.bias",
                                 "h.0.mlp.experts.1.c_fc.bias", "h.0.mlp.experts.0.c_proj.weight",
                                 "h.0.mlp.experts.1.c_proj.weight", "h.0.mlp.experts.0.c_proj.bias",
                                 "h.0.mlp.experts.1.c_proj.bias"});
}

TEST_CASE("experts start from different numbers") {
  WholeModel model(with_experts(tiny_gpt2(), 3, 2));
  model.start(1);
  const std::size_t up = model.find(Role::up_weight, 0);
  const auto* const values = model.values[up].as<float>();
  const std::int64_t n = model.specs[up].n_elements() / 3;
  CHECK(!std::equal(values, values + n, values + n));
  CHECK(!std::equal(values, values + n, values + 2 * n));
}

TEST_CASE("one expert is the mlp itself") {
  ModelConfig dense = tiny_llama();
  dense.intermediate_size = 24;
  ModelConfig single = with_experts(tiny_llama(), 1, 1);
  single.router_weights = {};
  WholeModel one(single), mlp(dense);
  one.start(3);
  mlp.start(3);
  for (const ParameterSpec& spec : mlp.specs) {
    const View from = one.values[one.find(spec.role, spec.layer)];
    std::copy_n(from.as<float>(), spec.n_elements(),
                mlp.values[mlp.find(spec.role, spec.layer)].as<float>());
  }
  const LossSum a = one.forward_backward(some_batch(), 1, Write::set);
  const LossSum b = mlp.forward_backward(some_batch(), 1, Write::set);
  CHECK(a.sum == Approx(b.sum).epsilon(1e-6));
  for (std::size_t i = 0; i < mlp.specs.size(); ++i) {
    const ParameterSpec& spec = mlp.specs[i];
    if (spec.role != Role::down_weight) continue;
    const std::vector<float> grad = one.gradient(one.find(spec.role, spec.layer));
    const std::vector<float> expected = mlp.gradient(i);
    for (std::size_t k = 0; k < grad.size(); ++k) {
      CHECK(grad[k] == Approx(expected[k]).epsilon(1e-4).margin(1e-6));
    }
  }
}

TEST_CASE("experts that no token visits have gradients of exactly 0") {
  for (const ModelConfig& family : {tiny_gpt2(), tiny_llama()}) {
    const ModelConfig config = with_experts(family, 4, 2);
    WholeModel model(config);
    model.start(2);
    for (std::int64_t layer = 0; layer < config.n_layers; ++layer) {
      // Equal logits: every token visits experts 0 and 1.
      const MutView router = model.values[model.find(Role::router_weight, layer)];
      std::fill_n(router.as<float>(), router.n_elements(), 0.0f);
    }
    for (const MutView& grad : model.use_grads) {
      std::fill_n(grad.as<float>(), grad.n_elements(), NAN);
    }
    model.forward_backward(some_batch(), 1, Write::set);
    // 13 valid labels and 2 blocks, each with a balance of exactly 1.
    CHECK(model.router_losses.balance == 26);
    for (std::int64_t layer = 0; layer < config.n_layers; ++layer) {
      for (const Role role : {Role::up_weight, Role::down_weight}) {
        const std::vector<float> grad = model.gradient(model.find(role, layer));
        const std::size_t n = grad.size() / 4;
        CHECK(norm(grad, 0, n) > 0);
        CHECK(norm(grad, n, 2 * n) > 0);
        CHECK(std::all_of(grad.begin() + static_cast<std::ptrdiff_t>(2 * n), grad.end(),
                          [](float x) { return x == 0; }));
      }
    }
  }
}

TEST_CASE("the router's losses reach the router and, through it, what lies before it") {
  ModelConfig config = with_experts(tiny_llama(), 4, 2);
  const auto gradients_with = [&](RouterWeights c) {
    config.router_weights = c;
    WholeModel model(config);
    model.start(2);
    model.forward_backward(some_batch(), 1, Write::set);
    return std::pair{model.gradient(model.find(Role::router_weight, 1)),
                     model.gradient(model.find(Role::qkv_weight, 0))};
  };
  const auto without = gradients_with({});
  const auto once = gradients_with({.balance = 0.01f, .z = 0});
  const auto twice = gradients_with({.balance = 0.02f, .z = 0});
  CHECK(once.first != without.first);
  CHECK(once.second != without.second);
  for (std::size_t i = 0; i < once.first.size(); ++i) {
    CHECK(twice.first[i] - once.first[i] ==
          Approx(once.first[i] - without.first[i]).margin(1e-5).epsilon(1e-3));
  }
  CHECK(gradients_with({.balance = 0, .z = 0.01f}).first != without.first);
}

TEST_CASE("a mixture that cannot be built is refused by field") {
  const auto refuses = [](const char* what, std::int64_t n_experts, std::int64_t top_k) {
    CHECK_THROWS_WITH(check(with_experts(tiny_gpt2(), n_experts, top_k)), Catch::Contains(what));
  };
  refuses("model.top_k: 5 is more than model.num_experts 4", 4, 5);
  refuses("model.top_k: 0 is below 1", 4, 0);
  refuses("model.num_experts: 0 with model.top_k 2", 0, 2);
  refuses("model.num_experts: -1", -1, 0);
}

}  // namespace llm
