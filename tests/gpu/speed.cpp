// How far each kernel is from what the device can do at best: bytes at the rate of a large copy, or
// operations at the rate of a large product of bf16. Times are the device's own, by events.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/philox.h"
#include "tensor/cuda/module.h"
#include "tensor/ops/activation.h"
#include "tensor/ops/adamw.h"
#include "tensor/ops/attention.h"
#include "tensor/ops/cross_entropy.h"
#include "tensor/ops/dropout.h"
#include "tensor/ops/elementwise.h"
#include "tensor/ops/embedding.h"
#include "tensor/ops/linear.h"
#include "tensor/ops/norm.h"
#include "tensor/ops/rounding.h"
#include "tensor/storage.h"
#include "tests/gpu/report.h"
#include "tests/gpu/speed.h"

namespace llm::gpu {
namespace {

constexpr Dtype bf16 = Dtype::bf16;
constexpr Dtype f32 = Dtype::f32;
/// What a kernel reaches at least, in % of its floor.
constexpr double memory_limit = 50;
constexpr double product_limit = 50;
constexpr double attention_limit = 25;

/// Puts numbers drawn at random into x: products of zeros take less power, so they are faster.
void draw(const MutView& x) {
  if (x.dtype() != f32 && x.dtype() != bf16) return;
  constexpr std::int64_t n_drawn = std::int64_t{1} << 16;
  const Storage host = Storage::pinned(n_drawn * 4);
  for (std::int64_t i = 0; i < n_drawn; ++i) {
    const float number = uniform_from(philox_at(1, static_cast<std::uint64_t>(i))[0]) - 0.5f;
    if (x.dtype() == f32) host.view(f32, {n_drawn}).as<float>()[i] = number;
    if (x.dtype() == bf16) host.view(bf16, {n_drawn}).as<Bf16>()[i] = round_to<Bf16>(number);
  }
  Queue queue(Device::cuda);
  const std::int64_t n = x.n_elements();
  std::int64_t n_done = std::min(n, n_drawn);
  copy(queue, host.view(x.dtype(), {n_done}), part(x, 0, {n_done}));
  while (n_done < n) {
    const std::int64_t n_more = std::min(n - n_done, n_done);
    copy(queue, part(x, 0, {n_more}), part(x, n_done, {n_more}));
    n_done += n_more;
  }
  queue.finish();
}

/// Tensors on the device, of random numbers, and how long ops on them take.
class Bench {
 public:
  Bench(const Options& options, Report& report) : options_(options), report_(report) {}
  MutView make(Dtype dtype, Shape shape) {
    const std::int64_t n_bytes = shape.n_elements() * static_cast<std::int64_t>(size_of(dtype));
    const MutView view = storages_.emplace_back(n_bytes, Device::cuda).view(dtype, shape);
    draw(view);
    return view;
  }
  void drop() { storages_.clear(); }
  std::int64_t size(std::int64_t full, std::int64_t small) const {
    return options_.is_small ? small : full;
  }
  double seconds(const std::function<void(Queue&)>& op) {
    return device_seconds(op, options_.is_small ? 1 : 10);
  }
  void memory(const std::string& name, double n_bytes, const std::function<void(Queue&)>& op) {
    percent(name, n_bytes / bytes_per_second, memory_limit, op);
  }
  void flops(const std::string& name, double n, double limit,
             const std::function<void(Queue&)>& op) {
    percent(name, n / flops_per_second, limit, op);
  }

  double bytes_per_second = 0;
  double flops_per_second = 0;

