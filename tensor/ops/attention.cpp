#include "tensor/ops/attention.h"

#include "tensor/cuda/issue.h"
#include "tensor/ops/attention_kernels.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/elementwise_kernels.h"
#include "tensor/ops/matmul.h"
#include "tensor/ops/scratch.h"
#include "tensor/ops/tiles.h"

namespace llm {
namespace {

void check(const AttentionShape& s, const View& qkv) {
  CHECK_CONTRACT(s.batch >= 0 && s.seq_len > 0 && s.head_dim > 0, "attention has a shape");
  CHECK_CONTRACT(s.n_kv_heads > 0 && s.n_heads % s.n_kv_heads == 0,
                 "n_heads is a multiple of n_kv_heads");
  expect(qkv, "qkv", compute_dtype(qkv, "qkv"), {s.n_tokens(), s.qkv_width()});
}

void rope(Queue& queue, const char* name, const AttentionShape& shape, float theta, float direction,
          const MutView& qkv) {
  check(shape, qkv);
  CHECK_CONTRACT(shape.head_dim % 2 == 0, "rotary positions turn pairs: head_dim is even");
  if (issued(queue, name, &cuda::OpCalls::rope, shape, theta, direction < 0, qkv)) return;
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
                  .row = MutElements(qkv) + r * shape.qkv_width()});
    }
  });
}

/// The views of one call.
struct Forward {
  AttentionShape shape;
  Dropout dropout;
  View qkv;
  MutView out, log_sum_exp;
};

struct Backward {
  AttentionShape shape;
  Dropout dropout;
  View qkv, out, log_sum_exp, dout;
  MutView dqkv;
};

/// Query heads of one sample that share a key head, copied out of f32, bf16 or f16 into f32 rows of
/// their queries, the key and the value, side by side as if they were all that there is. The copy
/// pays in f32 too: rows that lie apart by the whole width fall into few sets of the caches.
class GroupCopy {
 public:
  GroupCopy(const AttentionShape& whole, std::int64_t sample, Range heads)
      : whole_(whole),
        group_{1, whole.seq_len, heads.size(), 1, whole.head_dim, 0},
        sample_(sample),
        heads_(heads),
        kv_head_(heads.begin / HeadColumns(whole).group_size()) {}
  const AttentionShape& shape() const { return group_; }
  std::int64_t out_width() const { return group_.n_heads * group_.head_dim; }

  void read_qkv(Elements qkv, float* to) const {
    for_parts([&](std::int64_t from, std::int64_t at, std::int64_t width) {
      fast::convert_rows(qkv + from, whole_.qkv_width(), group_.seq_len, width, to + at,
                         group_.qkv_width());
    });
  }
  void write_qkv(const float* from, MutElements qkv) const {
    for_parts([&](std::int64_t to, std::int64_t at, std::int64_t width) {
      fast::convert_rows(from + at, group_.qkv_width(), group_.seq_len, width, qkv + to,
                         whole_.qkv_width());
    });
  }
  void read_out(Elements out, float* to) const {
    fast::convert_rows(out + out_begin(), whole_out_width(), group_.seq_len, out_width(), to,
                       out_width());
  }
  void write_out(const float* from, MutElements out) const {
    fast::convert_rows(from, out_width(), group_.seq_len, out_width(), out + out_begin(),
                       whole_out_width());
  }
  /// Where the statistics of the group's first head begin.
  std::int64_t statistics() const {
    return (sample_ * whole_.n_heads + heads_.begin) * whole_.seq_len;
  }
  Dropout dropout(Dropout whole) const {
    whole.first_sample += sample_;
    return whole;
  }

 private:
  std::int64_t whole_out_width() const { return whole_.n_heads * whole_.head_dim; }
  std::int64_t out_begin() const {
    return sample_ * whole_.seq_len * whole_out_width() + heads_.begin * whole_.head_dim;
  }
  /// run(where the part begins in qkv, where in a row of the group, its width)
  template <typename Run>
  void for_parts(const Run& run) const {
    const HeadColumns columns(whole_);
    const std::int64_t row = sample_ * whole_.seq_len * whole_.qkv_width();
    run(row + columns.query(heads_.begin), 0, out_width());
    run(row + columns.key(kv_head_), out_width(), group_.head_dim);
    run(row + columns.value(kv_head_), out_width() + group_.head_dim, group_.head_dim);
  }

  AttentionShape whole_, group_;
  std::int64_t sample_;
  Range heads_;
  std::int64_t kv_head_;
};

/// Scratch of one thread.
float* copy_scratch(std::int64_t n) {
  static thread_local Scratch<float> scratch;
  return at_least(scratch, n);
}
/// Elements that the backward's copies take, which are more than the forward's.
std::int64_t copied_elements(const AttentionShape& group) {
  return 2 * group.seq_len * (group.qkv_width() + group.n_heads * group.head_dim);
}

