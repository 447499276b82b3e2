#include <catch2/catch.hpp>
#include <cmath>
#include <utility>
#include <vector>

#include "tensor/cuda/ops.h"
#include "tensor/ops/elementwise.h"
#include "tests/cuda/twice.h"

using namespace llm;
using namespace llm::test;

namespace {

/// Rows of whole packs, and others.
const std::vector<std::pair<Dtype, std::int64_t>> dtypes_and_widths{
    {Dtype::f32, 19},  {Dtype::f32, 24}, {Dtype::bf16, 19},
    {Dtype::bf16, 24}, {Dtype::f16, 19}, {Dtype::f16, 24}};

}  // namespace

TEST_CASE("on a device copies, conversions, fills and additions have the CPU's bits") {
  for (const auto& [from, width] : dtypes_and_widths) {
    for (const Dtype to : compute_dtypes) {
      INFO(name_of(from) << " to " << name_of(to) << ", width " << width);
      Values x(1, from, {37, width});
      Values y(2, to, {37, width});
      Twice::check(
          [&](Twice& of, cudaStream_t device, Queue* cpu) {
            const MutView a = of(x);
            const MutView b = of(y);
            cpu ? convert(*cpu, a, b) : cuda::convert(device, a, b);
          },
          {&x, &y}, {&y}, 0);
      Values sum(3, to, {37, width});
      Twice::check(
          [&](Twice& of, cudaStream_t device, Queue* cpu) {
            const MutView a = of(x);
            const MutView b = of(sum);
            cpu ? add(*cpu, a, b) : cuda::add(device, a, b);
          },
          {&x, &sum}, {&sum}, 0);
    }
    Values bias(4, Dtype::f32, {width});
    Values y(5, from, {37, width});
    Values z(6, from, {37, width});
    Twice::check(
        [&](Twice& of, cudaStream_t device, Queue* cpu) {
          const MutView a = of(bias);
          const MutView b = of(y);
          const MutView c = of(z);
          cpu ? fill(*cpu, 0.3f, b) : cuda::fill(device, 0.3f, b);
          cpu ? add_rows(*cpu, a, b) : cuda::add_rows(device, a, b);
          cpu ? copy(*cpu, b, c) : cuda::copy(device, b, c);
        },
        {&bias, &y, &z}, {&y, &z}, 0);
  }
}

TEST_CASE("on a device activations and gated units agree with the CPU's") {
  for (const auto& [dtype, width] : dtypes_and_widths) {
    for (const Activation f :
         {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::relu}) {
      INFO(name_of(dtype) << ", width " << width << ", activation " << static_cast<int>(f));
      Values x(1, dtype, {9, width}), up(2, dtype, {9, width}), dy(3, dtype, {9, width});
      Values y(0, dtype, {9, width}), dx(0, dtype, {9, width}), z(0, dtype, {9, width});
      Values dgate(0, dtype, {9, width}), dup(0, dtype, {9, width});
      Twice::check(
          [&](Twice& of, cudaStream_t device, Queue* cpu) {
            const MutView a = of(x), b = of(up), c = of(dy), out = of(y), d = of(dx), e = of(z),
                          g = of(dgate), h = of(dup);
            if (cpu) {
              activation_forward(*cpu, f, a, out);
              activation_backward(*cpu, f, a, c, d);
              gated_forward(*cpu, f, a, b, e);
              gated_backward(*cpu, f, a, b, c, g, h);
            } else {
              cuda::activation_forward(device, f, a, out);
              cuda::activation_backward(device, f, a, c, d);
              cuda::gated_forward(device, f, a, b, e);
              cuda::gated_backward(device, f, a, b, c, g, h);
            }
          },
          {&x, &up, &dy, &y, &dx, &z, &dgate, &dup}, {&y, &dx, &z, &dgate, &dup},
          rounding_of(dtype));
    }
  }
}

