#include <cmath>
#include <limits>
#include <vector>

#include "tensor/cuda/grouped_mma.h"
#include "tensor/cuda/ops.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/expert_rows.h"
#include "tensor/ops/grouped_linear.h"
#include "tests/cuda/twice.h"

using namespace llm;
using namespace llm::test;

namespace {

/// Of a routing, what is uploaded.
struct RoutingValues {
  explicit RoutingValues(const RouterShape& s)
      : logits(1, Dtype::f32, {s.n_tokens, s.n_experts}),
        experts(0, Dtype::i32, {s.n_tokens, s.top_k}),
        weights(2, Dtype::f32, {s.n_tokens, s.top_k}),
        rows(0, Dtype::i32, {s.n_tokens, s.top_k}),
        visits(0, Dtype::i32, {s.n_rows()}),
        begins(0, Dtype::i32, {s.n_own() + 1}),
        counts(0, Dtype::i32, {s.n_sequences(), s.n_experts}) {}
  Routing in(Twice& of) const {
    return {of(logits), of(experts), of(weights), of(rows), of(visits), of(begins), of(counts)};
  }
  std::deque<Values*> all() {
    return {&logits, &experts, &weights, &rows, &visits, &begins, &counts};
  }
  /// all() and then `more`.
  std::deque<Values*> with(const std::vector<Values*>& more) {
    std::deque<Values*> values = all();
    values.insert(values.end(), more.begin(), more.end());
    return values;
  }
  Values logits, experts, weights, rows, visits, begins, counts;
};

void route_twice(Twice& of, cudaStream_t device, Queue* cpu, const RouterShape& shape,
                 const RoutingValues& values) {
  const Routing routing = values.in(of);
  cpu ? route(*cpu, shape, routing) : cuda::route(device, shape, routing);
}

const std::vector<RouterShape> shapes{
    {.n_tokens = 12, .seq_len = 6, .n_experts = 4, .top_k = 2, .own = {}},
    {.n_tokens = 12, .seq_len = 4, .n_experts = 70, .top_k = 4, .own = {40, 61}},
    {.n_tokens = 6, .seq_len = 6, .n_experts = 3, .top_k = 3, .own = {}},
};

}  // namespace

TEST_CASE("on a device tokens are routed to the CPU's experts and rows, equal logits and NaN too") {
  std::vector<RouterShape> all_shapes = shapes;
  // Sequences of several chunks of the counting sort.
  all_shapes.push_back(
      {.n_tokens = 1040, .seq_len = 520, .n_experts = 3, .top_k = 2, .own = {1, 3}});
  for (const RouterShape& shape : all_shapes) {
    for (const bool has_nan : {false, true}) {
      INFO(shape.n_experts << " experts" << (has_nan ? ", NaN" : ""));
      RoutingValues values(shape);
      auto* const logits = values.logits.view.as<float>();
      for (std::int64_t i = 0; i < values.logits.view.n_elements(); ++i) {
        if (i % 7 < 3) logits[i] = std::round(logits[i]);
        if (i % 31 == 4) logits[i] = -std::numeric_limits<float>::infinity();
        if (has_nan && i % 5 < 2) logits[i] = std::numeric_limits<float>::quiet_NaN();
      }
      const auto run = [&](Twice& of, cudaStream_t device, Queue* cpu) {
        route_twice(of, device, cpu, shape, values);
      };
      Twice::check(run, values.all(),
                   {&values.experts, &values.rows, &values.visits, &values.begins, &values.counts},
                   0);
      if (shape.n_tokens < 100) Twice::check(run, values.all(), {&values.weights}, 2e-6);
    }
  }
}

TEST_CASE("on a device a router's gradient and losses agree with the CPU's") {
  for (const RouterShape& shape : shapes) {
    for (const Dtype dtype : compute_dtypes) {
      INFO(shape.n_experts << " experts, " << name_of(dtype));
      RoutingValues values(shape);
      Values dweights(3, Dtype::f32, {shape.n_tokens, shape.top_k});
      Values labels(0, Dtype::i32, {shape.n_tokens});
      Values dlogits(0, dtype, {shape.n_tokens, shape.n_experts});
      Values losses(0, Dtype::f32, {shape.n_tokens, 2});
      for (std::int64_t t = 0; t < shape.n_tokens; ++t) {
        labels.view.as<std::int32_t>()[t] = t % 5 == 3 ? ignored_label : 1;
      }
      const RouterWeights weights{.balance = 0.01f, .z = 0.002f};
      Twice::check(
          [&](Twice& of, cudaStream_t device, Queue* cpu) {
            const Routing routing = values.in(of);
            const MutView dw = of(dweights), l = of(labels), dx = of(dlogits), out = of(losses);
            if (cpu) {
              route(*cpu, shape, routing);
              router_backward(*cpu, shape, routing, dw, l, weights, 0.5f, dx, out);
            } else {
              cuda::route(device, shape, routing);
              cuda::router_backward(device, shape, routing, dw, l, weights, 0.5f, dx, out);
            }
          },
          values.with({&dweights, &labels, &dlogits, &losses}), {&dlogits, &losses},
          2 * rounding_of(dtype));
    }
  }
}