void forward_tile(const Forward& v, std::int64_t sample, std::int64_t head) {
  const GroupCopy group(v.shape, sample, {head, head + 1});
  const std::int64_t seq_len = v.shape.seq_len;
  float* qkv = copy_scratch(seq_len * (group.shape().qkv_width() + group.out_width()));
  float* out = qkv + seq_len * group.shape().qkv_width();
  group.read_qkv(v.qkv, qkv);
  fast::attention_forward(
      {group.shape(), qkv, group.dropout(v.dropout), out,
       v.log_sum_exp.as<float>() + group.statistics(), v.shape.first_head + head},
      0, 0);
  group.write_out(out, v.out);
}

void backward_tile(const Backward& v, std::int64_t sample, std::int64_t kv_head) {
  const std::int64_t group_size = HeadColumns(v.shape).group_size();
  const Range heads{kv_head * group_size, (kv_head + 1) * group_size};
  const GroupCopy group(v.shape, sample, heads);
  const std::int64_t qkv_elements = v.shape.seq_len * group.shape().qkv_width();
  const std::int64_t out_elements = v.shape.seq_len * group.out_width();
  float* qkv = copy_scratch(copied_elements(group.shape()));
  float* dqkv = qkv + qkv_elements;
  float* out = dqkv + qkv_elements;
  float* dout = out + out_elements;
  group.read_qkv(v.qkv, qkv);
  group.read_out(v.out, out);
  group.read_out(v.dout, dout);
  fast::attention_backward({group.shape(), qkv, out, v.log_sum_exp.as<float>() + group.statistics(),
                            dout, group.dropout(v.dropout), dqkv, v.shape.first_head + heads.begin},
                           0, 0);
  group.write_qkv(dqkv, v.dqkv);
}

/// Whether the products of a call are bf16's own. Not of a thread's luck: both follow from the
/// shape, the dtype and the process's kernel.
bool multiplies_bf16(const AttentionShape& shape, Dtype dtype) {
  return dtype == Dtype::bf16 && product_kernel() == ProductKernel::bf16 &&
         shape.head_dim % 16 == 0;
}

}  // namespace

OpScratch attention_scratch(Dtype dtype, AttentionShape shape) {
  if (multiplies_bf16(shape, dtype)) return {.thread_bytes = bf16::attention_scratch_bytes(shape)};
  const AttentionShape group{1, shape.seq_len, HeadColumns(shape).group_size(), 1, shape.head_dim};
  const auto element = static_cast<std::int64_t>(sizeof(float));
  return {.thread_bytes = copied_elements(group) * element + fast::attention_scratch_bytes(group)};
}

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
  expect(out, "out", qkv.dtype(), {shape.n_tokens(), shape.n_heads * shape.head_dim});
  expect(log_sum_exp, "log_sum_exp", {shape.batch, shape.n_heads, shape.seq_len});
  if (issued(queue, "attention_forward", &cuda::OpCalls::attention_forward, shape, qkv, dropout,
             out, log_sum_exp))
    return;
  const Forward views{shape, dropout, qkv, out, log_sum_exp};
  const bool in_bf16 = multiplies_bf16(shape, qkv.dtype());
  queue.tiles("attention_forward", shape.batch * shape.n_heads, [=](std::int64_t tile) {
    const std::int64_t sample = tile / shape.n_heads;
    const std::int64_t head = tile % shape.n_heads;
    if (!in_bf16) return forward_tile(views, sample, head);
    bf16::attention_forward(
        {shape, qkv.as<Bf16>(), dropout, out.as<Bf16>(), log_sum_exp.as<float>(), shape.first_head},
        sample, head);
  });
}

void attention_backward(Queue& queue, AttentionShape shape, View qkv, View out, View log_sum_exp,
                        View dout, const Dropout& dropout, MutView dqkv) {
  check(shape, qkv);
  CHECK_CONTRACT(dropout.p >= 0 && dropout.p < 1, "dropout.p is in [0, 1)");
  expect(out, "out", qkv.dtype(), {shape.n_tokens(), shape.n_heads * shape.head_dim});
  expect(dout, "dout", qkv.dtype(), out.shape());
  expect(log_sum_exp, "log_sum_exp", {shape.batch, shape.n_heads, shape.seq_len});
  expect(dqkv, "dqkv", qkv.dtype(), qkv.shape());
  if (issued(queue, "attention_backward", &cuda::OpCalls::attention_backward, shape, qkv, out,
             log_sum_exp, dout, dropout, dqkv))
    return;
  const Backward views{shape, dropout, qkv, out, log_sum_exp, dout, dqkv};
  const bool in_bf16 = multiplies_bf16(shape, qkv.dtype());
  queue.tiles("attention_backward", shape.batch * shape.n_kv_heads, [=](std::int64_t tile) {
    const std::int64_t sample = tile / shape.n_kv_heads;
    const std::int64_t kv_head = tile % shape.n_kv_heads;
    if (!in_bf16) return backward_tile(views, sample, kv_head);
    bf16::attention_backward({shape, qkv.as<Bf16>(), out.as<Bf16>(), log_sum_exp.as<float>(),
                              dout.as<Bf16>(), dropout, dqkv.as<Bf16>(), shape.first_head},
                             sample, kv_head);
  });
}

}  // namespace llm