TEST_CASE("on a device AdamW agrees with the CPU's, and sums of squares have its bits") {
  const AdamwStep step{.lr = 1e-2f,
                       .beta1 = 0.9f,
                       .beta2 = 0.95f,
                       .epsilon = 1e-8f,
                       .weight_decay = 0.1f,
                       .t = 3,
                       .grad_scale = 0.7f};
  for (const std::int64_t n : {1, 255, 5000, 12'288}) {
    for (const Dtype dtype : compute_dtypes) {
      INFO(n << " elements, copy in " << name_of(dtype));
      Values grads(1, Dtype::f32, {n}), w(2, Dtype::f32, {n}), m(3, Dtype::f32, {n});
      Values v(4, Dtype::f32, {n}), rounded(5, dtype, {n});
      for (std::int64_t i = 0; i < n; ++i) v.view.as<float>()[i] = std::fabs(v[i]);
      Twice::check(
          [&](Twice& of, cudaStream_t device, Queue* cpu) {
            const MutView a = of(grads), b = of(w), c = of(m), d = of(v), e = of(rounded);
            cpu ? adamw(*cpu, step, a, b, c, d, e) : cuda::adamw(device, step, a, b, c, d, e);
          },
          {&grads, &w, &m, &v, &rounded}, {&w, &m, &v, &rounded}, rounding_of(dtype));
    }
    const std::int64_t n_chunks = (n + norm_chunk_elements - 1) / norm_chunk_elements;
    const Values x(6, Dtype::f32, {n});
    const Values cpu_sums(0, Dtype::f64, {n_chunks});
    const Values device_sums(0, Dtype::f64, {n_chunks});
    Queue queue;
    sum_of_squares(queue, x, cpu_sums);
    queue.finish();
    for (std::uint64_t seed = 0; seed < n_seeds; ++seed) {
      DeviceRig rig(seed);
      const MutView sums = rig.upload(device_sums);
      cuda::sum_of_squares(rig.stream, rig.upload(x), sums);
      rig.download(sums, device_sums);
      for (std::int64_t c = 0; c < n_chunks; ++c) {
        REQUIRE(device_sums.view.as<double>()[c] == cpu_sums.view.as<double>()[c]);
      }
    }
  }
}

TEST_CASE("on a device dropout has the CPU's bits, whatever rows a rank has") {
  for (const Dtype dtype : compute_dtypes) {
    for (const std::int64_t width : {1, 7, 64}) {
      for (const bool has_residual : {true, false}) {
        INFO(name_of(dtype) << ", width " << width);
        const Dropout of_layer{.p = 0.3f,
                               .seed = 9,
                               .step = 4,
                               .first_sample = 11,
                               .first_row = 3,
                               .layer = 2,
                               .site = 1};
        Values x(1, dtype, {17, width}), residual(2, dtype, {17, width}), y(0, dtype, {17, width});
        Twice::check(
            [&](Twice& of, cudaStream_t device, Queue* cpu) {
              const MutView a = of(x), b = of(residual), c = of(y);
              const View added = has_residual ? View(b) : View();
              cpu ? dropout_forward(*cpu, of_layer, 5, a, added, c)
                  : cuda::dropout(device, of_layer, 5, a, added, c);
            },
            {&x, &residual, &y}, {&y}, 0);
      }
    }
  }
}

TEST_CASE("on a device activations leave rows alone that are not there") {
  for (const auto& [n_there, width] : {std::pair{0, 70}, {5, 70}, {5, 72}, {9, 72}}) {
    INFO(n_there << " rows of " << width);
    constexpr Dtype dtype = Dtype::bf16;
    Values x(1, dtype, {9, width}), dy(2, dtype, {9, width}), count(0, Dtype::i32, {1});
    Values y(3, dtype, {9, width}), dx(4, dtype, {9, width}), z(5, dtype, {9, width});
    Values dgate(6, dtype, {9, width}), dup(7, dtype, {9, width});
    count.view.as<std::int32_t>()[0] = n_there;
    Twice::check(
        [&](Twice& of, cudaStream_t device, Queue* cpu) {
          const MutView a = of(x), b = of(dy), c = of(count), d = of(y), e = of(dx), f = of(z),
                        g = of(dgate), h = of(dup);
          constexpr auto silu = Activation::silu;
          if (cpu) {
            activation_forward(*cpu, silu, a, d, c);
            activation_backward(*cpu, silu, a, b, e, c);
            gated_forward(*cpu, silu, a, b, f, c);
            gated_backward(*cpu, silu, a, b, b, g, h, c);
          } else {
            cuda::activation_forward(device, silu, a, d, c);
            cuda::activation_backward(device, silu, a, b, e, c);
            cuda::gated_forward(device, silu, a, b, f, c);
            cuda::gated_backward(device, silu, a, b, b, g, h, c);
          }
        },
        {&x, &dy, &count, &y, &dx, &z, &dgate, &dup}, {&y, &dx, &z, &dgate, &dup},
        rounding_of(dtype));
  }
}

TEST_CASE("on a device positions are added as on the CPU, from any row on") {
  for (const auto& [dtype, width] : dtypes_and_widths) {
    INFO(name_of(dtype) << ", width " << width);
    Values positions(1, dtype, {9, width}), y(2, dtype, {12, width});
    Twice::check(
        [&](Twice& of, cudaStream_t device, Queue* cpu) {
          const MutView p = of(positions), x = of(y);
          cpu ? add_positions(*cpu, p, 8, 5, x) : cuda::add_positions(device, p, 8, 5, x);
        },
        {&positions, &y}, {&y}, 0);
  }
}

TEST_CASE("on a device embeddings have the CPU's bits, forward and backward, of parts too") {
  for (const auto& [dtype, width] : dtypes_and_widths) {
    for (const bool is_part : {false, true}) {
      INFO(name_of(dtype) << ", width " << width << (is_part ? ", part" : ""));
      constexpr std::int64_t n = 24, seq_len = 8, n_rows = 13;
      const TablePart part{is_part ? 6 : 0, is_part ? n_rows : 0};
      const std::int64_t n_own = is_part ? 5 : n_rows;
      Values tokens(0, Dtype::i32, {n});
      for (std::int64_t i = 0; i < n; ++i) {
        tokens.view.as<std::int32_t>()[i] = static_cast<std::int32_t>(i * 7 % n_rows);
      }
      Values table(1, dtype, {n_own, width}), positions(2, dtype, {seq_len, width});
      Values y(0, dtype, {n, width}), dy(3, dtype, {n, width});
      Values dtable(4, Dtype::f32, {n_own, width}), dpositions(5, Dtype::f32, {seq_len, width});
      Twice::check(
          [&](Twice& of, cudaStream_t device, Queue* cpu) {
            const MutView t = of(tokens), w = of(table), p = of(positions), out = of(y), d = of(dy),
                          dw = of(dtable), dp = of(dpositions);
            if (cpu) {
              if (is_part) {
                embedding_part_forward(*cpu, t, w, part.first_row, part.n_rows, out);
                add_positions(*cpu, p, seq_len, 0, out);
              } else {
                embedding_forward(*cpu, t, w, p, seq_len, out);
              }
              embedding_backward(*cpu, t, d, seq_len, Write::add, dw, dp, part);
            } else {
              cuda::embedding_forward(device, t, w, p, seq_len, out, part);
              cuda::embedding_backward(device, t, d, seq_len, dw, dp, part);
            }
          },
          {&tokens, &table, &positions, &y, &dy, &dtable, &dpositions}, {&y, &dtable, &dpositions},
          0);
    }
  }
}

TEST_CASE("on a device a table's gradient has the CPU's bits, many tokens of one row too") {
  constexpr std::int64_t n = 1104, seq_len = 16, width = 40, n_rows = 70'000, n_own = 301;
  const TablePart part{66'000, n_rows};
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    INFO(name_of(dtype));
    Values tokens(0, Dtype::i32, {n}), dy(1, dtype, {n, width});
    Values dtable(2, Dtype::f32, {n_own, width}), dpositions(3, Dtype::f32, {seq_len, width});
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t any = i * i * 7 % n_rows;
      const std::int64_t own = part.first_row + any % n_own;
      tokens.view.as<std::int32_t>()[i] = static_cast<std::int32_t>(i % 3 == 0 ? part.first_row + 5
                                                                    : i % 3 == 1 ? own
                                                                                 : any);
    }
    Twice::check(
        [&](Twice& of, cudaStream_t device, Queue* cpu) {
          const MutView t = of(tokens), d = of(dy), dw = of(dtable), dp = of(dpositions);
          if (cpu) {
            embedding_backward(*cpu, t, d, seq_len, Write::add, dw, dp, part);
          } else {
            cuda::embedding_backward(device, t, d, seq_len, dw, dp, part);
          }
        },
        {&tokens, &dy, &dtable, &dpositions}, {&dtable, &dpositions}, 0);
  }
}