TEST_CASE("on a device rows go to the experts and come back with the CPU's bits") {
  for (const RouterShape& shape : shapes) {
    for (const Dtype dtype : compute_dtypes) {
      for (const std::int64_t width : {21, 64}) {
        INFO(shape.n_experts << " experts, " << name_of(dtype) << ", width " << width);
        RoutingValues values(shape);
        Values x(3, dtype, {shape.n_tokens, width}), grouped(4, dtype, {shape.n_rows(), width});
        Values y(0, dtype, {shape.n_tokens, width}), dx(0, dtype, {shape.n_tokens, width});
        Twice::check(
            [&](Twice& of, cudaStream_t device, Queue* cpu) {
              const Routing r = values.in(of);
              const MutView a = of(x), g = of(grouped), b = of(y), d = of(dx);
              if (cpu) {
                route(*cpu, shape, r);
                group_rows(*cpu, shape, r, a, g);
                combine_rows(*cpu, shape, r, Weigh::yes, g, b);
                combine_rows(*cpu, shape, r, Weigh::no, g, d);
              } else {
                cuda::route(device, shape, r);
                cuda::group_rows(device, shape, r, a, g);
                cuda::combine_rows(device, shape, r, Weigh::yes, g, b);
                cuda::combine_rows(device, shape, r, Weigh::no, g, d);
              }
            },
            values.with({&x, &grouped, &y, &dx}), {&grouped, &y, &dx}, 0);
      }
    }
  }
}

TEST_CASE(
    "on a device the gradients of rows and of visits' weights agree with the CPU's, in place") {
  for (const RouterShape& shape : shapes) {
    for (const Dtype dtype : compute_dtypes) {
      for (const std::int64_t width : {21, 64}) {
        INFO(shape.n_experts << " experts, " << name_of(dtype) << ", width " << width);
        RoutingValues values(shape);
        Values rows(3, dtype, {shape.n_rows(), width}), dy(4, dtype, {shape.n_tokens, width});
        Values dweights(5, Dtype::f32, {shape.n_tokens, shape.top_k});
        Twice::check(
            [&](Twice& of, cudaStream_t device, Queue* cpu) {
              const Routing r = values.in(of);
              const MutView x = of(rows), d = of(dy), dw = of(dweights);
              if (cpu) {
                route(*cpu, shape, r);
                combine_rows_backward(*cpu, shape, r, x, d, x, dw);
              } else {
                cuda::route(device, shape, r);
                cuda::combine_rows_backward(device, shape, r, x, d, x, dw);
              }
            },
            values.with({&rows, &dy, &dweights}), {&rows, &dweights}, 2e-6);
      }
    }
  }
}

TEST_CASE("on a device the rows of several ranks are ordered by expert and go back") {
  // Ranks' rows of 3 experts; they begin anywhere in a rank's own rows.
  const std::vector<std::int32_t> bound{4, 6, 6, 9, 0, 0, 5, 5, 2, 3, 5, 12};
  constexpr std::int64_t n_ranks = 3, n_bounds = 4, n_places = 25;  // of which 20 are used
  for (const Dtype dtype : compute_dtypes) {
    for (const std::int64_t width : {21, 64}) {
      INFO(name_of(dtype) << ", width " << width);
      Values bounds(0, Dtype::i32, {n_ranks, n_bounds}), begins(0, Dtype::i32, {n_bounds});
      Values order(0, Dtype::i32, {n_places});
      Values by_rank(1, dtype, {n_places, width}), by_expert(2, dtype, {n_places, width});
      Values back(3, dtype, {n_places, width});
      std::copy(bound.begin(), bound.end(), bounds.view.as<std::int32_t>());
      Twice::check(
          [&](Twice& of, cudaStream_t device, Queue* cpu) {
            const MutView b = of(bounds), s = of(begins), o = of(order), x = of(by_rank),
                          y = of(by_expert), z = of(back);
            if (cpu) {
              order_by_expert(*cpu, b, s, o);
              rows_by_expert(*cpu, s, o, x, y);
              rows_by_rank(*cpu, s, o, y, z);
            } else {
              cuda::order_by_expert(device, b, s, o);
              cuda::rows_by_expert(device, s, o, x, y);
              cuda::rows_by_rank(device, s, o, y, z);
            }
          },
          {&bounds, &begins, &order, &by_rank, &by_expert, &back},
          {&begins, &order, &by_expert, &back}, 0);
    }
  }
}

