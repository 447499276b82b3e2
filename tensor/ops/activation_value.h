#pragma once
#include <cmath>
#include <numbers>

#include "src/base/host_device.h"
#include "tensor/ops/activation.h"

/// The definition of activations at one place, for the plain bodies and for kernels.
namespace llm {

struct ValueAndSlope {
  float value;
  float slope;
};

LLM_HOST_DEVICE inline ValueAndSlope gelu(float x) {
  const float cdf = 0.5f * (1 + std::erf(x * std::numbers::sqrt2_v<float> / 2));
  const float density =
      std::exp(-0.5f * x * x) * std::numbers::inv_sqrtpi_v<float> / std::numbers::sqrt2_v<float>;
  return {x * cdf, cdf + x * density};
}

LLM_HOST_DEVICE inline ValueAndSlope gelu_tanh(float x) {
  const float root = std::sqrt(2 / std::numbers::pi_v<float>);
  const float tanh = std::tanh(root * (x + 0.044715f * x * x * x));
  const float inner_slope = root * (1 + 3 * 0.044715f * x * x);
  return {0.5f * x * (1 + tanh), 0.5f * (1 + tanh) + 0.5f * x * (1 - tanh * tanh) * inner_slope};
}

LLM_HOST_DEVICE inline ValueAndSlope silu(float x) {
  const float sigmoid = 1 / (1 + std::exp(-x));
  return {x * sigmoid, sigmoid * (1 + x * (1 - sigmoid))};
}

LLM_HOST_DEVICE inline ValueAndSlope relu(float x) {
  return {x > 0 ? x : 0, x > 0 ? 1.0f : 0.0f};
}

LLM_HOST_DEVICE inline ValueAndSlope activation_at(Activation f, float x) {
  switch (f) {
    case Activation::gelu:
      return gelu(x);
    case Activation::gelu_tanh:
      return gelu_tanh(x);
    case Activation::silu:
      return silu(x);
    case Activation::relu:
      return relu(x);
  }
  return {};
}

}  // namespace llm