TEST_CASE("on a device the norms agree with the CPU's, forward and backward, in every order") {
  for (const Dtype dtype : compute_dtypes) {
    for (const bool is_rms : {false, true}) {
      for (const Write write : {Write::set, Write::add}) {
        for (const auto& [n, width] : {std::pair{6, 300}, std::pair{70, 24}, std::pair{3, 21}}) {
          INFO(name_of(dtype) << (is_rms ? ", RMS" : "") << ", " << n << " rows of " << width);
          Values x(1, dtype, {n, width}), weight(2, Dtype::f32, {width}),
              bias(3, Dtype::f32, {width});
          Values y(0, dtype, {n, width}), mean(0, Dtype::f32, {n}), rstd(0, Dtype::f32, {n});
          Values dy(4, dtype, {n, width}), dx(5, dtype, {n, width});
          Values dweight(6, Dtype::f32, {width}), dbias(7, Dtype::f32, {width});
          Twice::check(
              [&](Twice& of, cudaStream_t device, Queue* cpu) {
                const MutView a = of(x), w = of(weight), b = of(bias), out = of(y), m = of(mean),
                              s = of(rstd), d = of(dy), g = of(dx), dw = of(dweight),
                              db = of(dbias);
                if (cpu && is_rms) {
                  rms_norm_forward(*cpu, a, w, 1e-5f, out, s);
                  rms_norm_backward(*cpu, a, w, s, d, write, g, write, dw);
                } else if (cpu) {
                  layer_norm_forward(*cpu, a, w, b, 1e-5f, out, m, s);
                  layer_norm_backward(*cpu, a, w, m, s, d, write, g, write, dw, db);
                } else if (is_rms) {
                  cuda::rms_norm_forward(device, a, w, 1e-5f, out, s);
                  cuda::rms_norm_backward(device, a, w, s, d, write, g, write, dw);
                } else {
                  cuda::layer_norm_forward(device, a, w, b, 1e-5f, out, m, s);
                  cuda::layer_norm_backward(device, a, w, m, s, d, write, g, write, dw, db);
                }
              },
              {&x, &weight, &bias, &y, &mean, &rstd, &dy, &dx, &dweight, &dbias},
              {&y, &rstd, &dx, &dweight, &dbias}, rounding_of(dtype));
        }
      }
    }
  }
}
