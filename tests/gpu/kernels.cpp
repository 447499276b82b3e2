// Every op on the device against float64.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "tensor/ops/activation.h"
#include "tensor/ops/adamw.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/dropout.h"
#include "tensor/ops/elementwise.h"
#include "tensor/ops/embedding.h"
#include "tensor/ops/linear.h"
#include "tensor/ops/norm.h"
#include "tests/gpu/kernel_cases.h"

namespace llm::gpu {
namespace {

constexpr Dtype f32 = Dtype::f32;
constexpr Dtype i32 = Dtype::i32;
constexpr Dtype dtypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16};

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

void check_elements(KernelCheck& check, const Sizes& s, Dtype dtype) {
  const Shape shape{s.n(), s.width};
  const double tolerance = rounding(dtype);
  std::vector<Step> steps;
  for (std::size_t i = 0; i < std::size(dtypes); ++i) {
    steps.push_back({fmt::format("convert to {} of", name_of(dtypes[i])),
                     {{"y", 2 + i, rounding(dtypes[i]), true}},
                     [i](Queue& queue, const Views& t) { convert(queue, t[0], t[2 + i]); },
                     [i](Values& t) { t[2 + i] = t[0]; }});
    steps.push_back({fmt::format("add to {} of", name_of(dtypes[i])),
                     {{"y", 2 + i, rounding(dtypes[i]), true}},
                     [i](Queue& queue, const Views& t) { add(queue, t[0], t[2 + i]); },
                     [i](Values& t) { add_to(t[2 + i], t[0]); }});
  }
  const std::size_t filled = 5;
  steps.push_back({"fill",
                   {{"y", filled, tolerance, true}},
                   [](Queue& queue, const Views& t) { fill(queue, 0.3f, t[filled]); },
                   [](Values& t) { t[filled].assign(t[filled].size(), double{0.3f}); }});
  steps.push_back({"add_rows",
                   {{"y", filled, tolerance, true}},
                   [](Queue& queue, const Views& t) { add_rows(queue, t[1], t[filled]); },
                   [](Values& t) {
                     for (std::size_t i = 0; i < t[filled].size(); ++i) {
                       t[filled][i] += t[1][i % t[1].size()];
                     }
                   }});
  check.check({std::string(name_of(dtype)),
               {{dtype, shape},
                {f32, {s.width}},
                {f32, shape},
                {Dtype::bf16, shape},
                {Dtype::f16, shape},
                {dtype, shape}},
               steps});
}

void check_dropout(KernelCheck& check, const Sizes& s, Dtype dtype) {
  const Tensor tensor{dtype, {s.n(), s.width}};
  const Dropout dropout{.p = 0.1f, .seed = 9, .step = 4, .layer = 2, .site = 1};
  const std::int64_t sample_size = s.seq_len * s.width;
  const auto masked = [dropout, sample_size](const Doubles& x) {
    Doubles y;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(x.size()); ++i) {
      const double factor = float64::dropout_factor(dropout, i / sample_size, i % sample_size);
      y.push_back(factor * x[count(i)]);
    }
    return y;
  };
  check.check({std::string(name_of(dtype)),
               {tensor, tensor, tensor, tensor},
               {{"dropout_forward",
                 {{"out", 2, rounding(dtype), true}},
                 [dropout, &s](Queue& queue, const Views& t) {
                   dropout_forward(queue, dropout, s.seq_len, t[0], t[1], t[2]);
                 },
                 [masked](Values& t) {
                   t[2] = masked(t[0]);
                   add_to(t[2], t[1]);
                 }},
                {"dropout_backward",
                 {{"dx", 3, rounding(dtype), true}},
                 [dropout, &s](Queue& queue, const Views& t) {
                   dropout_backward(queue, dropout, s.seq_len, t[0], t[3]);
                 },
                 [masked](Values& t) { t[3] = masked(t[0]); }}}});
}

