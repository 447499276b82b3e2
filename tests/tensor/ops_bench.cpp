// Speed of every op at the sizes of a 10M-parameter model's step: 8 samples of 256 tokens, width
// 384, 6 heads, 6 layers, 256 ids. Prints each op's time, rate and share of a step beside the
// machine's peak.
#include <fmt/format.h>
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "src/base/philox.h"
#include "tensor/ops/activation.h"
#include "tensor/ops/adamw.h"
#include "tensor/ops/attention.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/dropout.h"
#include "tensor/ops/elementwise.h"
#include "tensor/ops/embedding.h"
#include "tensor/ops/linear.h"
#include "tensor/ops/matmul.h"
#include "tensor/ops/norm.h"
#include "tensor/storage.h"

namespace {

using namespace llm;

constexpr std::int64_t B = 8, T = 256, C = 384, H = 6, F = 1536, V = 256, L = 6, n = B * T;
constexpr std::int64_t n_parameters = 10'800'000;

/// The thread's CPU time: another process on the machine changes it little.
double seconds_now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// The median of several runs, in seconds.
double median_of(const std::function<void()>& run) {
  run();
  std::vector<double> times;
  const double begin = seconds_now();
  while (times.size() < 5 || (seconds_now() - begin < 0.15 && times.size() < 200)) {
    const double start = seconds_now();
    run();
    times.push_back(seconds_now() - start);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                   times.end());
  return times[times.size() / 2];
}

/// The best of several runs, in seconds.
double best_of(const std::function<void()>& run) {
  double best = 1e9;
  for (int i = 0; i < 20; ++i) {
    const double start = seconds_now();
    run();
    best = std::min(best, seconds_now() - start);
  }
  return best;
}

// Written as instructions: compilers move the sums between registers, which halves the rate.
__attribute__((target("avx512f"))) double fma_avx512(std::int64_t n_rounds) {
  __m512 sums[12];
  for (auto& sum : sums) sum = _mm512_set1_ps(1);
  const __m512 factor = _mm512_set1_ps(0.999f);
  for (std::int64_t i = 0; i < n_rounds; ++i) {
    for (auto& sum : sums) asm volatile("vfmadd213ps %1, %1, %0" : "+v"(sum) : "v"(factor));
  }
  for (auto& sum : sums) sums[0] = _mm512_add_ps(sums[0], sum);
  float lane[16];
  _mm512_storeu_ps(lane, sums[0]);
  return static_cast<double>(lane[0]);
}

__attribute__((target("avx2,fma"))) double fma_avx2(std::int64_t n_rounds) {
  __m256 sums[12];
  for (auto& sum : sums) sum = _mm256_set1_ps(1);
  const __m256 factor = _mm256_set1_ps(0.999f);
  for (std::int64_t i = 0; i < n_rounds; ++i) {
    for (auto& sum : sums) asm volatile("vfmadd213ps %1, %1, %0" : "+x"(sum) : "x"(factor));
  }
  float lane[8];
  for (auto& sum : sums) sums[0] = _mm256_add_ps(sums[0], sum);
  _mm256_storeu_ps(lane, sums[0]);
  return static_cast<double>(lane[0]);
}

/// GFLOP/s of independent multiply-adds on one thread; 0 where the machine has no FMA.
double peak_gflops() {
  constexpr std::int64_t n_rounds = 2'000'000;
  volatile double sink = 0;
  if (__builtin_cpu_supports("avx512f")) {
    const double seconds = best_of([&] { sink = fma_avx512(n_rounds); });
    return 2.0 * 12 * 16 * n_rounds / seconds / 1e9;
  }
  if (__builtin_cpu_supports("fma")) {
    const double seconds = best_of([&] { sink = fma_avx2(n_rounds); });
    return 2.0 * 12 * 8 * n_rounds / seconds / 1e9;
  }
  return 0;
}

struct Row {
  std::string name;
  double flops;
  double bytes;
  double per_step;  ///< how often a step of the model runs it
  std::function<void(Queue&)> put;
};

/// Runs rows in one compute dtype.
class Bench {
 public:
  explicit Bench(Dtype dtype) : dtype_(dtype) {
    fmt::print("\nin {}\n{:34} {:>12} {:>15} {:>11} {:>10} {:>9}\n", name_of(dtype), "op", "time",
               "rate", "cut", "longest", "ms/step");
  }
  Dtype dtype() const { return dtype_; }
  double element_bytes() const { return static_cast<double>(size_of(dtype_)); }

