#include "tensor/cuda/ops.h"
#include "tests/cuda/twice.h"

using namespace llm;
using namespace llm::test;

TEST_CASE("on a device a token's attention to those kept agrees with the CPU's") {
  for (const std::int64_t head_dim : {6, 64}) {
    for (const std::int64_t n_before : {0, 3, 37}) {
      INFO("head_dim " << head_dim << ", " << n_before << " tokens before");
      constexpr std::int64_t capacity = 40;
      const AttentionShape before{
          .batch = 1, .seq_len = n_before, .n_heads = 4, .n_kv_heads = 2, .head_dim = head_dim};
      AttentionShape one = before;
      one.seq_len = 1;
      Values prompt(1, Dtype::f32, {n_before + 1, before.qkv_width()});
      Values qkv(2, Dtype::f32, {1, one.qkv_width()});
      Values keys(3, Dtype::f32, {2, capacity, head_dim});
      Values values(4, Dtype::f32, {2, capacity, head_dim});
      Values out(5, Dtype::f32, {1, 4 * head_dim});
      Twice::check(
          [&](Twice& of, cudaStream_t device, Queue* cpu) {
            const MutView all = of(prompt), x = of(qkv), k = of(keys), v = of(values), y = of(out);
            const MutView p = part(all, 0, {n_before, before.qkv_width()});
            if (cpu) {
              keep_keys_values(*cpu, before, p, 0, k, v);
              rope_step(*cpu, one, 1e4f, n_before, x);
              keep_keys_values(*cpu, one, x, n_before, k, v);
              attention_step(*cpu, one, x, k, v, n_before + 1, y);
            } else {
              cuda::keep_keys_values(device, before, p, 0, k, v);
              cuda::rope_step(device, one, 1e4f, n_before, x);
              cuda::keep_keys_values(device, one, x, n_before, k, v);
              cuda::attention_step(device, one, x, k, v, n_before + 1, y);
            }
          },
          {&prompt, &qkv, &keys, &values, &out}, {&qkv, &keys, &values, &out}, 2e-6);
    }
  }
}