void check_activation(KernelCheck& check, const Sizes& s, Dtype dtype, Activation f,
                      const char* name) {
  const double tolerance = rounding(dtype);
  const auto each = [](Doubles& y, const auto& value) {
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = value(i);
  };
  check.check(
      {fmt::format("{} {}", name, name_of(dtype)),
       std::vector<Tensor>(8, {dtype, {s.n(), s.width}}),
       {{"activation_forward",
         {{"y", 3, tolerance}},
         [f](Queue& queue, const Views& t) { activation_forward(queue, f, t[0], t[3]); },
         [f, each](Values& t) {
           each(t[3], [&](std::size_t i) { return float64::activation(f, t[0][i]); });
         }},
        {"activation_backward",
         {{"dx", 4, tolerance}},
         [f](Queue& queue, const Views& t) { activation_backward(queue, f, t[0], t[2], t[4]); },
         [f, each](Values& t) {
           each(t[4], [&](std::size_t i) { return float64::slope(f, t[0][i]) * t[2][i]; });
         }},
        {"gated_forward",
         {{"y", 5, tolerance}},
         [f](Queue& queue, const Views& t) { gated_forward(queue, f, t[0], t[1], t[5]); },
         [f, each](Values& t) {
           each(t[5], [&](std::size_t i) { return float64::activation(f, t[0][i]) * t[1][i]; });
         }},
        {"gated_backward",
         {{"dgate", 6, tolerance}, {"dup", 7, tolerance}},
         [f](Queue& queue, const Views& t) {
           gated_backward(queue, f, t[0], t[1], t[2], t[6], t[7]);
         },
         [f, each](Values& t) {
           each(t[6],
                [&](std::size_t i) { return float64::slope(f, t[0][i]) * t[1][i] * t[2][i]; });
           each(t[7], [&](std::size_t i) { return float64::activation(f, t[0][i]) * t[2][i]; });
         }}}});
}

constexpr float epsilon = 1e-5f;

/// Tensors of a norm: x, weight, bias, y, mean, rstd, dy, dx, dweight, dbias.
std::vector<Tensor> norm_tensors(const Sizes& s, Dtype dtype) {
  const Tensor rows{dtype, {s.n(), s.width}}, row{f32, {s.width}}, column{f32, {s.n()}};
  return {rows, row, row, rows, column, column, rows, rows, row, row};
}

Step norm_forward_step(const Sizes& s, Dtype dtype, bool is_rms) {
  const auto width = static_cast<double>(s.width);
  const float64::Norm norm{is_rms, double{epsilon}};
  Step step{is_rms ? "rms_norm_forward" : "layer_norm_forward",
            {{"y", 3, rounding(dtype, width)}, {"rstd", 5, rounding(f32, width)}},
            [is_rms](Queue& queue, const Views& t) {
              if (is_rms) return rms_norm_forward(queue, t[0], t[1], epsilon, t[3], t[5]);
              layer_norm_forward(queue, t[0], t[1], t[2], epsilon, t[3], t[4], t[5]);
            },
            [norm](Values& t) {
              t[3] = float64::norm_forward(norm, t[0], t[1], norm.is_rms ? Doubles() : t[2]);
              float64::RowStatistics of = float64::norm_statistics(norm, t[0], t[1].size());
              t[4] = std::move(of.mean);
              t[5] = std::move(of.rstd);
            }};
  if (!is_rms) step.outs.push_back({"mean", 4, rounding(f32, width)});
  return step;
}

Step norm_backward_step(const Sizes& s, Dtype dtype, bool is_rms, Write write) {
  const float64::Norm norm{is_rms, double{epsilon}};
  const double of_columns = rounding(f32, static_cast<double>(s.n()));
  Step step{is_rms ? "rms_norm_backward" : "layer_norm_backward",
            {{"dx", 7, rounding(dtype, static_cast<double>(s.width))}, {"dweight", 8, of_columns}},
            [is_rms, write](Queue& queue, const Views& t) {
              if (is_rms) {
                return rms_norm_backward(queue, t[0], t[1], t[5], t[6], write, t[7], write, t[8]);
              }
              layer_norm_backward(queue, t[0], t[1], t[4], t[5], t[6], write, t[7], write, t[8],
                                  t[9]);
            },
            [norm, write](Values& t) {
              const float64::NormGradients of = float64::norm_backward(norm, t[0], t[1], t[6]);
              write_to(t[7], write, of.dx);
              write_to(t[8], write, of.dweight);
              write_to(t[9], write, of.dbias);
            }};
  if (!is_rms) step.outs.push_back({"dbias", 9, of_columns});
  return step;
}

void check_norms(KernelCheck& check, const Sizes& s, Dtype dtype) {
  for (const bool is_rms : {false, true}) {
    check.check(
        {std::string(name_of(dtype)),
         norm_tensors(s, dtype),
         {norm_forward_step(s, dtype, is_rms), norm_backward_step(s, dtype, is_rms, Write::set)}});
    check.check(
        {fmt::format("{}, added", name_of(dtype)),
         norm_tensors(s, dtype),
         {norm_forward_step(s, dtype, is_rms), norm_backward_step(s, dtype, is_rms, Write::add)}});
  }
}