 private:
  void percent(const std::string& name, double floor, double limit,
               const std::function<void(Queue&)>& op) {
    const double taken = seconds(op);
    report_.line(fmt::format("{} ({:.4g} us)", name, 1e6 * taken), 100 * floor / taken,
                 "% of floor", options_.is_small ? Limit{} : at_least(limit));
  }
  const Options& options_;
  Report& report_;
  std::vector<Storage> storages_;
};

void measure_peaks(Bench& bench, Report& report) {
  const std::int64_t n = bench.size(std::int64_t{1} << 28, 1 << 10);
  const MutView x = bench.make(f32, {n});
  const MutView y = bench.make(f32, {n});
  bench.bytes_per_second =
      8 * static_cast<double>(n) / bench.seconds([&](Queue& queue) { copy(queue, x, y); });
  report.line("copy", 1e-9 * bench.bytes_per_second, "GB/s");
  bench.drop();
  bench.flops_per_second = product_flops_per_second(bench.size(8192, 16));
  report.line("largest product bf16", 1e-12 * bench.flops_per_second, "TFLOP/s");
}

void measure_products(Bench& bench, const char* model, std::int64_t n, std::int64_t n_in,
                      std::int64_t n_out) {
  const MutView x = bench.make(bf16, {n, n_in});
  const MutView weight = bench.make(bf16, {n_out, n_in});
  const MutView y = bench.make(bf16, {n, n_out});
  const MutView dweight = bench.make(f32, {n_out, n_in});
  const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(n_in * n_out);
  const std::string name = fmt::format("{} {}x{}x{}", model, n, n_in, n_out);
  bench.flops(name + " forward", flops, product_limit,
              [&](Queue& queue) { linear_forward(queue, x, weight, View(), y); });
  bench.flops(name + " dx", flops, product_limit,
              [&](Queue& queue) { linear_backward_input(queue, y, weight, Write::set, x); });
  bench.flops(name + " dW", flops, product_limit, [&](Queue& queue) {
    linear_backward_weight(queue, x, y, Write::set, dweight, MutView());
  });
  bench.drop();
}

void measure_attention(Bench& bench, const AttentionShape& shape) {
  const MutView qkv = bench.make(bf16, {shape.n_tokens(), shape.qkv_width()});
  const MutView dqkv = bench.make(bf16, {shape.n_tokens(), shape.qkv_width()});
  const std::int64_t width = shape.n_heads * shape.head_dim;
  const MutView out = bench.make(bf16, {shape.n_tokens(), width});
  const MutView sums = bench.make(f32, {shape.batch, shape.n_heads, shape.seq_len});
  // Two products of T x T x head_dim, of which the causal mask leaves half; five in the backward.
  const double flops = 2.0 * static_cast<double>(shape.n_tokens() * shape.seq_len * width);
  const std::string name = fmt::format("attention T {} heads {}/{} of {}", shape.seq_len,
                                       shape.n_heads, shape.n_kv_heads, shape.head_dim);
  bench.flops(name + " forward", flops, attention_limit,
              [&](Queue& queue) { attention_forward(queue, shape, qkv, Dropout{}, out, sums); });
  bench.flops(name + " backward", 2.5 * flops, attention_limit, [&](Queue& queue) {
    attention_backward(queue, shape, qkv, out, sums, out, Dropout{}, dqkv);
  });
  bench.memory(fmt::format("rope T {}", shape.seq_len),
               2.0 * 2 *
                   static_cast<double>(shape.n_tokens() * (shape.n_heads + shape.n_kv_heads) *
                                       shape.head_dim),
               [&](Queue& queue) { rope_forward(queue, shape, 1e4f, qkv); });
  bench.drop();
}

/// Ops whose time is that of their bytes: a row of `width` for each of n tokens.
void measure_rows(Bench& bench, std::int64_t n, std::int64_t width) {
  const MutView x = bench.make(bf16, {n, width});
  const MutView y = bench.make(bf16, {n, width});
  const MutView z = bench.make(bf16, {n, width});
  const MutView dz = bench.make(bf16, {n, width});
  const MutView weight = bench.make(f32, {width});
  const MutView bias = bench.make(f32, {width});
  const MutView mean = bench.make(f32, {n});
  const MutView rstd = bench.make(f32, {n});
  const double one = 2.0 * static_cast<double>(n * width);
  bench.memory("add", 3 * one, [&](Queue& queue) { add(queue, x, y); });
  bench.memory("dropout with residual", 3 * one,
               [&](Queue& queue) { dropout_forward(queue, Dropout{.p = 0.1f}, n, x, y, z); });
  bench.memory("gelu_tanh forward", 2 * one,
               [&](Queue& queue) { activation_forward(queue, Activation::gelu_tanh, x, y); });
  bench.memory("gelu_tanh backward", 3 * one,
               [&](Queue& queue) { activation_backward(queue, Activation::gelu_tanh, x, y, z); });
  bench.memory("swiglu forward", 3 * one,
               [&](Queue& queue) { gated_forward(queue, Activation::silu, x, y, z); });
  bench.memory("swiglu backward", 5 * one,
               [&](Queue& queue) { gated_backward(queue, Activation::silu, x, y, z, dz, z); });
  bench.memory("layer_norm forward", 2 * one, [&](Queue& queue) {
    layer_norm_forward(queue, x, weight, bias, 1e-5f, y, mean, rstd);
  });
  bench.memory("layer_norm backward", 3 * one, [&](Queue& queue) {
    layer_norm_backward(queue, x, weight, mean, rstd, y, Write::set, z, Write::set, weight, bias);
  });
  bench.memory("rms_norm forward", 2 * one,
               [&](Queue& queue) { rms_norm_forward(queue, x, weight, 1e-5f, y, rstd); });
  bench.memory("rms_norm backward", 3 * one, [&](Queue& queue) {
    rms_norm_backward(queue, x, weight, rstd, y, Write::set, z, Write::set, bias);
  });
  bench.drop();
}

void measure_loss(Bench& bench, std::int64_t n, std::int64_t n_classes) {
  const MutView logits = bench.make(f32, {n, n_classes});
  const MutView dlogits = bench.make(bf16, {n, n_classes});
  const MutView labels = bench.make(Dtype::i32, {n});
  const MutView losses = bench.make(f32, {n});
  bench.memory("cross_entropy with gradient", 6.0 * static_cast<double>(n * n_classes),
               [&](Queue& queue) {
                 cross_entropy_forward_backward(queue, labels, 1, logits, dlogits, losses);
               });
  bench.drop();
}

void measure_embedding(Bench& bench, Report& report, std::int64_t n, std::int64_t n_classes,
                       std::int64_t width) {
  const MutView table = bench.make(bf16, {n_classes, width});
  const MutView gradient = bench.make(f32, {n_classes, width});
  const MutView tokens = bench.make(Dtype::i32, {n});
  const MutView y = bench.make(bf16, {n, width});
  // Of one token, over and over: its row comes from the cache, and its gradient's sum is the worst.
  bench.memory("embedding forward", 2.0 * static_cast<double>(n * width),
               [&](Queue& queue) { embedding_forward(queue, tokens, table, View(), n, y); });
  const double taken = bench.seconds([&](Queue& queue) {
    embedding_backward(queue, tokens, y, n, Write::set, gradient, MutView());
  });
  report.line("embedding backward of one token alone", 1e6 * taken, "us");
  bench.drop();
}

void measure_optimizer(Bench& bench, std::int64_t n) {
  const MutView grads = bench.make(f32, {n});
  const MutView weights = bench.make(f32, {n});
  const MutView m = bench.make(f32, {n});
  const MutView v = bench.make(f32, {n});
  const MutView copy = bench.make(bf16, {n});
  const AdamwStep step{.lr = 1e-3f,
                       .beta1 = 0.9f,
                       .beta2 = 0.95f,
                       .epsilon = 1e-8f,
                       .weight_decay = 0.1f,
                       .t = 3,
                       .grad_scale = 1};
  bench.memory("adamw", 30.0 * static_cast<double>(n),
               [&](Queue& queue) { adamw(queue, step, grads, weights, m, v, copy); });
  const MutView sums =
      bench.make(Dtype::f64, {(n + norm_chunk_elements - 1) / norm_chunk_elements});
  bench.memory("sum_of_squares", 4.0 * static_cast<double>(n),
               [&](Queue& queue) { sum_of_squares(queue, grads, sums); });
  bench.drop();
}

}  // namespace

double device_seconds(const std::function<void(Queue&)>& op, int n_runs) {
  const cuda::RuntimeCalls& runtime = cuda::module().runtime;
  const cudaEvent_t begin = runtime.create_event(true);
  const cudaEvent_t end = runtime.create_event(true);
  const auto mark = [&runtime](Queue& queue, cudaEvent_t event) {
    queue.issue("mark", [&runtime, event](cudaStream_t stream) { runtime.record(event, stream); });
  };
  Queue queue(Device::cuda);
  for (int i = 0; i < 3 && n_runs > 1; ++i) op(queue);
  mark(queue, begin);
  for (int i = 0; i < n_runs; ++i) op(queue);
  mark(queue, end);
  queue.finish();
  runtime.is_reached(end);
  const std::int64_t ns = runtime.elapsed_ns(begin, end);
  runtime.destroy_event(begin);
  runtime.destroy_event(end);
  return 1e-9 * static_cast<double>(std::max<std::int64_t>(ns, 1)) / n_runs;
}

double product_flops_per_second(std::int64_t n) {
  const Storage storage(3 * 2 * n * n, Device::cuda);
  const MutView x = storage.view(bf16, {n, n});
  const MutView weight = storage.view(bf16, {n, n}, 2 * n * n);
  const MutView y = storage.view(bf16, {n, n}, 4 * n * n);
  draw(storage.view(bf16, {3, n, n}));
  const auto product = [&](Queue& queue) { linear_forward(queue, x, weight, View(), y); };
  return 2.0 * static_cast<double>(n * n) * static_cast<double>(n) / device_seconds(product, 10);
}

void check_speed(const Options& options, Report& report) {
  Bench bench(options, report);
  measure_peaks(bench, report);
  const std::int64_t n = bench.size(16'384, 4);
  if (options.is_small) {
    measure_products(bench, "tiny", 4, 16, 24);
    measure_attention(bench,
                      {.batch = 1, .seq_len = 5, .n_heads = 2, .n_kv_heads = 1, .head_dim = 64});
  } else {
    for (const auto& [n_in, n_out] :
         {std::pair{768, 2304}, {768, 768}, {768, 3072}, {3072, 768}, {768, 50'304}}) {
      measure_products(bench, "GPT-2", n, n_in, n_out);
    }
    for (const auto& [n_in, n_out] :
         {std::pair{2048, 2560}, {2048, 2048}, {2048, 5632}, {5632, 2048}, {2048, 32'000}}) {
      measure_products(bench, "Llama", n, n_in, n_out);
    }
    for (const std::int64_t seq_len : {1024, 2048}) {
      const std::int64_t batch = n / seq_len;
      measure_attention(
          bench,
          {.batch = batch, .seq_len = seq_len, .n_heads = 12, .n_kv_heads = 12, .head_dim = 64});
      measure_attention(
          bench,
          {.batch = batch, .seq_len = seq_len, .n_heads = 32, .n_kv_heads = 4, .head_dim = 64});
      measure_attention(
          bench,
          {.batch = batch, .seq_len = seq_len, .n_heads = 16, .n_kv_heads = 8, .head_dim = 128});
    }
  }
  measure_rows(bench, bench.size(65'536, 4), bench.size(2048, 24));
  measure_loss(bench, n, bench.size(50'304, 40));
  measure_embedding(bench, report, n, bench.size(50'304, 40), bench.size(768, 24));
  measure_optimizer(bench, bench.size(124'000'000, 5000));
}

}  // namespace llm::gpu
