#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include <optional>
#include <utility>

#include "tensor/cuda/ops.h"
#include "tensor/cuda/products.h"
#include "tensor/ops/attention.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/linear.h"
#include "tests/cuda/twice.h"

using namespace llm;
using namespace llm::test;

TEST_CASE("on a device linear layers agree with the CPU's, by plain kernels and by the library") {
  for (const Dtype dtype : compute_dtypes) {
    for (const auto& [write, has_library] : {std::pair{Write::set, false},
                                             {Write::add, false},
                                             {Write::set, true},
                                             {Write::add, true}}) {
      INFO(name_of(dtype) << (has_library ? ", library" : ", plain"));
      constexpr std::int64_t n = 70, in = 35, out = 18;
      Values x(1, dtype, {n, in}), weight(2, dtype, {out, in}), bias(3, Dtype::f32, {out});
      Values y(0, dtype, {n, out}), dy(4, dtype, {n, out}), dx(5, dtype, {n, in});
      Values dweight(6, Dtype::f32, {out, in}), dbias(7, Dtype::f32, {out});
      Values whole(0, Dtype::f32, {n, out});
      Twice::check(
          [&](Twice& of, cudaStream_t device, Queue* cpu) {
            const MutView a = of(x), w = of(weight), b = of(bias), c = of(y), d = of(dy),
                          g = of(dx), dw = of(dweight), db = of(dbias), f = of(whole);
            if (cpu) {
              linear_forward(*cpu, a, w, b, c);
              linear_forward(*cpu, a, w, View(), f);
              linear_backward_input(*cpu, d, w, write, g);
              linear_backward_weight(*cpu, a, d, write, dw, db);
            } else {
              std::optional<cuda::Products> products;
              if (has_library) products.emplace(device, std::size_t{1} << 16);
              cuda::linear_forward(device, a, w, b, c);
              cuda::linear_forward(device, a, w, View(), f);
              cuda::linear_backward_input(device, d, w, write, g);
              cuda::linear_backward_weight(device, a, d, write, dw, db);
            }
          },
          {&x, &weight, &bias, &y, &dy, &dx, &dweight, &dbias, &whole},
          {&y, &dx, &dweight, &dbias, &whole}, rounding_of(dtype));
    }
  }
}

TEST_CASE("on a device rotary positions and attention agree with the CPU's, with dropout too") {
  for (const Dtype dtype : compute_dtypes) {
    for (const float p : {0.0f, 0.25f}) {
      INFO(name_of(dtype) << ", dropout " << p);
      const AttentionShape shape{
          .batch = 2, .seq_len = 5, .n_heads = 4, .n_kv_heads = 2, .head_dim = 6, .first_head = 1};
      const std::int64_t n = shape.n_tokens();
      const std::int64_t out_width = shape.n_heads * shape.head_dim;
      const Dropout dropout{.p = p, .seed = 3, .step = 2, .first_sample = 5, .layer = 1, .site = 1};
      Values qkv(1, dtype, {n, shape.qkv_width()}), dqkv(0, dtype, {n, shape.qkv_width()});
      Values out(0, dtype, {n, out_width}), dout(2, dtype, {n, out_width});
      Values sums(0, Dtype::f32, {shape.batch, shape.n_heads, shape.seq_len});
      Twice::check(
          [&](Twice& of, cudaStream_t device, Queue* cpu) {
            const MutView x = of(qkv), dx = of(dqkv), y = of(out), dy = of(dout), s = of(sums);
            if (cpu) {
              rope_forward(*cpu, shape, 1e4f, x);
              attention_forward(*cpu, shape, x, dropout, y, s);
              attention_backward(*cpu, shape, x, y, s, dy, dropout, dx);
              rope_backward(*cpu, shape, 1e4f, dx);
            } else {
              cuda::rope(device, shape, 1e4f, false, x);
              cuda::attention_forward(device, shape, x, dropout, y, s);
              cuda::attention_backward(device, shape, x, y, s, dy, dropout, dx);
              cuda::rope(device, shape, 1e4f, true, dx);
            }
          },
          {&qkv, &dqkv, &out, &dout, &sums}, {&qkv, &out, &sums, &dqkv}, 2 * rounding_of(dtype));
    }
  }
}

