#include "tests/golden/golden.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "src/base/check.h"
#include "src/io/hf_weights.h"

namespace llm {
namespace {

Activation activation_called(const std::string& name) {
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  CHECK_CONTRACT(name == "silu", "a golden file names a known activation");
  return Activation::silu;
}

Positions positions_called(const std::string& name) {
  if (name == "learned") return Positions::learned;
  if (name == "rotary") return Positions::rotary;
  CHECK_CONTRACT(name == "sinusoidal", "a golden file names known positions");
  return Positions::sinusoidal;
}

ModelConfig model_of(const nlohmann::json& j) {
  return {.hidden_size = j.at("hidden_size"),
          .n_layers = j.at("num_layers"),
          .n_heads = j.at("num_heads"),
          .n_kv_heads = j.at("num_kv_heads"),
          .intermediate_size = j.at("intermediate_size"),
          .vocab_size = j.at("vocab_size"),
          .max_seq_len = j.at("max_seq_len"),
          .dropout = j.at("dropout"),
          .norm = j.at("norm") == "rms_norm" ? Norm::rms_norm : Norm::layer_norm,
          .norm_epsilon = j.at("norm_epsilon"),
          .positions = positions_called(j.at("positions")),
          .rope_theta = j.at("rope_theta"),
          .activation = activation_called(j.at("activation")),
          .gated = j.at("gated"),
          .qkv_bias = j.at("qkv_bias"),
          .mlp_bias = j.at("mlp_bias"),
          .lm_head_bias = j.at("lm_head_bias"),
          .tie_embeddings = j.at("tie_embeddings")};
}

GoldenTraining training_of(const nlohmann::json& j) {
  return {.seed = j.at("seed"),
          .n_steps = j.at("n_steps"),
          .n_microbatches = j.at("n_microbatches"),
          .batch = j.at("batch"),
          .seq_len = j.at("seq_len"),
          .lr = j.at("lr"),
          .min_lr = j.at("min_lr"),
          .warmup_steps = j.at("warmup_steps"),
          .beta1 = j.at("beta1"),
          .beta2 = j.at("beta2"),
          .epsilon = j.at("epsilon"),
          .weight_decay = j.at("weight_decay"),
          .clip_norm = j.at("clip_norm"),
          .starts_by_rule = j.at("start") == "rule"};
}

double squares(const std::vector<float>& a, const std::vector<float>* b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - (b ? static_cast<double>((*b)[i]) : 0.0);
    sum += d * d;
  }
  return sum;
}

}  // namespace

const std::vector<std::string>& GoldenCase::names() {
  static const std::vector<std::string> names{"gpt2", "llama", "gpt2_stretched", "llama_stretched",
                                              "mixed_stretched"};
  return names;
}

GoldenCase::GoldenCase(const std::string& name)
    : file_(std::string(GOLDEN_FOLDER) + "/" + name + ".safetensors") {
  const auto json = nlohmann::json::parse(file_.metadata().at("case"));
  model = model_of(json);
  training = training_of(json);
  losses = read_f64("losses");
  grad_norms = read_f64("grad_norms");
  learning_rates = read_f64("learning_rates");
}

std::vector<double> GoldenCase::read_f64(const std::string& name) const {
  const SafetensorsEntry& entry = file_.find(name);
  CHECK_CONTRACT(entry.dtype == Dtype::f64, "a golden result is f64");
  std::vector<double> values(static_cast<std::size_t>(entry.n_elements()));
  file_.read(entry, {0, entry.n_elements()}, values.data());
  return values;
}

std::vector<std::int32_t> GoldenCase::microbatch(const std::string& name, std::int64_t step,
                                                 std::int64_t m) const {
  const std::int64_t n = training.batch * training.seq_len;
  const std::int64_t begin = (step * training.n_microbatches + m) * n;
  std::vector<std::int32_t> values(static_cast<std::size_t>(n));
  file_.read(file_.find(name), {begin, begin + n}, values.data());
  return values;
}

std::vector<std::int32_t> GoldenCase::tokens(std::int64_t step, std::int64_t m) const {
  return microbatch("tokens", step, m);
}

std::vector<std::int32_t> GoldenCase::labels(std::int64_t step, std::int64_t m) const {
  return microbatch("labels", step, m);
}

std::vector<float> GoldenCase::gather(const ParameterSpec& spec, const std::string& group) const {
  std::vector<float> whole(static_cast<std::size_t>(spec.n_elements()));
  for (const HfPiece& piece : spec.pieces) {
    const std::string name = group + piece.name;
    const SafetensorsEntry& entry = file_.find(name);
    CHECK_CONTRACT(entry.shape == piece.shape, "a golden tensor has the shape of its parameter");
    std::vector<float> logical;
    if (entry.dtype == Dtype::f64) {
      const std::vector<double> exact = read_f64(name);
      logical.assign(exact.begin(), exact.end());
    } else {
      logical = file_.read_f32(name);
    }
    from_logical(piece, View(logical.data(), {entry.n_elements()}),
                 MutView(whole.data(), Dtype::f32, spec.shape));
  }
  return whole;
}

Distance distance(const std::vector<std::vector<float>>& a,
                  const std::vector<std::vector<float>>& b) {
  CHECK_CONTRACT(a.size() == b.size(), "tensors are compared one to one");
  double difference = 0, norm = 0, largest_difference = 0, largest_norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = squares(a[i], &b[i]);
    const double n = squares(b[i], nullptr);
    difference += d;
    norm += n;
    largest_difference = std::max(largest_difference, d);
    largest_norm = std::max(largest_norm, n);
  }
  return {std::sqrt(difference / norm), std::sqrt(largest_difference / largest_norm)};
}

}  // namespace llm
