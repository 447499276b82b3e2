#pragma once
#include <cstdint>

#include "tensor/ops/activation.h"
#include "tensor/ops/adamw.h"
#include "tensor/ops/dropout.h"
#include "tensor/ops/embedding.h"
#include "tensor/ops/norm.h"
#include "tensor/view.h"

using cudaStream_t = struct CUstream_st*;

/// The ops of tensor/ops/NAME.h on a device: each puts its kernels into a stream. Arguments are as
/// there, checked by the caller, and all views lie on the device. Where the plain body of an op is
/// its definition to the bit (copies, conversions, additions, dropout, AdamW, sums of squares,
/// embeddings), these give its bits; norms and activations agree to rounding.
namespace llm::cuda {

void copy(cudaStream_t stream, View x, MutView y);
void convert(cudaStream_t stream, View x, MutView y);
void fill(cudaStream_t stream, float value, MutView y);
void add(cudaStream_t stream, View x, MutView y);
void add_rows(cudaStream_t stream, View bias, MutView y);

void activation_forward(cudaStream_t stream, Activation f, View x, MutView y);
void activation_backward(cudaStream_t stream, Activation f, View x, View dy, MutView dx);
void gated_forward(cudaStream_t stream, Activation f, View gate, View up, MutView y);
void gated_backward(cudaStream_t stream, Activation f, View gate, View up, View dy, MutView dgate,
                    MutView dup);

void adamw(cudaStream_t stream, const AdamwStep& step, View grads, MutView weights, MutView m,
           MutView v, MutView copy);
void sum_of_squares(cudaStream_t stream, View x, MutView chunk_sums);

/// Forward and, with an empty residual, backward.
void dropout(cudaStream_t stream, const Dropout& dropout, std::int64_t rows_per_sample, View x,
             View residual, MutView out);

/// Tokens are checked before they are on the device. A part of a table as in
/// embedding_part_forward: `part` with n_rows 0 is the whole one; positions may be empty.
void embedding_forward(cudaStream_t stream, View tokens, View table, View positions,
                       std::int64_t seq_len, MutView y, TablePart part = {});
/// Adds to dtable and dpositions; either may be empty. What is to be set is filled with 0 before.
void embedding_backward(cudaStream_t stream, View tokens, View dy, std::int64_t seq_len,
                        MutView dtable, MutView dpositions, TablePart part = {});

void layer_norm_forward(cudaStream_t stream, View x, View weight, View bias, float epsilon,
                        MutView y, MutView mean, MutView rstd);
void layer_norm_backward(cudaStream_t stream, View x, View weight, View mean, View rstd, View dy,
                         Write write_dx, MutView dx, Write write_dw, MutView dweight,
                         MutView dbias);
void rms_norm_forward(cudaStream_t stream, View x, View weight, float epsilon, MutView y,
                      MutView rstd);
void rms_norm_backward(cudaStream_t stream, View x, View weight, View rstd, View dy, Write write_dx,
                       MutView dx, Write write_dw, MutView dweight);

}  // namespace llm::cuda
