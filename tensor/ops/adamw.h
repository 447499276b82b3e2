#pragma once
#include "tensor/queue.h"
#include "tensor/view.h"

namespace llm {

/// One AdamW step (Loshchilov, Hutter 2019), decay decoupled from the moments:
///   g = grad_scale * grad;  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///   w -= lr * weight_decay * w;  w -= lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) +
///   epsilon)
struct AdamwStep {
  float lr;
  float beta1;
  float beta2;
  float epsilon;
  float weight_decay;
  std::int64_t t;    ///< 1 at the first step
  float grad_scale;  ///< turns the summed gradient into the clipped mean
};

///   weights, m, v (n) f32, updated; grads (n) f32. An element's bits do not depend on its place.
///   copy (n) f32, bf16 or f16: the updated weights rounded to it in the same pass; or empty
void adamw(Queue& queue, const AdamwStep& step, View grads, MutView weights, MutView m, MutView v,
           MutView copy = {});

/// Elements summed in one chunk of a norm (see sum_of_squares).
inline constexpr std::int64_t norm_chunk_elements = 4096;

/// chunk_sums[i] = sum of x^2 over elements [4096 i, min(4096 (i+1), n)), in f64, in a fixed order
/// that depends on nothing else. The norm of any set of tensors adds chunks in canonical order.
///   x (n) f32   chunk_sums (ceil(n / 4096)) f64
void sum_of_squares(Queue& queue, View x, MutView chunk_sums);

}  // namespace llm
