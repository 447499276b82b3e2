#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tensor/ops/expert_rows.h"
#include "tensor/ops/grouped_linear.h"
#include "tensor/ops/grouped_rows.h"
#include "tensor/ops/router.h"
#include "tests/gpu/kernel_cases.h"

namespace llm::gpu {
namespace {

constexpr Dtype f32 = Dtype::f32;
constexpr Dtype i32 = Dtype::i32;
constexpr std::int64_t n_experts = 8;
constexpr std::int64_t top_k = 2;

/// The case's tensors, in this order.
enum Name : std::size_t {
  logits,
  experts,
  weights,
  rows,
  visits,
  begins,
  counts,
  tokens,
  grouped,
  matrices,
  biases,
  grouped_out,
  combined,
  dgrouped_out,
  dweights,
  dlogits,
  token_losses,
  labels,
  dgrouped,
  dmatrices,
  dbiases
};

std::vector<Tensor> tensors_of(const Sizes& s, const RouterShape& shape, Dtype dtype) {
  const Tensor of_tokens{dtype, {s.n(), s.width}}, of_rows{dtype, {shape.n_rows(), s.width}};
  const Tensor of_choices{i32, {s.n(), top_k}};
  const Shape matrix{n_experts * s.width, s.width};
  return {{f32, {s.n(), n_experts}},
          of_choices,
          {f32, of_choices.shape},
          of_choices,
          {i32, {shape.n_rows()}},
          {i32, {n_experts + 1}},
          {i32, {s.batch, n_experts}},
          of_tokens,
          of_rows,
          {dtype, matrix},
          {f32, {n_experts * s.width}},
          of_rows,
          of_tokens,
          of_rows,
          {f32, of_choices.shape},
          {dtype, {s.n(), n_experts}},
          {f32, {s.n(), 2}},
          {i32, {s.n()}, Tensor::Kind::labels, 5},
          of_rows,
          {f32, matrix},
          {f32, {n_experts * s.width}}};
}

Routing routing_of(const Views& t) {
  return {t[logits], t[experts], t[weights], t[rows], t[visits], t[begins], t[counts]};
}

/// A token's experts by logit, then its rows, expert by expert in the order of the tokens.
void route_tokens(const RouterShape& shape, Values& t) {
  t[counts].assign(t[counts].size(), 0);
  for (std::size_t token = 0; token < count(shape.n_tokens); ++token) {
    const double* const row = t[logits].data() + token * n_experts;
    std::vector<std::size_t> order(n_experts);
    for (std::size_t e = 0; e < order.size(); ++e) order[e] = e;
    std::sort(order.begin(), order.end(), [row](std::size_t a, std::size_t b) {
      return row[a] > row[b] || (row[a] == row[b] && a < b);
    });
    for (std::size_t j = 0; j < top_k; ++j) {
      t[experts][token * top_k + j] = static_cast<double>(order[j]);
      t[counts][token / count(shape.seq_len) * n_experts + order[j]] += 1;
    }
  }
  t[weights] = float64::router_weights(shape, t[logits], t[experts]);
  std::size_t next = 0;
  for (std::size_t e = 0; e < n_experts; ++e) {
    t[begins][e] = static_cast<double>(next);
    for (std::size_t visit = 0; visit < t[experts].size(); ++visit) {
      if (t[experts][visit] != static_cast<double>(e)) continue;
      t[visits][next] = static_cast<double>(visit);
      t[rows][visit] = static_cast<double>(next++);
    }
  }
  t[begins][n_experts] = static_cast<double>(next);
}

float64::Linear layer_of(const Sizes& s, const Values& t) {
  float64::Linear layer{{}, count(s.width), count(s.width)};
  for (const double begin : t[begins]) layer.begins.push_back(static_cast<std::size_t>(begin));
  return layer;
}

/// y[token] = the sum of its rows of x, by their weights or by 1.
Doubles combine(const Values& t, const Doubles& x, std::size_t width, bool weighs) {
  Doubles y(t[rows].size() / top_k * width);
  for (std::size_t visit = 0; visit < t[rows].size(); ++visit) {
    const auto row = static_cast<std::size_t>(t[rows][visit]);
    for (std::size_t c = 0; c < width; ++c) {
      y[visit / top_k * width + c] += (weighs ? t[weights][visit] : 1) * x[row * width + c];
    }
  }
  return y;
}

std::vector<Step> routing_steps(const Sizes& s, const RouterShape& shape, Dtype dtype) {
  const std::size_t width = count(s.width);
  return {{"route",
           {{"experts", experts, 0, true},
            {"weights", weights, rounding(f32)},
            {"rows", rows, 0, true},
            {"visits", visits, 0, true},
            {"begins", begins, 0, true},
            {"counts", counts, 0, true}},
           [=](Queue& queue, const Views& t) { route(queue, shape, routing_of(t)); },
           [=](Values& t) { route_tokens(shape, t); }},
          {"group_rows",
           {{"y", grouped, 0, true}},
           [=](Queue& queue, const Views& t) {
             group_rows(queue, shape, routing_of(t), t[tokens], t[grouped]);
           },
           [=](Values& t) {
             for (std::size_t i = 0; i < t[grouped].size(); ++i) {
               const auto visit = static_cast<std::size_t>(t[visits][i / width]);
               t[grouped][i] = t[tokens][visit / top_k * width + i % width];
             }
           }},
          {"combine_rows",
           {{"y", combined, rounding(dtype)}},
           [=](Queue& queue, const Views& t) {
             combine_rows(queue, shape, routing_of(t), Weigh::yes, t[grouped_out], t[combined]);
           },
           [=](Values& t) { t[combined] = combine(t, t[grouped_out], width, true); }},
          {"combine_rows by 1",
           {{"y", combined, rounding(dtype)}},
           [=](Queue& queue, const Views& t) {
             combine_rows(queue, shape, routing_of(t), Weigh::no, t[grouped_out], t[combined]);
           },
           [=](Values& t) { t[combined] = combine(t, t[grouped_out], width, false); }},
          {"combine_rows_backward",
           {{"dx", dgrouped_out, rounding(dtype)},
            {"dweights", dweights, rounding(f32, static_cast<double>(s.width))}},
           [=](Queue& queue, const Views& t) {
             combine_rows_backward(queue, shape, routing_of(t), t[grouped_out], t[tokens],
                                   t[dgrouped_out], t[dweights]);
           },
           [=](Values& t) {
             t[dweights].assign(t[dweights].size(), 0);
             for (std::size_t visit = 0; visit < t[rows].size(); ++visit) {
               const auto row = static_cast<std::size_t>(t[rows][visit]);
               for (std::size_t c = 0; c < width; ++c) {
                 const double dy = t[tokens][visit / top_k * width + c];
                 t[dgrouped_out][row * width + c] = t[weights][visit] * dy;
                 t[dweights][visit] += dy * t[grouped_out][row * width + c];
               }
             }
           }}};
}

Step router_step(const RouterShape& shape, Dtype dtype) {
  const RouterWeights of_losses{.balance = 0.01f, .z = 0.002f};
  return {"router_backward",
          {{"dlogits", dlogits, rounding(dtype)}, {"losses", token_losses, rounding(f32)}},
          [=](Queue& queue, const Views& t) {
            router_backward(queue, shape, routing_of(t), t[dweights], t[labels], of_losses, 0.5f,
                            t[dlogits], t[token_losses]);
          },
          [=](Values& t) {
            const float64::Routed routed{t[experts], t[counts], t[labels]};
            t[token_losses] = float64::router_losses(shape, t[logits], routed);
            t[dlogits] =
                float64::router_backward(shape, t[logits], routed, t[dweights], of_losses, 0.5);
          }};
}

std::vector<Step> expert_steps(const Sizes& s, const RouterShape& shape, Dtype dtype, Write write) {
  const std::vector<std::size_t> of_rows = sample(count(shape.n_rows()), n_product_rows);
  const std::vector<std::size_t> features = sample(count(n_experts * s.width), n_product_rows);
  const auto width = static_cast<double>(s.width), n = static_cast<double>(s.n());
  return {{"grouped_linear_forward",
           {{"y", grouped_out, product_rounding(dtype, dtype, width)}},
           [](Queue& queue, const Views& t) {
             grouped_linear_forward(queue, t[begins], t[grouped], t[matrices], t[biases],
                                    t[grouped_out]);
           },
           [=](Values& t) {
             t[grouped_out] = float64::linear_forward(layer_of(s, t), t[grouped], t[matrices],
                                                      t[biases], of_rows);
           }},
          {"grouped_linear_backward_input",
           {{"dx", dgrouped, product_rounding(dtype, dtype, width)}},
           [=](Queue& queue, const Views& t) {
             grouped_linear_backward_input(queue, t[begins], t[grouped_out], t[matrices], write,
                                           t[dgrouped]);
           },
           [=](Values& t) {
             write_to(t[dgrouped], write,
                      float64::linear_backward_input(layer_of(s, t), t[grouped_out], t[matrices],
                                                     of_rows));
           }},
          {"grouped_linear_backward_weight",
           {{"dweight", dmatrices, product_rounding(dtype, f32, n)},
            {"dbias", dbiases, rounding(f32, n)}},
           [=](Queue& queue, const Views& t) {
             grouped_linear_backward_weight(queue, t[begins], t[grouped], t[grouped_out], write,
                                            t[dmatrices], t[dbiases]);
           },
           [=](Values& t) {
             const float64::Linear layer = layer_of(s, t);
             write_to(t[dmatrices], write,
                      float64::linear_backward_weight(layer, t[grouped], t[grouped_out], features));
             write_to(t[dbiases], write, float64::linear_backward_bias(layer, t[grouped_out]));
           }}};
}

}  // namespace

void check_mixture(KernelCheck& check, const Sizes& s, Dtype dtype) {
  const RouterShape shape{
      .n_tokens = s.n(), .seq_len = s.seq_len, .n_experts = n_experts, .top_k = top_k, .own = {}};
  std::vector<Step> steps = routing_steps(s, shape, dtype);
  steps.push_back(router_step(shape, dtype));
  for (const Write write : {Write::set, Write::add}) {
    for (Step& step : expert_steps(s, shape, dtype, write)) {
      if (write == Write::add) step.name += ", added,";
      steps.push_back(std::move(step));
    }
  }
  check.check({std::string(name_of(dtype)), tensors_of(s, shape, dtype), steps});
}

// Of two ranks, each with as many rows for each of three experts.
void check_expert_rows(KernelCheck& check, const Sizes& s, Dtype dtype) {
  enum : std::size_t { bounds, starts, order, by_rank, by_expert, back };
  const std::size_t n_each = count(s.n() / 8), width = count(s.width);
  const Tensor of_rows{dtype, {s.n(), s.width}};
  const auto for_rows = [=](const Values& t, const auto& body) {
    for (std::size_t r = 0; r < 6 * n_each; ++r) {
      const auto place = static_cast<std::size_t>(t[order][r]);
      for (std::size_t c = 0; c < width; ++c) body(r * width + c, place * width + c);
    }
  };
  check.check({std::string(name_of(dtype)),
               {{i32, {2, 4}, Tensor::Kind::steps, s.n() / 8},
                {i32, {4}},
                {i32, {s.n()}},
                of_rows,
                of_rows,
                of_rows},
               {{"order_by_expert",
                 {{"begins", starts, 0, true}, {"order", order, 0, true}},
                 [=](Queue& queue, const Views& t) {
                   order_by_expert(queue, t[bounds], t[starts], t[order]);
                 },
                 [=](Values& t) {
                   t[order].assign(t[order].size(),
                                   float64::left_out);  // beyond the rows there are
                   std::size_t next = 0;
                   for (std::size_t e = 0; e < 3; ++e) {
                     t[starts][e] = static_cast<double>(next);
                     double first = 0;  // of a rank's rows among all
                     for (std::size_t rank = 0; rank < 2; ++rank) {
                       const double* const bound = t[bounds].data() + 4 * rank;
                       for (double row = bound[e]; row < bound[e + 1]; ++row) {
                         t[order][next++] = first + row - bound[0];
                       }
                       first += bound[3] - bound[0];
                     }
                   }
                   t[starts][3] = static_cast<double>(next);
                 }},
                {"rows_by_expert",
                 {{"rows", by_expert, 0, true}},
                 [=](Queue& queue, const Views& t) {
                   rows_by_expert(queue, t[starts], t[order], t[by_rank], t[by_expert]);
                 },
                 [=](Values& t) {
                   for_rows(t, [&](std::size_t there, std::size_t here) {
                     t[by_expert][there] = t[by_rank][here];
                   });
                 }},
                {"rows_by_rank",
                 {{"rows", back, 0, true}},
                 [=](Queue& queue, const Views& t) {
                   rows_by_rank(queue, t[starts], t[order], t[by_expert], t[back]);
                 },
                 [=](Values& t) {
                   for_rows(t, [&](std::size_t there, std::size_t here) {
                     t[back][here] = t[by_expert][there];
                   });
                 }}}});
}

}  // namespace llm::gpu
