#include "tensor/cuda/attention_mma.h"

#include <algorithm>
#include <vector>

#include "tensor/cuda/mma.h"
#include "tests/cuda/twice.h"

using namespace llm;
using namespace llm::test;

namespace {

/// c (16, 16) = a (16, 16) b^T, or a b, by one warp on tiles in shared memory.
template <typename T>
void products_kernel(const T* a, const T* b, bool is_transposed, float* c) {
  const cuda::SharedTile<T> a_tile{cuda::shared<T>(), 24};
  const cuda::SharedTile<T> b_tile{cuda::shared<T>() + 16 * 24, 24};
  for (unsigned i = threadIdx.x; i < 256; i += 32) {
    *a_tile.at(static_cast<int>(i / 16), static_cast<int>(i % 16)) = a[i];
    *b_tile.at(static_cast<int>(i / 16), static_cast<int>(i % 16)) = b[i];
  }
  __syncthreads();
  const cuda::LeftTile left = cuda::left_at(a_tile, 0, 0);
  const cuda::RightPair right =
      is_transposed ? cuda::right_of_rows(b_tile, 0, 0) : cuda::right_of_columns(b_tile, 0, 0);
  cuda::SumTile sums[2];
  cuda::multiply<T>(sums[0], left, right.first);
  cuda::multiply<T>(sums[1], left, right.second);
  const int lane = static_cast<int>(threadIdx.x);
  for (int tile = 0; tile < 2; ++tile) {
    for (int i = 0; i < 4; ++i) {
      c[cuda::row_in_sums(lane, i) * 16 + 8 * tile + cuda::column_in_sums(lane, i)] =
          sums[tile].x[i];
    }
  }
}

/// c (16, 16) = a (16, 16) b, with a from sums: of a times the unit matrix.
template <typename T>
void chained_kernel(const T* a, const T* b, const T* unit, float* c) {
  const cuda::SharedTile<T> tiles[] = {{cuda::shared<T>(), 24},
                                       {cuda::shared<T>() + 16 * 24, 24},
                                       {cuda::shared<T>() + 32 * 24, 24}};
  const T* const matrices[] = {a, b, unit};
  for (unsigned i = threadIdx.x; i < 256; i += 32) {
    for (int m = 0; m < 3; ++m) {
      *tiles[m].at(static_cast<int>(i / 16), static_cast<int>(i % 16)) = matrices[m][i];
    }
  }
  __syncthreads();
  const cuda::LeftTile left = cuda::left_at(tiles[0], 0, 0);
  const cuda::RightPair ones = cuda::right_of_rows(tiles[2], 0, 0);
  cuda::SumTile same[2];
  cuda::multiply<T>(same[0], left, ones.first);
  cuda::multiply<T>(same[1], left, ones.second);
  const cuda::RightPair right = cuda::right_of_columns(tiles[1], 0, 0);
  cuda::SumTile sums[2];
  cuda::multiply<T>(sums[0], cuda::left_of<T>(same[0], same[1]), right.first);
  cuda::multiply<T>(sums[1], cuda::left_of<T>(same[0], same[1]), right.second);
  const int lane = static_cast<int>(threadIdx.x);
  for (int tile = 0; tile < 2; ++tile) {
    for (int i = 0; i < 4; ++i) {
      c[cuda::row_in_sums(lane, i) * 16 + 8 * tile + cuda::column_in_sums(lane, i)] =
          sums[tile].x[i];
    }
  }
}

double largest_error(const Values& a, const Values& b, bool is_transposed, const Values& c) {
  double error = 0;
  for (std::int64_t i = 0; i < 16; ++i) {
    for (std::int64_t j = 0; j < 16; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < 16; ++k) {
        sum += double{a[16 * i + k]} * double{b[is_transposed ? 16 * j + k : 16 * k + j]};
      }
      error = std::max(error, std::fabs(sum - double{c[16 * i + j]}));
    }
  }
  return error;
}

struct Inputs {
  explicit Inputs(Dtype dtype, const AttentionShape& shape)
      : qkv(1, dtype, {shape.n_tokens(), shape.qkv_width()}),
        dqkv(0, dtype, {shape.n_tokens(), shape.qkv_width()}),
        out(0, dtype, {shape.n_tokens(), shape.n_heads * shape.head_dim}),
        dout(2, dtype, {shape.n_tokens(), shape.n_heads * shape.head_dim}),
        sums(0, Dtype::f32, {shape.batch, shape.n_heads, shape.seq_len}) {}
  Values qkv, dqkv, out, dout, sums;
};