namespace {

enum class Cores : bool { plain, tensor };

struct GroupedSizes {
  std::vector<std::int32_t> begins;
  std::int64_t n_rows;  ///< there is room for
  std::int64_t n_in;
  std::int64_t n_out;
};

void check_grouped_linear(const GroupedSizes& sizes, Dtype dtype, Write write,
                          Cores cores = Cores::plain) {
  INFO(name_of(dtype) << (write == Write::add ? ", adding" : ""));
  const std::int64_t n = sizes.n_rows, in = sizes.n_in, out = sizes.n_out;
  const auto n_experts = static_cast<std::int64_t>(sizes.begins.size()) - 1;
  Values begins(0, Dtype::i32, {n_experts + 1});
  std::copy(sizes.begins.begin(), sizes.begins.end(), begins.view.as<std::int32_t>());
  Values x(1, dtype, {n, in}), weight(2, dtype, {n_experts * out, in});
  Values bias(3, Dtype::f32, {n_experts * out});
  Values y(4, dtype, {n, out}), z(5, dtype, {n, out});
  Values dy(6, dtype, {n, out}), dx(7, dtype, {n, in});
  Values dweight(8, Dtype::f32, {n_experts * out, in});
  Values dbias(9, Dtype::f32, {n_experts * out});
  Twice::check(
      [&](Twice& of, cudaStream_t device, Queue* cpu) {
        const MutView s = of(begins), a = of(x), w = of(weight), b = of(bias), c = of(y), f = of(z),
                      d = of(dy), g = of(dx), dw = of(dweight), db = of(dbias);
        if (cpu) {
          grouped_linear_forward(*cpu, s, a, w, b, c);
          grouped_linear_forward(*cpu, s, a, w, View(), f);
          grouped_linear_backward_input(*cpu, s, d, w, write, g);
          grouped_linear_backward_weight(*cpu, s, a, d, write, dw, db);
        } else if (cores == Cores::tensor) {
          cuda::grouped_forward_mma(device, s, a, w, b, c);
          cuda::grouped_backward_input_mma(device, s, d, w, write, g);
          cuda::grouped_backward_weight_mma(device, s, a, d, write, dw);
        } else {
          cuda::grouped_linear_forward(device, s, a, w, b, c);
          cuda::grouped_linear_forward(device, s, a, w, View(), f);
          cuda::grouped_linear_backward_input(device, s, d, w, write, g);
          cuda::grouped_linear_backward_weight(device, s, a, d, write, dw, db);
        }
      },
      {&begins, &x, &weight, &bias, &y, &z, &dy, &dx, &dweight, &dbias},
      cores == Cores::tensor ? std::vector<Values*>{&y, &dx, &dweight}
                             : std::vector<Values*>{&y, &z, &dx, &dweight, &dbias},
      rounding_of(dtype));
}

}  // namespace

TEST_CASE("on a device experts' linear layers agree with the CPU's, forward and backward") {
  const GroupedSizes sizes{.begins = {0, 0, 70, 73, 90}, .n_rows = 97, .n_in = 67, .n_out = 18};
  for (const Dtype dtype : compute_dtypes) {
    for (const Write write : {Write::set, Write::add}) check_grouped_linear(sizes, dtype, write);
  }
  GroupedSizes many{.begins = {0}, .n_rows = 60, .n_in = 5, .n_out = 6};
  for (std::int32_t e = 0; e < 40; ++e) many.begins.push_back(e * e / 30);
  check_grouped_linear(many, Dtype::f32, Write::set);
}

TEST_CASE("on tensor cores experts' linear layers agree with the CPU's, whatever tiles are full") {
  const GroupedSizes large{
      .begins = {0, 0, 130, 133, 140}, .n_rows = 141, .n_in = 40, .n_out = 136};
  const GroupedSizes small{.begins = {0, 3, 3, 36}, .n_rows = 40, .n_in = 136, .n_out = 8};
  check_grouped_linear(large, Dtype::bf16, Write::add, Cores::tensor);
  check_grouped_linear(small, Dtype::bf16, Write::set, Cores::tensor);
  check_grouped_linear(small, Dtype::f16, Write::add, Cores::tensor);
  CHECK(cuda::has_grouped_mma(80, Dtype::f16, 40, 136));
  CHECK_FALSE(cuda::has_grouped_mma(75, Dtype::f16, 40, 136));
  CHECK_FALSE(cuda::has_grouped_mma(90, Dtype::f32, 40, 136));
  CHECK_FALSE(cuda::has_grouped_mma(90, Dtype::bf16, 40, 135));
}
