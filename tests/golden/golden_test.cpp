#include "tests/golden/golden.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "tensor/ops/adamw.h"
#include "tests/model/whole_model.h"

namespace llm {
namespace {

/// Trains in one process with plain calls, one step at a time.
class SerialTrainer {
 public:
  explicit SerialTrainer(const GoldenCase& golden) : model(golden.model), golden_(golden) {
    for (std::size_t i = 0; i < model.specs.size(); ++i) {
      const std::vector<float> start = golden.weights(model.specs[i]);
      std::memcpy(model.values[i].data(), start.data(), start.size() * 4);
      moments_.emplace_back(2 * model.specs[i].n_elements() * 4);
    }
  }

  /// Losses of the step; the gradients of their sum times 2^-4 (16 tokens a microbatch) are then in
  /// model.use_grads.
  LossSum accumulate(std::int64_t step) {
    LossSum total;
    for (std::int64_t m = 0; m < golden_.training.n_microbatches; ++m) {
      const TestBatch batch{.batch = golden_.training.batch,
                            .seq_len = golden_.training.seq_len,
                            .tokens = golden_.tokens(step, m),
                            .labels = golden_.labels(step, m),
                            .training = true,
                            .seed = golden_.training.seed,
                            .step = step,
                            .first_sample = m * golden_.training.batch};
      const LossSum loss = model.forward_backward(batch, scale, m == 0 ? Write::set : Write::add);
      total.sum += loss.sum;
      total.n_valid += loss.n_valid;
    }
    return total;
  }

  /// Gradients of the mean loss, one a parameter.
  std::vector<std::vector<float>> mean_gradients(std::int64_t n_valid) const {
    std::vector<std::vector<float>> grads;
    for (std::size_t i = 0; i < model.specs.size(); ++i) {
      grads.push_back(model.gradient(i));
      for (float& g : grads.back()) g /= scale * static_cast<float>(n_valid);
    }
    return grads;
  }

  void update(std::int64_t step, const std::vector<std::vector<float>>& grads, double norm) {
    const GoldenTraining& t = golden_.training;
    for (std::size_t i = 0; i < model.specs.size(); ++i) {
      const ParameterSpec& spec = model.specs[i];
      const Shape flat{spec.n_elements()};
      const AdamwStep adam{
          .lr = static_cast<float>(golden_.learning_rates[static_cast<std::size_t>(step)]),
          .beta1 = t.beta1,
          .beta2 = t.beta2,
          .epsilon = t.epsilon,
          .weight_decay = spec.decay == DecayGroup::matrix ? t.weight_decay : 0.0f,
          .t = step + 1,
          .grad_scale = static_cast<float>(std::min(1.0, t.clip_norm / norm))};
      adamw(model.queue, adam, View(grads[i].data(), flat), part(model.values[i], 0, flat),
            moments_[i].view(Dtype::f32, flat),
            moments_[i].view(Dtype::f32, flat, 4 * spec.n_elements()));
      model.queue.finish();
    }
  }

  WholeModel model;

 private:
  static constexpr float scale = 0x1p-4f;
  const GoldenCase& golden_;
  std::vector<Storage> moments_;
};

double norm_of(const std::vector<std::vector<float>>& tensors) {
  double sum = 0;
  for (const auto& tensor : tensors) {
    for (const float x : tensor) sum += static_cast<double>(x) * static_cast<double>(x);
  }
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("losses and gradients are those of the independent float64 trainer, through five steps") {
  for (const std::string& name : GoldenCase::names()) {
    const GoldenCase golden(name);
    SerialTrainer trainer(golden);
    for (std::int64_t step = 0; step < golden.training.n_steps; ++step) {
      INFO(name << ", step " << step);
      const auto at = static_cast<std::size_t>(step);
      const LossSum loss = trainer.accumulate(step);
      const auto grads = trainer.mean_gradients(loss.n_valid);
      const double norm = norm_of(grads);
      const double mean = loss.sum / static_cast<double>(loss.n_valid);
      CHECK(mean == Approx(golden.losses[at]).epsilon(1e-6));
      CHECK(norm == Approx(golden.grad_norms[at]).epsilon(1e-5));
      if (step == 0) {
        std::vector<std::vector<float>> expected;
        for (const auto& spec : trainer.model.specs) {
          expected.push_back(golden.first_gradient(spec));
        }
        const Distance d = distance(grads, expected);
        CHECK(d.together <= 1e-5);
        CHECK(d.of_one <= 1e-5);
      }
      trainer.update(step, grads, norm);
    }
    std::vector<std::vector<float>> weights;
    std::vector<std::vector<float>> expected;
    for (std::size_t i = 0; i < trainer.model.specs.size(); ++i) {
      const auto* values = trainer.model.values[i].as<float>();
      weights.emplace_back(values, values + trainer.model.specs[i].n_elements());
      expected.push_back(golden.final_weights(trainer.model.specs[i]));
    }
    const Distance d = distance(weights, expected);
    INFO(name << " weights after the last step: " << d.together << ", " << d.of_one);
    CHECK(d.together <= 1e-5);
    CHECK(d.of_one <= 1e-5);
  }
}

TEST_CASE("starting weights are those of an independent implementation of the same rule") {
  int n_cases = 0;
  for (const std::string& name : GoldenCase::names()) {
    const GoldenCase golden(name);
    if (!golden.training.starts_by_rule) continue;
    ++n_cases;
    WholeModel model(golden.model);
    model.start(golden.training.seed);
    for (std::size_t i = 0; i < model.specs.size(); ++i) {
      INFO(name << " " << model.specs[i].name);
      const std::vector<float> expected = golden.weights(model.specs[i]);
      const auto* values = model.values[i].as<float>();
      double worst = 0;
      for (std::size_t k = 0; k < expected.size(); ++k) {
        worst = std::max(worst, std::abs(static_cast<double>(values[k]) - expected[k]));
      }
      // A normal number's polynomials are right to about 4 units in the last place at 4 deviations.
      CHECK(worst <= 1e-6 * std::max(0.02, static_cast<double>(model.specs[i].init.constant)));
    }
  }
  CHECK(n_cases == 2);
}

}  // namespace llm
