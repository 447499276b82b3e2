#include <fmt/format.h>

#include <algorithm>

#include "tensor/ops/attention.h"
#include "tensor/ops/attention_step.h"
#include "tests/gpu/kernel_cases.h"

namespace llm::gpu {
namespace {

constexpr Dtype f32 = Dtype::f32;
constexpr float theta = 1e4f;

/// body(group) for a sample of the heads, at once; they write to places of their own.
template <typename Body>
void for_groups(const AttentionShape& shape, const Body& body) {
  const std::vector<float64::HeadGroup> all = float64::all_groups(shape);
  const std::vector<std::size_t> chosen = sample(all.size(), n_head_groups);
  in_parallel(chosen.size(), [&](std::size_t i) { body(all[chosen[i]]); });
}

Step rope_step_of(const char* name, const AttentionShape& shape, Dtype dtype, bool is_backward,
                  std::size_t tensor) {
  return {name,
          {{"qkv", tensor, rounding(dtype)}},
          [=](Queue& queue, const Views& t) {
            is_backward ? rope_backward(queue, shape, theta, t[tensor])
                        : rope_forward(queue, shape, theta, t[tensor]);
          },
          [=](Values& t) { float64::rope(shape, double{theta}, 0, is_backward, t[tensor]); }};
}

/// Scores are sums over head_dim, and what they weigh is summed over seq_len rows. On tensor cores
/// probabilities are rounded to the dtype before they weigh values, and so are in the backward
/// the gradients of scores; there `out`, rounded, is read too.
std::vector<Step> attention_steps(const AttentionShape& shape, Dtype dtype,
                                  const Dropout& dropout) {
  const auto n_terms = static_cast<double>(shape.head_dim + shape.seq_len);
  const double more = dtype == f32 ? 0 : unit_roundoff(dtype);
  return {
      rope_step_of("rope_forward", shape, dtype, false, 0),
      {"attention_forward",
       {{"out", 1, rounding(dtype, n_terms) + more}, {"log_sum_exp", 2, rounding(f32, n_terms)}},
       [=](Queue& queue, const Views& t) {
         attention_forward(queue, shape, t[0], dropout, t[1], t[2]);
       },
       [=](Values& t) {
         for (const std::size_t out : {1, 2}) t[out].assign(t[out].size(), float64::left_out);
         for_groups(shape, [&](float64::HeadGroup group) {
           float64::attention_forward(shape, t[0], dropout, group, t[1], t[2]);
         });
       }},
      {"attention_backward",
       {{"dqkv", 4, rounding(dtype, n_terms) + 3 * more}},
       [=](Queue& queue, const Views& t) {
         attention_backward(queue, shape, t[0], t[1], t[2], t[3], dropout, t[4]);
       },
       [=](Values& t) {
         t[4].assign(t[4].size(), float64::left_out);
         for_groups(shape, [&](float64::HeadGroup group) {
           float64::attention_backward(shape, t[0], t[3], dropout, group, t[4]);
         });
       }},
      rope_step_of("rope_backward", shape, dtype, true, 4)};
}

}  // namespace

void check_attention(KernelCheck& check, const Sizes& s, Dtype dtype, std::int64_t head_dim,
                     float p) {
  const AttentionShape shape{.batch = s.batch,
                             .seq_len = s.seq_len,
                             .n_heads = s.n_heads,
                             .n_kv_heads = s.n_kv_heads,
                             .head_dim = head_dim};
  const Tensor qkv{dtype, {s.n(), shape.qkv_width()}}, out{dtype, {s.n(), s.n_heads * head_dim}};
  const Dropout dropout{.p = p, .seed = 3, .step = 2, .layer = 1, .site = 1};
  check.check({fmt::format("of {}, dropout {}, {}", head_dim, p, name_of(dtype)),
               {qkv, out, {f32, {s.batch, s.n_heads, s.seq_len}}, out, qkv},
               attention_steps(shape, dtype, dropout)});
}

// The rows of a prompt, then one token more: of tensors the prompt's qkv, the token's, kept keys,
// kept values, out.
void check_attention_step(KernelCheck& check, const Sizes& s) {
  const AttentionShape prompt{.batch = 1,
                              .seq_len = s.seq_len - 1,
                              .n_heads = s.n_heads,
                              .n_kv_heads = s.n_kv_heads,
                              .head_dim = 64};
  AttentionShape one = prompt;
  one.seq_len = 1;
  const Tensor kept{f32, {s.n_kv_heads, s.seq_len, 64}};
  const std::int64_t capacity = s.seq_len;
  const auto keep = [=](const AttentionShape& shape, std::size_t from, std::int64_t begin) {
    return Step{"keep_keys_values",
                {{"keys", 2, rounding(f32), true}, {"values", 3, rounding(f32), true}},
                [=](Queue& queue, const Views& t) {
                  keep_keys_values(queue, shape, t[from], begin, t[2], t[3]);
                },
                [=](Values& t) {
                  for (std::int64_t row = 0; row < shape.seq_len; ++row) {
                    for (std::int64_t i = 0; i < shape.n_kv_heads * 64; ++i) {
                      const std::size_t at = count((i / 64 * capacity + begin + row) * 64 + i % 64);
                      const std::int64_t keys = row * shape.qkv_width() + shape.n_heads * 64;
                      t[2][at] = t[from][count(keys + i)];
                      t[3][at] = t[from][count(keys + shape.n_kv_heads * 64 + i)];
                    }
                  }
                }};
  };
  const auto n_terms = static_cast<double>(s.seq_len + 64);
  check.check(
      {"f32",
       {{f32, {prompt.seq_len, prompt.qkv_width()}},
        {f32, {1, one.qkv_width()}},
        kept,
        kept,
        {f32, {1, s.n_heads * 64}}},
       {keep(prompt, 0, 0),
        {"rope_step",
         {{"qkv", 1, rounding(f32)}},
         [=](Queue& queue, const Views& t) { rope_step(queue, one, theta, prompt.seq_len, t[1]); },
         [=](Values& t) { float64::rope(one, double{theta}, prompt.seq_len, false, t[1]); }},
        keep(one, 1, prompt.seq_len),
        {"attention_step",
         {{"out", 4, rounding(f32, n_terms)}},
         [=](Queue& queue, const Views& t) {
           attention_step(queue, one, t[1], t[2], t[3], prompt.seq_len + 1, t[4]);
         },
         [=](Values& t) {  // the last row of both
           AttentionShape whole = prompt;
           whole.seq_len = capacity;
           Doubles qkv = t[0], out(count(capacity) * t[4].size());
           qkv.insert(qkv.end(), t[1].begin(), t[1].end());
           Doubles sums(count(capacity * whole.n_heads));
           for (const float64::HeadGroup group : float64::all_groups(whole)) {
             float64::attention_forward(whole, qkv, {}, group, out, sums);
           }
           t[4].assign(out.end() - static_cast<std::ptrdiff_t>(t[4].size()), out.end());
         }}}});
}

}  // namespace llm::gpu
