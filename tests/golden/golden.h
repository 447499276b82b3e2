#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "src/io/safetensors.h"
#include "src/model/model_config.h"
#include "src/model/parameters.h"
#include "tensor/view.h"

namespace llm {

/// How the golden trainer trained; golden.py says what each number means.
struct GoldenTraining {
  std::uint64_t seed = 0;
  std::int64_t n_steps = 0;
  std::int64_t n_microbatches = 0;  ///< of a step, over all ranks
  std::int64_t batch = 0;           ///< samples in a microbatch
  std::int64_t seq_len = 0;
  float lr = 0;
  float min_lr = 0;
  std::int64_t warmup_steps = 0;
  float beta1 = 0;
  float beta2 = 0;
  float epsilon = 0;
  float weight_decay = 0;  ///< on matrices only
  float clip_norm = 0;
  bool starts_by_rule = false;  ///< the starting weights are those of initialize(seed)
};

/// One golden file.
class GoldenCase {
 public:
  /// `name` is the file's name without folder and ending.
  explicit GoldenCase(const std::string& name);
  static const std::vector<std::string>& names();

  ModelConfig model;
  GoldenTraining training;
  std::vector<double> losses;          ///< by step: the mean over its valid tokens
  std::vector<double> grad_norms;      ///< by step, before clipping
  std::vector<double> learning_rates;  ///< by step

  /// (batch * seq_len) of microbatch m of a step.
  std::vector<std::int32_t> tokens(std::int64_t step, std::int64_t m) const;
  std::vector<std::int32_t> labels(std::int64_t step, std::int64_t m) const;

  /// A parameter in this program's layout: before the first step, its first gradient (the mean over
  /// the step's valid tokens), after the last step.
  std::vector<float> weights(const ParameterSpec& spec) const { return gather(spec, "weights:"); }
  std::vector<float> first_gradient(const ParameterSpec& spec) const {
    return gather(spec, "grads:");
  }
  std::vector<float> final_weights(const ParameterSpec& spec) const {
    return gather(spec, "final:");
  }

 private:
  std::vector<float> gather(const ParameterSpec& spec, const std::string& group) const;
  std::vector<double> read_f64(const std::string& name) const;
  std::vector<std::int32_t> microbatch(const std::string& name, std::int64_t step,
                                       std::int64_t m) const;
  SafetensorsFile file_;
};

/// The two distances of the parity contract between tensors of the same order: of all together,
/// |a - b| / |b|; and the largest |a - b| of one tensor over the largest norm of one.
struct Distance {
  double together = 0;
  double of_one = 0;
};
Distance distance(const std::vector<std::vector<float>>& a,
                  const std::vector<std::vector<float>>& b);

}  // namespace llm