void compare_with_cpu(Dtype dtype, const AttentionShape& shape, float p) {
  INFO(name_of(dtype) << ", " << shape.seq_len << " positions, heads of " << shape.head_dim
                      << ", dropout " << p);
  const Dropout dropout{.p = p, .seed = 3, .step = 2, .first_sample = 5, .layer = 1, .site = 1};
  Inputs in(dtype, shape);
  Twice::check(
      [&](Twice& of, cudaStream_t device, Queue* cpu) {
        const MutView x = of(in.qkv), dx = of(in.dqkv), y = of(in.out), dy = of(in.dout),
                      s = of(in.sums);
        if (cpu) {
          attention_forward(*cpu, shape, x, dropout, y, s);
          attention_backward(*cpu, shape, x, y, s, dy, dropout, dx);
        } else {
          cuda::attention_forward_mma(device, shape, x, dropout, y, s);
          cuda::attention_backward_mma(device, shape, x, y, s, dy, dropout, dx);
        }
      },
      {&in.qkv, &in.dqkv, &in.out, &in.dout, &in.sums}, {&in.out, &in.sums, &in.dqkv},
      2 * rounding_of(dtype));
}

}  // namespace

TEST_CASE("tiles of tensor cores are loaded, multiplied and chained as their lanes hold them") {
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    with_type_of(dtype, [&](auto type) {
      using T = decltype(type);
      if constexpr (!std::is_same_v<T, float>) {
        const Values a(1, dtype, {16, 16}), b(2, dtype, {16, 16}), c(0, Dtype::f32, {16, 16});
        const Values unit(0, dtype, {16, 16});
        for (std::int64_t i = 0; i < 256; ++i) unit.view.as<T>()[i] = round_to<T>(i % 17 == 0);
        DeviceRig rig(1);
        const MutView x = rig.upload(a), y = rig.upload(b), e = rig.upload(unit);
        const MutView z = rig.upload(c);
        const cuda::Grid grid{1, 32, 3 * 16 * 24 * sizeof(T)};
        for (const bool is_transposed : {true, false}) {
          cuda::launch(rig.stream, grid, products_kernel<T>, x.as<T>(), y.as<T>(), is_transposed,
                       z.as<float>());
          rig.download(z, c);
          CHECK(largest_error(a, b, is_transposed, c) < 1e-5);
        }
        cuda::launch(rig.stream, grid, chained_kernel<T>, x.as<T>(), y.as<T>(), e.as<T>(),
                     z.as<float>());
        rig.download(z, c);
        CHECK(largest_error(a, b, false, c) < 1e-5);
      }
    });
  }
}

TEST_CASE("attention on tensor cores agrees with the CPU's, whatever tiles are full") {
  for (const std::int64_t seq_len : {1, 64, 70}) {
    compare_with_cpu(
        Dtype::bf16,
        {.batch = 1, .seq_len = seq_len, .n_heads = 2, .n_kv_heads = 1, .head_dim = 64}, 0);
  }
  compare_with_cpu(Dtype::f16,
                   {.batch = 2, .seq_len = 18, .n_heads = 1, .n_kv_heads = 1, .head_dim = 64}, 0);
  compare_with_cpu(Dtype::f16,
                   {.batch = 1, .seq_len = 67, .n_heads = 1, .n_kv_heads = 1, .head_dim = 128}, 0);
}

TEST_CASE("attention on tensor cores has equal bits in every order of blocks and threads") {
  const AttentionShape shape{
      .batch = 1, .seq_len = 70, .n_heads = 2, .n_kv_heads = 1, .head_dim = 64};
  const Inputs in(Dtype::bf16, shape);
  std::vector<float> first;
  for (std::uint64_t seed = 0; seed < n_seeds; ++seed) {
    DeviceRig rig(seed);
    const MutView x = rig.upload(in.qkv), dx = rig.upload(in.dqkv), y = rig.upload(in.out),
                  dy = rig.upload(in.dout), s = rig.upload(in.sums);
    cuda::attention_forward_mma(rig.stream, shape, x, {}, y, s);
    cuda::attention_backward_mma(rig.stream, shape, x, y, s, dy, {}, dx);
    rig.download(y, in.out);
    rig.download(dx, in.dqkv);
    std::vector<float> all;
    for (const Values* const values : {&in.out, &in.dqkv}) {
      for (std::int64_t i = 0; i < values->view.n_elements(); ++i) all.push_back((*values)[i]);
    }
    if (first.empty()) first = all;
    CHECK(all == first);
  }
}

TEST_CASE("attention on tensor cores drops what the CPU's drops") {
  for (const std::int64_t head_dim : {64, 128}) {
    compare_with_cpu(Dtype::f16,
                     {.batch = 2,
                      .seq_len = 19,
                      .n_heads = 2,
                      .n_kv_heads = 1,
                      .head_dim = head_dim,
                      .first_head = 3},
                     0.25f);
  }
}

TEST_CASE("tensor cores have attention of low dtypes and heads of 64 or 128, from sm_80 on") {
  using cuda::has_attention_mma;
  CHECK(has_attention_mma(80, Dtype::bf16, 64));
  CHECK(has_attention_mma(90, Dtype::f16, 128));
  CHECK_FALSE(has_attention_mma(75, Dtype::f16, 64));
  CHECK_FALSE(has_attention_mma(0, Dtype::bf16, 64));
  CHECK_FALSE(has_attention_mma(90, Dtype::f32, 64));
  CHECK_FALSE(has_attention_mma(90, Dtype::bf16, 96));
}
