// Every op on the device against the CPU's.
#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "tensor/ops/activation.h"
#include "tensor/ops/adamw.h"
#include "tensor/ops/attention.h"
#include "tensor/ops/attention_step.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/dropout.h"
#include "tensor/ops/elementwise.h"
#include "tensor/ops/embedding.h"
#include "tensor/ops/expert_rows.h"
#include "tensor/ops/grouped_linear.h"
#include "tensor/ops/grouped_rows.h"
#include "tensor/ops/linear.h"
#include "tensor/ops/norm.h"
#include "tensor/ops/router.h"
#include "tests/gpu/both.h"

namespace llm::gpu {
namespace {

using Views = std::vector<MutView>;
constexpr Dtype f32 = Dtype::f32;
constexpr Dtype i32 = Dtype::i32;
constexpr Dtype dtypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16};

/// Of the largest element: what rounding and the order of sums may change.
double rounding(Dtype dtype) {
  return dtype == Dtype::f32 ? 2e-6 : dtype == Dtype::bf16 ? 8e-3 : 1e-3;
}

struct Sizes {
  std::int64_t batch, seq_len, width, mlp, n_classes, n_loss_rows, n_heads, n_kv_heads, n_adamw;
  std::int64_t n() const { return batch * seq_len; }
};
constexpr Sizes full{.batch = 2,
                     .seq_len = 1024,
                     .width = 768,
                     .mlp = 3072,
                     .n_classes = 50'304,
                     .n_loss_rows = 512,
                     .n_heads = 12,
                     .n_kv_heads = 4,
                     .n_adamw = 10'000'001};
constexpr Sizes small{.batch = 2,
                      .seq_len = 12,
                      .width = 40,
                      .mlp = 56,
                      .n_classes = 101,
                      .n_loss_rows = 9,
                      .n_heads = 2,
                      .n_kv_heads = 1,
                      .n_adamw = 5000};

std::string named(const char* name, Dtype dtype) {
  return fmt::format("{} {}", name, name_of(dtype));
}

void check_elements(Both& both, const Sizes& s, Dtype dtype) {
  const Shape shape{s.n(), s.width};
  for (const Dtype to : dtypes) {
    both.check({named(fmt::format("convert to {} of", name_of(to)).c_str(), dtype),
                {{dtype, shape}, {to, shape}},
                {1},
                0,
                [](Queue& queue, const Views& t) { convert(queue, t[0], t[1]); }});
  }
  both.check({named("fill, add, add_rows", dtype),
              {{f32, {s.width}}, {dtype, shape}, {dtype, shape}},
              {1, 2},
              0,
              [](Queue& queue, const Views& t) {
                fill(queue, 0.3f, t[1]);
                add_rows(queue, t[0], t[1]);
                add(queue, t[1], t[2]);
              }});
  both.check({named("dropout", dtype),
              {{dtype, shape}, {dtype, shape}, {dtype, shape}, {dtype, shape}},
              {2, 3},
              0,
              [&s](Queue& queue, const Views& t) {
                const Dropout dropout{.p = 0.1f, .seed = 9, .step = 4, .layer = 2, .site = 1};
                dropout_forward(queue, dropout, s.seq_len, t[0], t[1], t[2]);
                dropout_backward(queue, dropout, s.seq_len, t[0], t[3]);
              }});
}

void check_activations(Both& both, const Sizes& s, Dtype dtype) {
  const Shape shape{s.n(), s.width};
  for (const Activation f :
       {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::relu}) {
    both.check({named(fmt::format("activation {}", static_cast<int>(f)).c_str(), dtype),
                std::vector<Tensor>(8, {dtype, shape}),
                {3, 4, 5, 6, 7},
                rounding(dtype),
                [f](Queue& queue, const Views& t) {
                  activation_forward(queue, f, t[0], t[3]);
                  activation_backward(queue, f, t[0], t[2], t[4]);
                  gated_forward(queue, f, t[0], t[1], t[5]);
                  gated_backward(queue, f, t[0], t[1], t[2], t[6], t[7]);
                }});
  }
}

void check_norms(Both& both, const Sizes& s, Dtype dtype) {
  const Shape rows{s.n(), s.width};
  const std::vector<Tensor> tensors{
      {dtype, rows},  {f32, {s.width}}, {f32, {s.width}}, {dtype, rows},    {f32, {s.n()}},
      {f32, {s.n()}}, {dtype, rows},    {dtype, rows},    {f32, {s.width}}, {f32, {s.width}}};
  for (const Write write : {Write::set, Write::add}) {
    const char* const how = write == Write::set ? "set" : "add";
    both.check({named(fmt::format("layer_norm {}", how).c_str(), dtype),
                tensors,
                {3, 4, 5, 7, 8, 9},
                rounding(dtype),
                [write](Queue& queue, const Views& t) {
                  layer_norm_forward(queue, t[0], t[1], t[2], 1e-5f, t[3], t[4], t[5]);
                  layer_norm_backward(queue, t[0], t[1], t[4], t[5], t[6], write, t[7], write, t[8],
                                      t[9]);
                }});
    both.check({named(fmt::format("rms_norm {}", how).c_str(), dtype),
                tensors,
                {3, 5, 7, 8},
                rounding(dtype),
                [write](Queue& queue, const Views& t) {
                  rms_norm_forward(queue, t[0], t[1], 1e-5f, t[3], t[5]);
                  rms_norm_backward(queue, t[0], t[1], t[5], t[6], write, t[7], write, t[8]);
                }});
  }
}

void check_products(Both& both, const Sizes& s, Dtype dtype) {
  const Shape inputs{s.n(), s.width};
  const Shape outputs{s.n(), s.mlp};
  const std::vector<Tensor> tensors{
      {dtype, inputs}, {dtype, {s.mlp, s.width}}, {f32, {s.mlp}},  {dtype, outputs},
      {f32, outputs},  {dtype, outputs},          {dtype, inputs}, {f32, {s.mlp, s.width}},
      {f32, {s.mlp}}};
  for (const Write write : {Write::set, Write::add}) {
    both.check({named(write == Write::set ? "linear set" : "linear add", dtype),
                tensors,
                {3, 4, 6, 7, 8},
                rounding(dtype),
                [write](Queue& queue, const Views& t) {
                  linear_forward(queue, t[0], t[1], t[2], t[3]);
                  linear_forward(queue, t[0], t[1], View(), t[4]);
                  linear_backward_input(queue, t[5], t[1], write, t[6]);
                  linear_backward_weight(queue, t[0], t[5], write, t[7], t[8]);
                }});
  }
}

void check_attention(Both& both, const Sizes& s, Dtype dtype, std::int64_t head_dim, float p) {
  const AttentionShape shape{.batch = s.batch,
                             .seq_len = s.seq_len,
                             .n_heads = s.n_heads,
                             .n_kv_heads = s.n_kv_heads,
                             .head_dim = head_dim};
  const Shape qkv{s.n(), shape.qkv_width()};
  const Shape out{s.n(), s.n_heads * head_dim};
  both.check({named(fmt::format("attention of {}, dropout {}", head_dim, p).c_str(), dtype),
              {{dtype, qkv},
               {dtype, out},
               {f32, {s.batch, s.n_heads, s.seq_len}},
               {dtype, out},
               {dtype, qkv}},
              {0, 1, 2, 4},
              2 * rounding(dtype),
              [shape, p](Queue& queue, const Views& t) {
                const Dropout dropout{.p = p, .seed = 3, .step = 2, .layer = 1, .site = 1};
                rope_forward(queue, shape, 1e4f, t[0]);
                attention_forward(queue, shape, t[0], dropout, t[1], t[2]);
                attention_backward(queue, shape, t[0], t[1], t[2], t[3], dropout, t[4]);
                rope_backward(queue, shape, 1e4f, t[4]);
              }});
}

void check_attention_step(Both& both, const Sizes& s) {
  AttentionShape prompt{.batch = 1,
                        .seq_len = s.seq_len - 1,
                        .n_heads = s.n_heads,
                        .n_kv_heads = s.n_kv_heads,
                        .head_dim = 64};
  AttentionShape one = prompt;
  one.seq_len = 1;
  const Shape kept{s.n_kv_heads, s.seq_len, 64};
  both.check({"attention of one token f32",
              {{f32, {prompt.seq_len, prompt.qkv_width()}},
               {f32, {1, one.qkv_width()}},
               {f32, kept},
               {f32, kept},
               {f32, {1, s.n_heads * 64}}},
              {1, 2, 3, 4},
              rounding(f32),
              [prompt, one](Queue& queue, const Views& t) {
                keep_keys_values(queue, prompt, t[0], 0, t[2], t[3]);
                rope_step(queue, one, 1e4f, prompt.seq_len, t[1]);
                keep_keys_values(queue, one, t[1], prompt.seq_len, t[2], t[3]);
                attention_step(queue, one, t[1], t[2], t[3], prompt.seq_len + 1, t[4]);
              }});
}

void check_loss(Both& both, const Sizes& s, Dtype dtype) {
  const Shape logits{s.n_loss_rows, s.n_classes};
  const Tensor labels{i32, {s.n_loss_rows}, Tensor::Kind::labels, s.n_classes};
  both.check(
      {named("cross_entropy", dtype),
       {{f32, logits}, labels, {dtype, logits}, {f32, {s.n_loss_rows}}, {f32, {s.n_loss_rows}}},
       {2, 3, 4},
       rounding(dtype),
       [](Queue& queue, const Views& t) {
         cross_entropy_forward(queue, t[0], t[1], t[3]);
         cross_entropy_forward_backward(queue, t[1], 0.5f, t[0], t[2], t[4]);
       }});
  const VocabularyPart whole{.first_class = 0, .n_own = s.n_classes - 3, .n_classes = s.n_classes};
  both.check({named("cross_entropy of parts", dtype),
              {{f32, logits},
               labels,
               {f32, {1, s.n_loss_rows, 2}},
               {dtype, logits},
               {f32, {s.n_loss_rows}}},
              {2, 3, 4},
              rounding(dtype),
              [whole, &s](Queue& queue, const Views& t) {
                cross_entropy_statistics(queue, t[0], t[1], whole,
                                         part(t[2], 0, {s.n_loss_rows, 2}));
                cross_entropy_of_parts(queue, t[2], t[1], whole, 0.5f, t[0], t[3], t[4]);
              }});
}

void check_embedding(Both& both, const Sizes& s, Dtype dtype) {
  const Tensor tokens{i32, {s.n()}, Tensor::Kind::integers, s.n_classes};
  both.check({named("embedding", dtype),
              {tokens,
               {dtype, {s.n_classes, s.width}},
               {dtype, {s.seq_len, s.width}},
               {dtype, {s.n(), s.width}},
               {f32, {s.n_classes, s.width}},
               {f32, {s.seq_len, s.width}}},
              {3, 4, 5},
              0,
              [&s](Queue& queue, const Views& t) {
                embedding_forward(queue, t[0], t[1], t[2], s.seq_len, t[3]);
                add_positions(queue, t[2], s.seq_len, 3, t[3]);
                embedding_backward(queue, t[0], t[3], s.seq_len, Write::set, t[4], t[5]);
              }});
}

void check_optimizer(Both& both, const Sizes& s, Dtype dtype) {
  const Shape shape{s.n_adamw};
  both.check({named("adamw, sum_of_squares, copy", dtype),
              {{f32, shape},
               {f32, shape},
               {f32, shape},
               {f32, shape, Tensor::Kind::positive},
               {dtype, shape}},
              {1, 2, 3, 4},
              rounding(dtype),
              [](Queue& queue, const Views& t) {
                const AdamwStep step{.lr = 1e-2f,
                                     .beta1 = 0.9f,
                                     .beta2 = 0.95f,
                                     .epsilon = 1e-8f,
                                     .weight_decay = 0.1f,
                                     .t = 3,
                                     .grad_scale = 0.7f};
                adamw(queue, step, t[0], t[1], t[2], t[3], t[4]);
              }});
  if (dtype != f32) return;
  const std::int64_t n_chunks = (s.n_adamw + norm_chunk_elements - 1) / norm_chunk_elements;
  both.check({"sum_of_squares",
              {{f32, shape}, {Dtype::f64, {n_chunks}}},
              {1},
              0,
              [](Queue& queue, const Views& t) { sum_of_squares(queue, t[0], t[1]); }});
}

/// Rows to the experts, through a linear layer of them, and back.
void check_mixture(Both& both, const Sizes& s, Dtype dtype) {
  const RouterShape shape{
      .n_tokens = s.n(), .seq_len = s.seq_len, .n_experts = 8, .top_k = 2, .own = {}};
  const Shape tokens{s.n(), s.width};
  const Shape rows{shape.n_rows(), s.width};
  const Shape choices{s.n(), 2};
  const std::vector<Tensor> tensors{{f32, {s.n(), 8}},
                                    {i32, choices},
                                    {f32, choices},
                                    {i32, choices},
                                    {i32, {shape.n_rows()}},
                                    {i32, {9}},
                                    {i32, {s.batch, 8}},
                                    {dtype, tokens},
                                    {dtype, rows},
                                    {dtype, {8 * s.width, s.width}},
                                    {dtype, rows},
                                    {dtype, tokens},
                                    {dtype, rows},
                                    {f32, choices},
                                    {dtype, {s.n(), 8}},
                                    {f32, choices},
                                    {i32, {s.n()}, Tensor::Kind::labels, 5},
                                    {dtype, rows},
                                    {f32, {8 * s.width, s.width}},
                                    {f32, {8 * s.width}}};
  const auto op = [shape](Queue& queue, const Views& t) {
    const Routing r{t[0], t[1], t[2], t[3], t[4], t[5], t[6]};
    route(queue, shape, r);
    group_rows(queue, shape, r, t[7], t[8]);
    grouped_linear_forward(queue, t[5], t[8], t[9], View(), t[10]);
    combine_rows(queue, shape, r, Weigh::yes, t[10], t[11]);
    combine_rows_backward(queue, shape, r, t[10], t[7], t[12], t[13]);
    router_backward(queue, shape, r, t[13], t[16], {.balance = 0.01f, .z = 0.002f}, 0.5f, t[14],
                    t[15]);
    grouped_linear_backward_input(queue, t[5], t[12], t[9], Write::set, t[17]);
    grouped_linear_backward_weight(queue, t[5], t[8], t[12], Write::set, t[18], t[19]);
  };
  both.check({named("routing", dtype), tensors, {1, 3, 4, 5, 6}, 0, op});
  both.check({named("mixture", dtype),
              tensors,
              {2, 8, 10, 11, 12, 13, 14, 15, 17, 18, 19},
              4 * rounding(dtype),
              op});
  // Of two ranks, each with as many rows for each of three experts.
  const std::int64_t n_each = s.n() / 8;
  both.check({named("expert rows", dtype),
              {{i32, {2, 4}, Tensor::Kind::steps, n_each},
               {i32, {4}},
               {i32, {s.n()}},
               {dtype, tokens},
               {dtype, tokens},
               {dtype, tokens}},
              {1, 2, 4, 5},
              0,
              [](Queue& queue, const Views& t) {
                order_by_expert(queue, t[0], t[1], t[2]);
                rows_by_expert(queue, t[1], t[2], t[3], t[4]);
                rows_by_rank(queue, t[1], t[2], t[4], t[5]);
              }});
}

}  // namespace

void check_kernels(const Options& options, Report& report) {
  const Sizes& s = options.is_small ? small : full;
  const auto n_cores = static_cast<int>(std::thread::hardware_concurrency());
  Both both(report, options.is_small ? 1 : std::clamp(n_cores, 1, 16));
  for (const Dtype dtype : dtypes) {
    check_elements(both, s, dtype);
    check_activations(both, s, dtype);
    check_norms(both, s, dtype);
    check_products(both, s, dtype);
    check_attention(both, s, dtype, 64, 0.1f);
    if (!options.is_small) check_attention(both, s, dtype, 64, 0);
    if (!options.is_small) check_attention(both, s, dtype, 128, 0);
    check_loss(both, s, dtype);
    check_embedding(both, s, dtype);
    check_optimizer(both, s, dtype);
    check_mixture(both, s, dtype);
  }
  check_attention_step(both, s);
}

}  // namespace llm::gpu
