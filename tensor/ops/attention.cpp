#include "tensor/ops/attention.h"

#include "tensor/ops/attention_kernels.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/tiles.h"

namespace llm {
namespace {

void check(const AttentionShape& s, const View& qkv) {
  CHECK_CONTRACT(s.batch >= 0 && s.seq_len > 0 && s.head_dim > 0, "attention has a shape");
  CHECK_CONTRACT(s.n_kv_heads > 0 && s.n_heads % s.n_kv_heads == 0,
                 "n_heads is a multiple of n_kv_heads");
  expect(qkv, "qkv", {s.n_tokens(), s.qkv_width()});
}

void rope(Queue& queue, const char* name, const AttentionShape& shape, float theta, float direction,
          const MutView& qkv) {
  check(shape, qkv);
  CHECK_CONTRACT(shape.head_dim % 2 == 0, "rotary positions turn pairs: head_dim is even");
  const std::int64_t n_turned = shape.n_heads + shape.n_kv_heads;
  const RowCut cut = cut_by_bytes(shape.n_tokens(), 8 * n_turned * shape.head_dim);
  queue.tiles(name, cut.n_tiles(), [=](std::int64_t tile) {
    const RopeTable table = rope_table(shape, theta);
    const Range rows = cut.rows(tile);
    for (std::int64_t r = rows.begin; r < rows.end; ++r) {
      const std::int64_t entry = r % shape.seq_len * (shape.head_dim / 2);
      fast::rope({.n_heads = n_turned,
                  .head_dim = shape.head_dim,
                  .cos = table.cos + entry,
                  .sin = table.sin + entry,
                  .direction = direction,
                  .row = qkv.as<float>() + r * shape.qkv_width()});
    }
  });
}

}  // namespace

void rope_forward(Queue& queue, AttentionShape shape, float theta, MutView qkv) {
  rope(queue, "rope_forward", shape, theta, 1, qkv);
}

void rope_backward(Queue& queue, AttentionShape shape, float theta, MutView dqkv) {
  rope(queue, "rope_backward", shape, theta, -1, dqkv);
}

void attention_forward(Queue& queue, AttentionShape shape, View qkv, const Dropout& dropout,
                       MutView out, MutView log_sum_exp) {
  check(shape, qkv);
  CHECK_CONTRACT(dropout.p >= 0 && dropout.p < 1, "dropout.p is in [0, 1)");
  expect(out, "out", {shape.n_tokens(), shape.n_heads * shape.head_dim});
  expect(log_sum_exp, "log_sum_exp", {shape.batch, shape.n_heads, shape.seq_len});
  const AttentionForward call{shape, qkv.as<float>(), dropout, out.as<float>(),
                              log_sum_exp.as<float>()};
  queue.tiles("attention_forward", shape.batch * shape.n_heads, [=](std::int64_t tile) {
    fast::attention_forward(call, tile / shape.n_heads, tile % shape.n_heads);
  });
}

void attention_backward(Queue& queue, AttentionShape shape, View qkv, View out, View log_sum_exp,
                        View dout, const Dropout& dropout, MutView dqkv) {
  check(shape, qkv);
  CHECK_CONTRACT(dropout.p >= 0 && dropout.p < 1, "dropout.p is in [0, 1)");
  expect(out, "out", {shape.n_tokens(), shape.n_heads * shape.head_dim});
  expect(dout, "dout", out.shape());
  expect(log_sum_exp, "log_sum_exp", {shape.batch, shape.n_heads, shape.seq_len});
  expect(dqkv, "dqkv", qkv.shape());
  const AttentionBackward call{
      shape,   qkv.as<float>(), out.as<float>(), log_sum_exp.as<float>(), dout.as<float>(),
      dropout, dqkv.as<float>()};
  queue.tiles("attention_backward", shape.batch * shape.n_kv_heads, [=](std::int64_t tile) {
    fast::attention_backward(call, tile / shape.n_kv_heads, tile % shape.n_kv_heads);
  });
}

}  // namespace llm
