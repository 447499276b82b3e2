#pragma once
#include <cstddef>
#include <cstdint>

#include "tensor/ops/activation.h"
#include "tensor/ops/adamw.h"
#include "tensor/ops/attention.h"
#include "tensor/ops/attention_step.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/dropout.h"
#include "tensor/ops/embedding.h"
#include "tensor/ops/grouped_rows.h"
#include "tensor/ops/linear.h"
#include "tensor/ops/norm.h"
#include "tensor/ops/router.h"
#include "tensor/view.h"

using cudaStream_t = struct CUstream_st*;

/// The ops of tensor/ops/NAME.h on a device: each puts its kernels into a stream, where they may
/// have scratch of the stream's pool. Arguments are as there, checked by the caller, and all views
/// lie on the device. Where the plain body of an op is its definition to the bit (copies,
/// conversions, additions, dropout, AdamW, sums of squares, embeddings, a router's choices and rows
/// by expert), these give its bits; the others agree to rounding, with sums in one order that
/// follows from the shape. Products are cuBLASLt's in a stream that has them
/// (tensor/cuda/products.h), else plain kernels, which every device and the emulator can run;
/// attention and experts' layers have kernels for tensor cores beside those
/// (tensor/cuda/attention_mma.h, grouped_mma.h).
namespace llm::cuda {

/// What ops of a graph read that is new at each of its launches (tensor/cuda/op_graphs.h).
struct GraphNumbers {
  static constexpr std::size_t most = 64;
  std::int64_t values[most] = {};
};
/// Sets to[0 .. most).
void write_numbers(cudaStream_t stream, const GraphNumbers& numbers, std::int64_t* to);

void copy(cudaStream_t stream, View x, MutView y);
void convert(cudaStream_t stream, View x, MutView y);
void fill(cudaStream_t stream, float value, MutView y);
void add(cudaStream_t stream, View x, MutView y);
void add_rows(cudaStream_t stream, View bias, MutView y);

void activation_forward(cudaStream_t stream, Activation f, View x, MutView y, View n_rows = {});
void activation_backward(cudaStream_t stream, Activation f, View x, View dy, MutView dx,
                         View n_rows = {});
void gated_forward(cudaStream_t stream, Activation f, View gate, View up, MutView y,
                   View n_rows = {});
void gated_backward(cudaStream_t stream, Activation f, View gate, View up, View dy, MutView dgate,
                    MutView dup, View n_rows = {});

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
void add_positions(cudaStream_t stream, View positions, std::int64_t seq_len,
                   std::int64_t first_row, MutView y);
/// Adds to dtable and dpositions; either may be empty. What is to be set is filled with 0 before.
void embedding_backward(cudaStream_t stream, View tokens, View dy, std::int64_t seq_len,
                        MutView dtable, MutView dpositions, TablePart part = {});

void linear_forward(cudaStream_t stream, View x, View weight, View bias, MutView y);
/// In one product where the library has one for this shape in f32.
void linear_gelu_tanh(cudaStream_t stream, View x, View weight, View bias, MutView up,
                      MutView hidden, Hidden use);
void linear_backward_input(cudaStream_t stream, View dy, View weight, Write write, MutView dx);
void linear_backward_weight(cudaStream_t stream, View x, View dy, Write write, MutView dweight,
                            MutView dbias);

void rope(cudaStream_t stream, AttentionShape shape, float theta, bool is_backward, MutView qkv);
void attention_forward(cudaStream_t stream, AttentionShape shape, View qkv, const Dropout& dropout,
                       MutView out, MutView log_sum_exp);
void attention_backward(cudaStream_t stream, AttentionShape shape, View qkv, View out,
                        View log_sum_exp, View dout, const Dropout& dropout, MutView dqkv);

void rope_step(cudaStream_t stream, AttentionShape shape, float theta, std::int64_t position,
               MutView qkv);
void keep_keys_values(cudaStream_t stream, AttentionShape shape, View qkv, std::int64_t begin,
                      MutView keys, MutView values);
void attention_step(cudaStream_t stream, AttentionShape shape, View qkv, View keys, View values,
                    std::int64_t n_kept, MutView out);

/// cross_entropy_forward, with an empty dlogits, or _forward_backward. Labels are checked before.
void cross_entropy(cudaStream_t stream, View labels, float scale, View logits, MutView dlogits,
                   MutView losses);
void cross_entropy_statistics(cudaStream_t stream, View logits, View labels, VocabularyPart part,
                              MutView statistics);
void cross_entropy_of_parts(cudaStream_t stream, View all, View labels, VocabularyPart part,
                            float scale, View logits, MutView dlogits, MutView losses);

void route(cudaStream_t stream, const RouterShape& shape, const Routing& routing);
void router_backward(cudaStream_t stream, const RouterShape& shape, const Routing& routing,
                     View dweights, View labels, const RouterWeights& weights, float scale,
                     MutView dlogits, MutView token_losses);
void group_rows(cudaStream_t stream, const RouterShape& shape, const Routing& routing, View x,
                MutView y);
void combine_rows(cudaStream_t stream, const RouterShape& shape, const Routing& routing,
                  Weigh weigh, View x, MutView y);
void combine_rows_backward(cudaStream_t stream, const RouterShape& shape, const Routing& routing,
                           View x, View dy, MutView dx, MutView dweights);
/// Rows beyond order's places go nowhere.
void order_by_expert(cudaStream_t stream, View bounds, MutView begins, MutView order);
void rows_by_expert(cudaStream_t stream, View begins, View order, View by_rank, MutView by_expert);
void rows_by_rank(cudaStream_t stream, View begins, View order, View by_expert, MutView by_rank);

void grouped_linear_forward(cudaStream_t stream, View begins, View x, View weight, View bias,
                            MutView y);
void grouped_linear_backward_input(cudaStream_t stream, View begins, View dy, View weight,
                                   Write write, MutView dx);
void grouped_linear_backward_weight(cudaStream_t stream, View begins, View x, View dy, Write write,
                                    MutView dweight, MutView dbias);

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
