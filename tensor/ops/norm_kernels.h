#pragma once
#include <cstdint>

#include "tensor/ops/elements.h"

/// Bodies of norm.h on contiguous rows; x, y and their gradients have one dtype. `plain` is the
/// definition, in f32 alone; `fast` sums a row in 16
/// lanes (element i in lane i % 16) that fold pairwise, and agrees to about 1e-6 of a row's scale.
namespace llm {

/// One call's rows. `bias` is null where there is none.
struct NormForward {
  std::int64_t n_rows;
  std::int64_t width;
  Elements x;
  const float* weight;
  const float* bias;
  float epsilon;
  MutElements y;
  float* mean;  ///< unused by rms_norm
  float* rstd;
};

/// One call's rows. dweight and dbias are overwritten with the sums over these rows, in order;
/// `dbias` is null where there is none. `add_dx` adds to dx.
struct NormBackward {
  std::int64_t n_rows;
  std::int64_t width;
  Elements x;
  const float* weight;
  const float* mean;  ///< unused by rms_norm
  const float* rstd;
  Elements dy;
  bool add_dx;
  MutElements dx;
  float* dweight;
  float* dbias;
};

namespace plain {
void layer_norm_forward(const NormForward& rows);
void layer_norm_backward(const NormBackward& rows);
void rms_norm_forward(const NormForward& rows);
void rms_norm_backward(const NormBackward& rows);
}  // namespace plain

namespace fast {
void layer_norm_forward(const NormForward& rows);
void layer_norm_backward(const NormBackward& rows);
void rms_norm_forward(const NormForward& rows);
void rms_norm_backward(const NormBackward& rows);
}  // namespace fast

}  // namespace llm
