#include <cmath>

#include "tensor/ops/adamw_kernels.h"

namespace llm {

AdamwFactors::AdamwFactors(const AdamwStep& step) {
  const auto t = static_cast<double>(step.t);
  keep_m = step.beta1;
  take_m = 1 - step.beta1;
  keep_v = step.beta2;
  take_v = 1 - step.beta2;
  decay = step.lr * step.weight_decay;
  step_size = static_cast<float>(step.lr / (1 - std::pow(double{step.beta1}, t)));
  v_scale = static_cast<float>(1 / (1 - std::pow(double{step.beta2}, t)));
  epsilon = step.epsilon;
  grad_scale = step.grad_scale;
}

}  // namespace llm