/// Of x, weight, bias, y, y in f32, dy, dx, dweight, dbias, the activation of y.
std::vector<Step> linear_steps(const Sizes& s, Dtype dtype, Write write) {
  const float64::Linear layer{{0, count(s.n())}, count(s.width), count(s.mlp)};
  const std::vector<std::size_t> rows = sample(count(s.n()), n_product_rows);
  const std::vector<std::size_t> features = sample(count(s.mlp), n_product_rows);
  const auto n_in = static_cast<double>(s.width), n_out = static_cast<double>(s.mlp),
             n = static_cast<double>(s.n());
  return {
      {"linear_forward",
       {{"y", 3, product_rounding(dtype, dtype, n_in)}},
       [](Queue& queue, const Views& t) { linear_forward(queue, t[0], t[1], t[2], t[3]); },
       [=](Values& t) { t[3] = float64::linear_forward(layer, t[0], t[1], t[2], rows); }},
      {"linear_gelu_tanh",
       {{"up", 3, product_rounding(dtype, dtype, n_in)},
        // In a low dtype the sum is rounded too.
        {"hidden", 9, product_rounding(dtype, dtype, n_in) + rounding(dtype)}},
       [](Queue& queue, const Views& t) {
         linear_gelu_tanh(queue, t[0], t[1], t[2], t[3], t[9], Hidden::wanted);
       },
       [=](Values& t) {
         t[3] = float64::linear_forward(layer, t[0], t[1], t[2], rows);
         for (std::size_t i = 0; i < t[3].size(); ++i) {
           t[9][i] = float64::activation(Activation::gelu_tanh, t[3][i]);
         }
       }},
      {"linear_forward to f32",
       {{"y", 4, product_rounding(dtype, f32, n_in)}},
       [](Queue& queue, const Views& t) { linear_forward(queue, t[0], t[1], View(), t[4]); },
       [=](Values& t) { t[4] = float64::linear_forward(layer, t[0], t[1], {}, rows); }},
      {"linear_backward_input",
       {{"dx", 6, product_rounding(dtype, dtype, n_out)}},
       [=](Queue& queue, const Views& t) { linear_backward_input(queue, t[5], t[1], write, t[6]); },
       [=](Values& t) {
         write_to(t[6], write, float64::linear_backward_input(layer, t[5], t[1], rows));
       }},
      {"linear_backward_weight",
       {{"dweight", 7, product_rounding(dtype, f32, n)}, {"dbias", 8, rounding(f32, n)}},
       [=](Queue& queue, const Views& t) {
         linear_backward_weight(queue, t[0], t[5], write, t[7], t[8]);
       },
       [=](Values& t) {
         write_to(t[7], write, float64::linear_backward_weight(layer, t[0], t[5], features));
         write_to(t[8], write, float64::linear_backward_bias(layer, t[5]));
       }}};
}

void check_products(KernelCheck& check, const Sizes& s, Dtype dtype) {
  const Tensor inputs{dtype, {s.n(), s.width}}, outputs{dtype, {s.n(), s.mlp}}, bias{f32, {s.mlp}};
  const std::vector<Tensor> tensors{
      inputs, {dtype, {s.mlp, s.width}}, bias, outputs, {f32, outputs.shape}, outputs,
      inputs, {f32, {s.mlp, s.width}},   bias, outputs};
  check.check({std::string(name_of(dtype)), tensors, linear_steps(s, dtype, Write::set)});
  check.check(
      {fmt::format("{}, added", name_of(dtype)), tensors, linear_steps(s, dtype, Write::add)});
}

/// Losses, and scale * (softmax - one-hot) of the first n_own classes, in float64.
void cross_entropy_into(const Doubles& logits, const Doubles& labels, std::size_t n_own,
                        double scale, Doubles& losses, Doubles& dlogits) {
  const std::size_t width = logits.size() / labels.size();
  dlogits.assign(logits.size(), 0);
  for (std::size_t r = 0; r < labels.size(); ++r) {
    const double* const row = logits.data() + r * width;
    const auto label = static_cast<std::int64_t>(labels[r]);
    losses[r] = label < static_cast<std::int64_t>(n_own) ? float64::cross_entropy(row, n_own, label)
                                                         : float64::left_out;
    if (label == ignored_label) continue;
    const double sum = float64::log_sum_exp(row, n_own);
    for (std::size_t v = 0; v < n_own; ++v) {
      const double one = static_cast<std::int64_t>(v) == label ? 1 : 0;
      dlogits[r * width + v] = scale * (std::exp(row[v] - sum) - one);
    }
  }
}