TEST_CASE(
    "on a device the loss and its gradient agree with the CPU's, with ignored labels and NaN") {
  for (const auto& [dtype, n_classes] :
       {std::pair{Dtype::f32, 301}, {Dtype::f32, 304}, {Dtype::bf16, 304}, {Dtype::f16, 301}}) {
    INFO(name_of(dtype) << ", " << n_classes << " classes");
    constexpr std::int64_t n = 9;
    Values logits(1, Dtype::f32, {n, n_classes}), dlogits(2, dtype, {n, n_classes});
    Values losses(0, Dtype::f32, {n}), alone(0, Dtype::f32, {n}), labels(0, Dtype::i32, {n});
    for (std::int64_t r = 0; r < n; ++r) {
      labels.view.as<std::int32_t>()[r] =
          r % 4 == 3 ? ignored_label : static_cast<std::int32_t>(r * 33);
    }
    for (std::int64_t v = 0; v < n_classes; ++v) {  // some logits that count nothing
      if (v % 33 != 0 && v % 5 < 2) logits.view.as<float>()[n_classes + v] = -INFINITY;
    }
    logits.view.as<float>()[4 * n_classes + 7] = NAN;
    Values in_place(0, Dtype::f32, {n, n_classes});
    std::memcpy(in_place.view.data(), logits.view.data(),
                static_cast<std::size_t>(logits.view.n_bytes()));
    Twice::check(
        [&](Twice& of, cudaStream_t device, Queue* cpu) {
          const MutView x = of(logits), dx = of(dlogits), l = of(losses), a = of(alone),
                        t = of(labels), p = of(in_place);
          if (cpu) {
            cross_entropy_forward(*cpu, x, t, a);
            cross_entropy_forward_backward(*cpu, t, 0.5f, x, dx, l);
            cross_entropy_forward_backward(*cpu, t, 0.5f, p, p, l);
          } else {
            cuda::cross_entropy(device, t, 0, x, MutView(), a);
            cuda::cross_entropy(device, t, 0.5f, x, dx, l);
            cuda::cross_entropy(device, t, 0.5f, p, p, l);
          }
        },
        {&logits, &dlogits, &losses, &alone, &labels, &in_place},
        {&dlogits, &losses, &alone, &in_place}, rounding_of(dtype));
  }
}

TEST_CASE("on a device the loss of a vocabulary in parts agrees with the CPU's on every rank") {
  constexpr std::int64_t n = 5, n_columns = 40, n_classes = 100;
  const std::array<VocabularyPart, 4> parts{{{0, 40, n_classes},
                                             {40, 40, n_classes},
                                             {80, 20, n_classes},
                                             {100, 0, n_classes}}};  // the last two have padding
  for (const Dtype dtype : compute_dtypes) {
    INFO(name_of(dtype));
    Values logits(1, Dtype::f32, {4 * n, n_columns}), dlogits(2, dtype, {4 * n, n_columns});
    Values all(0, Dtype::f32, {4, n, 2}), losses(0, Dtype::f32, {4, n}), alone(0, Dtype::f32, {n});
    Values labels(0, Dtype::i32, {n});
    for (std::int64_t r = 0; r < n; ++r) {
      labels.view.as<std::int32_t>()[r] =
          r == 3 ? ignored_label : static_cast<std::int32_t>(r * 24);
    }
    Twice::check(
        [&](Twice& of, cudaStream_t device, Queue* cpu) {
          const MutView x = of(logits), dx = of(dlogits), a = of(all), l = of(losses),
                        o = of(alone), t = of(labels);
          for (std::int64_t rank = 0; rank < 4; ++rank) {
            const MutView own = part(x, rank * n * n_columns, {n, n_columns});
            const MutView sums = part(a, rank * n * 2, {n, 2});
            const VocabularyPart& p = parts[static_cast<std::size_t>(rank)];
            cpu ? cross_entropy_statistics(*cpu, own, t, p, sums)
                : cuda::cross_entropy_statistics(device, own, t, p, sums);
          }
          for (std::int64_t rank = 0; rank < 4; ++rank) {
            const MutView own = part(x, rank * n * n_columns, {n, n_columns});
            const MutView down = part(dx, rank * n * n_columns, {n, n_columns});
            const MutView loss = part(l, rank * n, {n});
            const VocabularyPart& p = parts[static_cast<std::size_t>(rank)];
            if (cpu) {
              cross_entropy_of_parts(*cpu, a, t, p, 0.5f, own, down, loss);
              cross_entropy_of_parts(*cpu, a, t, p, 0.5f, own, MutView(), o);
            } else {
              cuda::cross_entropy_of_parts(device, a, t, p, 0.5f, own, down, loss);
              cuda::cross_entropy_of_parts(device, a, t, p, 0.5f, own, MutView(), o);
            }
          }
        },
        {&logits, &dlogits, &all, &losses, &alone, &labels}, {&dlogits, &losses, &alone},
        rounding_of(dtype));
  }
}
