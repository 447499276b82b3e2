#include "tensor/ops/scratch.h"

#include <algorithm>
#include <thread>

#include "tensor/ops/attention.h"
#include "tensor/ops/linear.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

namespace {

/// The most that `put`'s ops hold beside what is held now, on a thread that has no scratch yet.
template <typename Put>
std::int64_t most_held(const Put& put) {
  const std::int64_t before = op_scratch_bytes();
  restart_op_scratch_peak();
  std::thread([&] {
    Queue queue;
    put(queue);
    queue.finish();
  }).join();
  CHECK(op_scratch_bytes() == before);  // a thread's goes with it
  return op_scratch_peak_bytes() - before;
}

}  // namespace

TEST_CASE("what a linear layer holds beside its views is what linear_scratch says") {
  const std::int64_t sizes[][3] = {{300, 64, 200}, {700, 600, 520}, {90, 4096, 2100}};
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (const auto& [n, n_in, n_out] : sizes) {
      INFO(name_of(dtype) << ", " << n << " rows, " << n_in << " to " << n_out);
      const Tensor x({n, n_in}, dtype), w({n_out, n_in}, dtype), y({n, n_out}, dtype), b({n_out});
      const Tensor dw({n_out, n_in});
      const std::int64_t held = most_held([&](Queue& queue) {
        linear_forward(queue, x, w, b, y);
        linear_backward_input(queue, y, w, Write::set, x);
        linear_backward_weight(queue, x, y, Write::set, dw, b);
      });
      const OpScratch said = linear_scratch(dtype, n, n_in, n_out);
      CHECK(held <= said.shared_bytes + said.thread_bytes);
      CHECK(held >= (said.shared_bytes + said.thread_bytes) / 2);
    }
  }
}

TEST_CASE("what attention holds beside its views is what attention_scratch says") {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    for (const std::int64_t head_dim : {12, 64}) {
      const AttentionShape shape{2, 150, 4, 2, head_dim};
      const Tensor qkv({300, shape.qkv_width()}, dtype), out({300, 4 * head_dim}, dtype);
      const Tensor log_sum({2, 4, 150}), dqkv({300, shape.qkv_width()}, dtype);
      const std::int64_t held = most_held([&](Queue& queue) {
        attention_forward(queue, shape, qkv, {}, out, log_sum);
        attention_backward(queue, shape, qkv, out, log_sum, out, {}, dqkv);
      });
      INFO(name_of(dtype) << ", heads of " << head_dim);
      CHECK(held == attention_scratch(dtype, shape).thread_bytes);
    }
  }
}