void check_loss(KernelCheck& check, const Sizes& s, Dtype dtype) {
  const Tensor logits{f32, {s.n_loss_rows, s.n_classes}}, losses{f32, {s.n_loss_rows}};
  const Tensor labels{i32, {s.n_loss_rows}, Tensor::Kind::labels, s.n_classes};
  const double of_sum = rounding(f32, static_cast<double>(s.n_classes));
  const double of_gradient = rounding(dtype, static_cast<double>(s.n_classes));
  const std::size_t n_classes = count(s.n_classes);
  const auto reference = [=](Values& t) {
    cross_entropy_into(t[0], t[1], n_classes, 0.5, t[3], t[2]);
  };
  check.check(
      {std::string(name_of(dtype)),
       {logits, labels, {dtype, logits.shape}, losses},
       {{"cross_entropy_forward",
         {{"losses", 3, of_sum}},
         [](Queue& queue, const Views& t) { cross_entropy_forward(queue, t[0], t[1], t[3]); },
         reference},
        {"cross_entropy_forward_backward",
         {{"losses", 3, of_sum}, {"dlogits", 2, of_gradient}},
         [](Queue& queue, const Views& t) {
           cross_entropy_forward_backward(queue, t[1], 0.5f, t[0], t[2], t[3]);
         },
         reference}}});
}

/// The loss of the one rank there is, with three columns of padding; labels are its own classes.
void check_loss_of_parts(KernelCheck& check, const Sizes& s, Dtype dtype) {
  const Tensor logits{f32, {s.n_loss_rows, s.n_classes}}, losses{f32, {s.n_loss_rows}};
  const Tensor labels{i32, {s.n_loss_rows}, Tensor::Kind::labels, s.n_classes - 3};
  const VocabularyPart whole{
      .first_class = 0, .n_own = s.n_classes - 3, .n_classes = s.n_classes - 3};
  const std::int64_t n_rows = s.n_loss_rows;
  const std::size_t n_own = count(whole.n_own);
  const double of_sum = rounding(f32, static_cast<double>(s.n_classes));
  check.check(
      {std::string(name_of(dtype)),
       {logits, labels, {f32, {1, n_rows, 2}}, {dtype, logits.shape}, losses},
       {{"cross_entropy_statistics",
         {{"sums and logits", 2, of_sum}},
         [=](Queue& queue, const Views& t) {
           cross_entropy_statistics(queue, t[0], t[1], whole, part(t[2], 0, {n_rows, 2}));
         },
         [=](Values& t) {
           const std::size_t width = t[0].size() / t[1].size();
           for (std::size_t r = 0; r < t[1].size(); ++r) {
             const double* const row = t[0].data() + r * width;
             t[2][2 * r] = float64::log_sum_exp(row, n_own);
             t[2][2 * r + 1] = t[1][r] < 0 ? 0 : row[static_cast<std::size_t>(t[1][r])];
           }
         }},
        {"cross_entropy_of_parts",
         {{"losses", 4, of_sum}, {"dlogits", 3, rounding(dtype, static_cast<double>(s.n_classes))}},
         [=](Queue& queue, const Views& t) {
           cross_entropy_of_parts(queue, t[2], t[1], whole, 0.5f, t[0], t[3], t[4]);
         },
         [=](Values& t) { cross_entropy_into(t[0], t[1], n_own, 0.5, t[4], t[3]); }}}});
}

/// Of tokens, table, positions, y, dtable, dpositions.
std::vector<Step> embedding_steps(const Sizes& s, Dtype dtype) {
  const std::size_t width = count(s.width), seq_len = count(s.seq_len);
  // A sum's rows are those of one token, or of one place in all samples.
  const double of_sums = rounding(f32, static_cast<double>(s.n()));
  return {{"embedding_forward",
           {{"y", 3, rounding(dtype), true}},
           [&s](Queue& queue, const Views& t) {
             embedding_forward(queue, t[0], t[1], t[2], s.seq_len, t[3]);
           },
           [=](Values& t) {
             for (std::size_t i = 0; i < t[3].size(); ++i) {
               const std::size_t row = i / width, c = i % width;
               t[3][i] = t[1][static_cast<std::size_t>(t[0][row]) * width + c] +
                         t[2][row % seq_len * width + c];
             }
           }},
          {"add_positions",
           {{"y", 3, rounding(dtype), true}},
           [&s](Queue& queue, const Views& t) { add_positions(queue, t[2], s.seq_len, 3, t[3]); },
           [=](Values& t) {
             for (std::size_t i = 0; i < t[3].size(); ++i) {
               t[3][i] += t[2][(3 + i / width) % seq_len * width + i % width];
             }
           }},
          {"embedding_backward",
           {{"dtable", 4, of_sums, true}, {"dpositions", 5, of_sums, true}},
           [&s](Queue& queue, const Views& t) {
             embedding_backward(queue, t[0], t[3], s.seq_len, Write::set, t[4], t[5]);
           },
           [=](Values& t) {
             for (const std::size_t table : {4, 5}) t[table].assign(t[table].size(), 0);
             for (std::size_t i = 0; i < t[3].size(); ++i) {
               const std::size_t row = i / width, c = i % width;
               t[4][static_cast<std::size_t>(t[0][row]) * width + c] += t[3][i];
               t[5][row % seq_len * width + c] += t[3][i];
             }
           }}};
}

