// That the check of kernels can fail: kernels that are wrong, or do nothing, are found.
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "tensor/cuda/ops.h"
#include "tests/cuda/emulated_module.h"
#include "tests/gpu/report.h"

namespace llm {
namespace {

/// The module with other kernels.
template <typename Change>
gpu::Report report_of(const Change& change) {
  const test::EmulatedModule emulated(1);
  cuda::Module changed = cuda::module();
  change(changed.ops);
  cuda::use_module(&changed);
  gpu::Report report;
  gpu::check_kernels({.is_small = true}, report);
  cuda::use_module(llm_cuda_module());
  return report;
}

/// The first words of a report's names.
std::set<std::string> ops_of(const std::vector<std::string>& names) {
  std::set<std::string> ops;
  for (const std::string& name : names) ops.insert(name.substr(0, name.find(' ')));
  return ops;
}

template <typename... Parameters>
void leave_out(void (*&kernel)(cudaStream_t, Parameters...)) {
  kernel = [](cudaStream_t, Parameters...) {};
}

void leave_out_all(cuda::OpCalls& ops) {
  const auto all = [](auto&... kernels) { (leave_out(kernels), ...); };
  auto& [convert, fill, write_numbers, add, add_rows, activation_forward, activation_backward,
         gated_forward, gated_backward, adamw, sum_of_squares, dropout, embedding_forward,
         embedding_backward, add_positions, linear_forward, linear_gelu_tanh, linear_backward_input,
         linear_backward_weight, rope, attention_forward, attention_backward, rope_step,
         keep_keys_values, attention_step, cross_entropy, cross_entropy_statistics,
         cross_entropy_of_parts, route, router_backward, group_rows, combine_rows,
         combine_rows_backward, order_by_expert, rows_by_expert, rows_by_rank,
         grouped_linear_forward, grouped_linear_backward_input, grouped_linear_backward_weight,
         layer_norm_forward, layer_norm_backward, rms_norm_forward, rms_norm_backward] = ops;
  all(convert, fill, write_numbers, add, add_rows, activation_forward, activation_backward,
      gated_forward, gated_backward, adamw, sum_of_squares, dropout, embedding_forward,
      embedding_backward, add_positions, linear_forward, linear_gelu_tanh, linear_backward_input,
      linear_backward_weight, rope, attention_forward, attention_backward, rope_step,
      keep_keys_values, attention_step, cross_entropy, cross_entropy_statistics,
      cross_entropy_of_parts, route, router_backward, group_rows, combine_rows,
      combine_rows_backward, order_by_expert, rows_by_expert, rows_by_rank, grouped_linear_forward,
      grouped_linear_backward_input, grouped_linear_backward_weight, layer_norm_forward,
      layer_norm_backward, rms_norm_forward, rms_norm_backward);
}

}  // namespace

// Without a routing the experts have no rows, which is all that some of the others would set.
TEST_CASE("the check of kernels finds each op that does nothing") {
  const gpu::Report report = report_of([](cuda::OpCalls& ops) {
    leave_out_all(ops);
    ops.route = cuda::route;
  });
  CHECK(ops_of(report.passed()) == std::set<std::string>{"route"});
  CHECK(report.n_failed() > 100);
  const gpu::Report alone = report_of([](cuda::OpCalls& ops) { leave_out(ops.route); });
  CHECK(ops_of(alone.failed()).count("route") == 1);
}

TEST_CASE("the check of kernels finds ops that are a little wrong, and no others") {
  const gpu::Report report = report_of([](cuda::OpCalls& ops) {
    ops.activation_backward = [](cudaStream_t stream, Activation f, View x, View dy, MutView dx,
                                 View n_rows) {
      const Activation other = f == Activation::gelu_tanh ? Activation::gelu : f;
      cuda::activation_backward(stream, other, x, dy, dx, n_rows);
    };
    ops.dropout = [](cudaStream_t stream, const Dropout& dropout, std::int64_t rows, View x,
                     View residual, MutView out) {
      Dropout other = dropout;
      ++other.layer;
      cuda::dropout(stream, other, rows, x, residual, out);
    };
    ops.adamw = [](cudaStream_t stream, const AdamwStep& step, View grads, MutView weights,
                   MutView m, MutView v, MutView copy) {
      AdamwStep other = step;
      other.beta2 += 1e-5f;
      cuda::adamw(stream, other, grads, weights, m, v, copy);
    };
    ops.linear_forward = [](cudaStream_t stream, View x, View weight, View, MutView y) {
      cuda::linear_forward(stream, x, weight, View(), y);
    };
    ops.attention_backward = [](cudaStream_t stream, AttentionShape shape, View qkv, View out,
                                View log_sum_exp, View dout, const Dropout& dropout, MutView dqkv) {
      Dropout other = dropout;
      other.p += 0.001f;
      cuda::attention_backward(stream, shape, qkv, out, log_sum_exp, dout, other, dqkv);
    };
  });
  CHECK(ops_of(report.failed()) == std::set<std::string>{"activation_backward", "adamw",
                                                         "attention_backward", "dropout_backward",
                                                         "dropout_forward", "linear_forward"});
  CHECK(report.passed().size() > report.failed().size());
}

}  // namespace llm