  /// In the compute dtype.
  MutView matrix(Shape shape) {
    const MutView x = floats(shape);
    if (dtype_ == Dtype::f32) return x;
    storages_.emplace_back(shape.n_elements() * 2);
    const MutView y = storages_.back().view(dtype_, shape);
    Queue queue;
    convert(queue, x, y);
    queue.finish();
    return y;
  }

  MutView floats(Shape shape) {
    storages_.emplace_back(std::max<std::int64_t>(1, shape.n_elements()) * 4);
    const MutView view = storages_.back().view(Dtype::f32, shape);
    for (std::int64_t i = 0; i < shape.n_elements(); ++i) {
      view.as<float>()[i] = uniform_from(philox_at(7, static_cast<std::uint64_t>(i))[0]) - 0.5f;
    }
    return view;
  }

  MutView ids(Shape shape) {
    storages_.emplace_back(shape.n_elements() * 4);
    const MutView view = storages_.back().view(Dtype::i32, shape);
    for (std::int64_t i = 0; i < shape.n_elements(); ++i) {
      view.as<std::int32_t>()[i] =
          static_cast<std::int32_t>(philox_at(9, static_cast<std::uint64_t>(i))[0] % V);
    }
    return view;
  }

  void measure(const Row& row) {
    Queue queue;
    std::int64_t n_tiles = 0;
    double tile_ms_max = 0;
    row.put(queue);
    queue.finish();
    queue.observe([&](const char*, std::int64_t begin_ns, std::int64_t end_ns) {
      ++n_tiles;
      tile_ms_max = std::max(tile_ms_max, static_cast<double>(end_ns - begin_ns) / 1e6);
    });
    row.put(queue);
    queue.finish();
    queue.observe(nullptr);
    const double seconds = median_of([&] {
      row.put(queue);
      queue.finish();
    });
    const double step_ms = seconds * 1e3 * row.per_step;
    (row.flops > 0 ? product_ms_ : other_ms_) += step_ms;
    if (row.per_step > 0) parts_.emplace_back(row.name, step_ms);
    fmt::print("{:34} {:9.3f} ms {:7.1f} {} {:5} tiles {:7.2f} ms {:9.2f}\n", row.name,
               seconds * 1e3, (row.flops > 0 ? row.flops : row.bytes) / seconds / 1e9,
               row.flops > 0 ? "GFLOP/s" : "GB/s   ", n_tiles, tile_ms_max, step_ms);
  }

  /// What a step spends where: the op and its ms.
  using Parts = std::vector<std::pair<std::string, double>>;
  const Parts& parts() const { return parts_; }

  void summary() const {
    fmt::print("{:34} {:9.1f} ms products and attention, {:.1f} ms the rest, {:.1f} ms together\n",
               "one step of the model", product_ms_, other_ms_, product_ms_ + other_ms_);
  }