void check_embedding(KernelCheck& check, const Sizes& s, Dtype dtype) {
  const Tensor tokens{i32, {s.n()}, Tensor::Kind::integers, s.n_classes};
  const Shape table{s.n_classes, s.width}, positions{s.seq_len, s.width};
  check.check({std::string(name_of(dtype)),
               {tokens,
                {dtype, table},
                {dtype, positions},
                {dtype, {s.n(), s.width}},
                {f32, table},
                {f32, positions}},
               embedding_steps(s, dtype)});
}

void check_optimizer(KernelCheck& check, const Sizes& s, Dtype dtype) {
  const Tensor tensor{f32, {s.n_adamw}};
  const AdamwStep step{.lr = 1e-2f,
                       .beta1 = 0.9f,
                       .beta2 = 0.95f,
                       .epsilon = 1e-8f,
                       .weight_decay = 0.1f,
                       .t = 3,
                       .grad_scale = 0.7f};
  check.check(
      {std::string(name_of(dtype)),
       {tensor, tensor, tensor, {f32, tensor.shape, Tensor::Kind::positive}, {dtype, tensor.shape}},
       {{"adamw",
         {{"weights", 1, rounding(f32)},
          {"m", 2, rounding(f32)},
          {"v", 3, rounding(f32)},
          {"copy", 4, rounding(dtype)}},
         [step](Queue& queue, const Views& t) { adamw(queue, step, t[0], t[1], t[2], t[3], t[4]); },
         [step](Values& t) {
           for (std::size_t i = 0; i < t[0].size(); ++i) {
             float64::Adamw at{t[1][i], t[2][i], t[3][i]};
             at.step(step, t[0][i]);
             t[1][i] = t[4][i] = at.w;
             t[2][i] = at.m;
             t[3][i] = at.v;
           }
         }}}});
}

void check_norm_chunks(KernelCheck& check, const Sizes& s) {
  const std::int64_t n_chunks = (s.n_adamw + norm_chunk_elements - 1) / norm_chunk_elements;
  constexpr double of_f64 = norm_chunk_elements * 0x1p-53;  // both sum in float64
  check.check({"f32",
               {{f32, {s.n_adamw}}, {Dtype::f64, {n_chunks}}},
               {{"sum_of_squares",
                 {{"chunk sums", 1, of_f64, true}},
                 [](Queue& queue, const Views& t) { sum_of_squares(queue, t[0], t[1]); },
                 [](Values& t) {
                   t[1].assign(t[1].size(), 0);
                   for (std::size_t i = 0; i < t[0].size(); ++i) {
                     t[1][i / norm_chunk_elements] += t[0][i] * t[0][i];
                   }
                 }}}});
}

}  // namespace

void check_kernels(const Options& options, Report& report) {
  const Sizes& s = options.is_small ? small : full;
  const auto n_cores = static_cast<int>(std::thread::hardware_concurrency());
  KernelCheck check(report, options.is_small ? 1 : std::clamp(n_cores, 1, 16));
  for (const Dtype dtype : dtypes) {
    check_elements(check, s, dtype);
    check_dropout(check, s, dtype);
    check_activation(check, s, dtype, Activation::gelu, "gelu");
    check_activation(check, s, dtype, Activation::gelu_tanh, "gelu_tanh");
    check_activation(check, s, dtype, Activation::silu, "silu");
    check_activation(check, s, dtype, Activation::relu, "relu");
    check_norms(check, s, dtype);
    check_products(check, s, dtype);
    check_attention(check, s, dtype, 64, 0.1f);
    if (!options.is_small) check_attention(check, s, dtype, 64, 0);
    if (!options.is_small) check_attention(check, s, dtype, 128, 0);
    check_loss(check, s, dtype);
    check_loss_of_parts(check, s, dtype);
    check_embedding(check, s, dtype);
    check_optimizer(check, s, dtype);
    check_mixture(check, s, dtype);
    check_expert_rows(check, s, dtype);
  }
  check_norm_chunks(check, s);
  check_attention_step(check, s);
}

}  // namespace llm::gpu