 private:
  Dtype dtype_;
  std::deque<Storage> storages_;
  double product_ms_ = 0;
  double other_ms_ = 0;
  Parts parts_;
};

bool library_multiplies(Dtype dtype) {
  return dtype == Dtype::f32 || (dtype == Dtype::bf16 && has_fast_bf16());
}

/// y = x W^T in one call of the library, whose rate is the ops' to reach.
void raw_product(const View& x, const View& w, const MutView& y) {
  const std::int64_t n_in = x.shape()[1], n_out = y.shape()[1];
  if (x.dtype() == Dtype::f32) {
    matmul({false, true, n, n_out, n_in, 1, x.as<float>(), n_in, w.as<float>(), n_in, 0,
            y.as<float>(), n_out});
  } else {
    matmul({false, true, n, n_out, n_in, x.as<Bf16>(), n_in, w.as<Bf16>(), n_in, nullptr, false, y,
            n_out});
  }
}

void linears(Bench& bench, const std::string& name, std::int64_t n_in, std::int64_t n_out,
             double per_step) {
  const MutView x = bench.matrix({n, n_in}), y = bench.matrix({n, n_out});
  const MutView w = bench.matrix({n_out, n_in}), bias = bench.floats({n_out});
  const MutView dw = bench.floats({n_out, n_in});
  const double flops = 2.0 * n * static_cast<double>(n_in * n_out);
  if (library_multiplies(x.dtype())) {
    bench.measure({name + " raw product", flops, 0, 0,
                   [=](Queue& queue) { queue.work("raw", [=] { raw_product(x, w, y); }); }});
  }
  bench.measure({name + " forward", flops, 0, per_step,
                 [=](Queue& queue) { linear_forward(queue, x, w, bias, y); }});
  bench.measure({name + " backward input", flops, 0, per_step,
                 [=](Queue& queue) { linear_backward_input(queue, y, w, Write::set, x); }});
  bench.measure({name + " backward weight", flops, 0, per_step,
                 [=](Queue& queue) { linear_backward_weight(queue, x, y, Write::set, dw, bias); }});
}

void attentions(Bench& bench) {
  const AttentionShape shape{B, T, H, H, C / H};
  const MutView qkv = bench.matrix({n, 3 * C}), dqkv = bench.matrix({n, 3 * C});
  const MutView out = bench.matrix({n, C}), dout = bench.matrix({n, C});
  const MutView statistic = bench.floats({B, H, T});
  const double half = 2.0 * B * H * (C / H) * static_cast<double>(T * (T + 1)) / 2;
  bench.measure({"attention forward (causal flops)", 2 * half, 0, L,
                 [=](Queue& queue) { attention_forward(queue, shape, qkv, {}, out, statistic); }});
  bench.measure({"attention backward", 5 * half, 0, L, [=](Queue& queue) {
                   attention_backward(queue, shape, qkv, out, statistic, dout, {}, dqkv);
                 }});
  const Dropout dropout{.p = 0.1f};
  bench.measure({"attention forward, dropout", 2 * half, 0, 0, [=](Queue& queue) {
                   attention_forward(queue, shape, qkv, dropout, out, statistic);
                 }});
  bench.measure({"rope (not in the step)", 0, 4 * bench.element_bytes() * n * C, 0,
                 [=](Queue& queue) { rope_forward(queue, shape, 10000, qkv); }});
}

void activations(Bench& bench) {
  const MutView x = bench.matrix({n, F}), y = bench.matrix({n, F}), up = bench.matrix({n, F});
  const MutView z = bench.matrix({n, F}), dx = bench.matrix({n, F});
  const double bytes = bench.element_bytes() * n * F;
  const std::pair<Activation, const char*> kinds[] = {{Activation::gelu_tanh, "gelu_tanh"},
                                                      {Activation::gelu, "gelu"},
                                                      {Activation::silu, "silu"},
                                                      {Activation::relu, "relu"}};
  for (const auto& [f, name] : kinds) {
    const double per_step = f == Activation::gelu_tanh ? L : 0;
    bench.measure({std::string(name) + " forward", 0, 2 * bytes, per_step,
                   [=, f = f](Queue& queue) { activation_forward(queue, f, x, y); }});
    bench.measure({std::string(name) + " backward", 0, 3 * bytes, per_step,
                   [=, f = f](Queue& queue) { activation_backward(queue, f, x, y, dx); }});
  }
  bench.measure({"silu gate forward", 0, 3 * bytes, 0,
                 [=](Queue& queue) { gated_forward(queue, Activation::silu, x, up, y); }});
  bench.measure({"silu gate backward", 0, 5 * bytes, 0,
                 [=](Queue& queue) { gated_backward(queue, Activation::silu, x, up, y, z, dx); }});
}

void norms(Bench& bench) {
  const MutView x = bench.matrix({n, C}), y = bench.matrix({n, C}), dx = bench.matrix({n, C});
  const MutView w = bench.floats({C}), bias = bench.floats({C}), dw = bench.floats({C});
  const MutView db = bench.floats({C}), mean = bench.floats({n}), rstd = bench.floats({n});
  const double bytes = bench.element_bytes() * n * C;
  bench.measure({"layer_norm forward", 0, 2 * bytes, 2 * L + 1, [=](Queue& queue) {
                   layer_norm_forward(queue, x, w, bias, 1e-5f, y, mean, rstd);
                 }});
  bench.measure({"layer_norm backward", 0, 4 * bytes, 2 * L + 1, [=](Queue& queue) {
                   layer_norm_backward(queue, x, w, mean, rstd, y, Write::add, dx, Write::set, dw,
                                       db);
                 }});
  bench.measure({"rms_norm forward", 0, 2 * bytes, 0,
                 [=](Queue& queue) { rms_norm_forward(queue, x, w, 1e-5f, y, rstd); }});
  bench.measure({"rms_norm backward", 0, 4 * bytes, 0, [=](Queue& queue) {
                   rms_norm_backward(queue, x, w, rstd, y, Write::add, dx, Write::set, dw);
                 }});
}

void the_rest(Bench& bench) {
  const MutView x = bench.matrix({n, C}), y = bench.matrix({n, C}), z = bench.matrix({n, C});
  const double bytes = bench.element_bytes() * n * C;
  bench.measure({"add (residual)", 0, 3 * bytes, 2 * L, [=](Queue& q) { add(q, x, y); }});
  const Dropout dropout{.p = 0.1f};
  bench.measure({"dropout + residual", 0, 3 * bytes, 0,
                 [=](Queue& queue) { dropout_forward(queue, dropout, T, x, z, y); }});
  bench.measure({"dropout backward", 0, 2 * bytes, 0,
                 [=](Queue& queue) { dropout_backward(queue, dropout, T, x, y); }});
  const MutView tokens = bench.ids({n}), table = bench.matrix({V, C}),
                positions = bench.matrix({T, C});
  const MutView dtable = bench.floats({V, C}), dpositions = bench.floats({T, C});
  bench.measure({"embedding forward", 0, 3 * bytes, 1,
                 [=](Queue& queue) { embedding_forward(queue, tokens, table, positions, T, y); }});
  bench.measure({"embedding backward", 0, 5 * bytes, 1, [=](Queue& queue) {
                   embedding_backward(queue, tokens, y, T, Write::set, dtable, dpositions);
                 }});
  const MutView logits = bench.floats({n, V}), losses = bench.floats({n});
  const MutView dlogits = bench.dtype() == Dtype::f32 ? logits : bench.matrix({n, V});
  bench.measure({"cross_entropy, fused gradient", 0, 8.0 * n * V, 1, [=](Queue& queue) {
                   cross_entropy_forward_backward(queue, tokens, 1, logits, dlogits, losses);
                 }});
  const MutView w = bench.floats({n_parameters}), g = bench.floats({n_parameters});
  const MutView m = bench.floats({n_parameters}), v = bench.floats({n_parameters});
  const MutView copy = bench.dtype() == Dtype::f32 ? MutView() : bench.matrix({n_parameters});
  const AdamwStep step{1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1.0f};
  bench.measure({"adamw", 0, 28.0 * n_parameters, 1, [=](Queue& queue) {
                   fill(queue, 0, part(v, 0, {1}));
                   adamw(queue, step, g, w, m, v, copy);
                 }});
  Storage sums((n_parameters / norm_chunk_elements + 1) * 8);
  const MutView chunks = sums.view(Dtype::f64, {n_parameters / norm_chunk_elements + 1});
  bench.measure({"sum_of_squares", 0, 4.0 * n_parameters, 1,
                 [=](Queue& queue) { sum_of_squares(queue, g, chunks); }});
}

/// Every op of a step in one compute dtype.
Bench::Parts step_in(Dtype dtype) {
  Bench bench(dtype);
  linears(bench, "qkv 384-1152", C, 3 * C, L);
  linears(bench, "projection 384-384", C, C, L);
  linears(bench, "up 384-1536", C, F, L);
  linears(bench, "down 1536-384", F, C, L);
  linears(bench, "head 384-256", C, V, 1);
  attentions(bench);
  activations(bench);
  norms(bench);
  the_rest(bench);
  bench.summary();
  return bench.parts();
}

}  // namespace

int main() {
  fmt::print("peak of multiply-adds on one thread: {:.1f} GFLOP/s in f32; products of bf16: {}\n",
             peak_gflops(), has_fast_bf16() ? "by bf16 instructions" : "by copies in f32");
  const Bench::Parts f32 = step_in(Dtype::f32), bf16 = step_in(Dtype::bf16),
                     f16 = step_in(Dtype::f16);
  fmt::print("\n{:34} {:>9} {:>9} {:>9}\n", "ms of a step", "f32", "bf16", "f16");
  for (std::size_t i = 0; i < f32.size(); ++i) {
    fmt::print("{:34} {:9.2f} {:9.2f} {:9.2f}\n", f32[i].first, f32[i].second, bf16[i].second,
               f16[i].second);
  }
}
