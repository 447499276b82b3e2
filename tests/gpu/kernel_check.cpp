#include "tests/gpu/kernel_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "src/base/philox.h"
#include "tensor/ops/elements.h"
#include "tensor/ops/elementwise.h"
#include "tensor/ops/rounding.h"

namespace llm::gpu {
namespace {

Storage values_of(const Tensor& tensor, std::uint64_t seed) {
  const std::int64_t n = tensor.shape.n_elements();
  Storage storage = Storage::pinned(n * static_cast<std::int64_t>(size_of(tensor.dtype)));
  const MutView view = storage.view(tensor.dtype, tensor.shape);
  std::memset(view.data(), 0, static_cast<std::size_t>(view.n_bytes()));
  if (tensor.dtype == Dtype::i32) {
    auto* const x = view.as<std::int32_t>();
    const auto n_values = static_cast<std::uint32_t>(std::max<std::int64_t>(tensor.n_values, 1));
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t drawn = philox_at(seed, static_cast<std::uint64_t>(i))[0] % n_values;
      const bool is_ignored = tensor.kind == Tensor::Kind::labels && i % 11 == 3;
      x[i] = is_ignored ? -100 : static_cast<std::int32_t>(drawn);
      if (tensor.kind == Tensor::Kind::steps) x[i] = static_cast<std::int32_t>(i * n_values);
    }
    return storage;
  }
  if (tensor.dtype == Dtype::f64) return storage;
  with_type_of(tensor.dtype, [&](auto type) {
    using T = decltype(type);
    T* const x = view.as<T>();
    for (std::int64_t i = 0; i < n; i += 4) {
      const PhiloxBlock block = philox_at(seed, static_cast<std::uint64_t>(i));
      for (std::int64_t k = i; k < std::min(i + 4, n); ++k) {
        const float number = 4 * uniform_from(block[static_cast<std::size_t>(k - i)]) - 2;
        x[k] = round_to<T>(tensor.kind == Tensor::Kind::positive ? std::fabs(number) : number);
      }
    }
  });
  return storage;
}

View seen(const Case& one, const std::vector<Storage>& storages, std::size_t i) {
  return storages[i].view(one.tensors[i].dtype, one.tensors[i].shape);
}
MutView written(const Case& one, std::vector<Storage>& storages, std::size_t i) {
  return storages[i].view(one.tensors[i].dtype, one.tensors[i].shape);
}

template <typename T>
Doubles widened(const View& x) {
  Doubles wide;
  wide.reserve(static_cast<std::size_t>(x.n_elements()));
  const T* const begin = x.as<T>();
  for (std::int64_t i = 0; i < x.n_elements(); ++i) {
    if constexpr (std::is_arithmetic_v<T>) {
      wide.push_back(static_cast<double>(begin[i]));
    } else {
      wide.push_back(double{to_float(begin[i])});
    }
  }
  return wide;
}

Doubles doubles_of(const View& x) {
  if (x.dtype() == Dtype::i32) return widened<std::int32_t>(x);
  if (x.dtype() == Dtype::f64) return widened<double>(x);
  Doubles wide;
  with_type_of(x.dtype(), [&](auto type) { wide = widened<decltype(type)>(x); });
  return wide;
}

/// |got - wanted| over |wanted|, of the elements that `wanted` has; infinite where there are none,
/// or where anything is not finite.
double apart(const Doubles& got, const Doubles& wanted) {
  double difference = 0, size = 0;
  std::size_t n = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    if (std::isnan(wanted[i])) continue;
    difference += (got[i] - wanted[i]) * (got[i] - wanted[i]);
    size += wanted[i] * wanted[i];
    ++n;
  }
  if (n == 0 || !std::isfinite(size)) return INFINITY;
  return difference == 0 ? 0 : std::sqrt(difference / size);
}

bool have_same_bits(const View& a, const View& b) {
  return std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.n_bytes())) == 0;
}

}  // namespace

double unit_roundoff(Dtype dtype) {
  return dtype == Dtype::f32 ? 0x1p-24 : dtype == Dtype::bf16 ? 0x1p-8 : 0x1p-11;
}

double rounding(Dtype dtype, double n_terms) {
  const double of_sum = (16 + std::sqrt(n_terms)) * unit_roundoff(Dtype::f32);
  return dtype == Dtype::f32 ? of_sum : unit_roundoff(dtype) + of_sum;
}

double product_rounding(Dtype from, Dtype to, double n_terms) {
  if (from == Dtype::f32 || to != Dtype::f32) return rounding(to, n_terms);
  return rounding(to, n_terms) + n_terms / 16 * 2 * unit_roundoff(Dtype::f32);
}

std::vector<std::size_t> sample(std::size_t n_all, std::size_t n) {
  std::vector<std::size_t> chosen;
  if (n_all <= n) n = n_all;
  for (std::size_t i = 0; i < n; ++i) chosen.push_back(n == 1 ? 0 : i * (n_all - 1) / (n - 1));
  return chosen;
}

void in_parallel(std::size_t n, const std::function<void(std::size_t)>& body) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < n; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

KernelCheck::Results KernelCheck::run_on_device(const Case& one,
                                                const std::vector<Storage>& initial) const {
  std::vector<Storage> there;
  Results results;
  Queue queue(Device::cuda);
  std::vector<MutView> views;
  for (std::size_t i = 0; i < initial.size(); ++i) {
    there.emplace_back(initial[i].n_bytes(), Device::cuda);
    views.push_back(written(one, there, i));
    copy(queue, seen(one, initial, i), views[i]);
  }
  for (const Step& step : one.steps) {
    step.op(queue, views);
    std::vector<Storage>& outs = results.emplace_back();
    for (const Out& out : step.outs) {
      const Tensor& tensor = one.tensors[out.tensor];
      outs.push_back(Storage::pinned(initial[out.tensor].n_bytes()));
      copy(queue, views[out.tensor], outs.back().view(tensor.dtype, tensor.shape));
    }
  }
  queue.finish();
  return results;
}

void KernelCheck::check(const Case& one) {
  std::vector<Storage> state;
  for (std::size_t i = 0; i < one.tensors.size(); ++i) {
    state.push_back(values_of(one.tensors[i], i + 1));
  }
  const Results first = run_on_device(one, state);
  const Results second = run_on_device(one, state);
  for (std::size_t s = 0; s < one.steps.size(); ++s) {
    const Step& step = one.steps[s];
    for (std::size_t o = 0; o < step.outs.size(); ++o) {
      const Tensor& tensor = one.tensors[step.outs[o].tensor];
      if (!have_same_bits(first[s][o].view(tensor.dtype, tensor.shape),
                          second[s][o].view(tensor.dtype, tensor.shape))) {
        report_.failure(step.name + " " + one.name,
                        "two runs have other bits of " + step.outs[o].name);
      }
    }
    check_step(one, step, first[s], state);
  }
}

void KernelCheck::check_step(const Case& one, const Step& step, const std::vector<Storage>& results,
                             std::vector<Storage>& state) {
  std::vector<Doubles> wanted;
  for (std::size_t i = 0; i < state.size(); ++i) wanted.push_back(doubles_of(seen(one, state, i)));
  step.reference(wanted);
  const auto has_cpu_bits = [](const Out& out) { return out.has_cpu_bits; };
  if (std::any_of(step.outs.begin(), step.outs.end(), has_cpu_bits)) {  // it works in place
    std::vector<MutView> views;
    for (std::size_t i = 0; i < state.size(); ++i) views.push_back(written(one, state, i));
    Queue queue(Device::cpu, &pool_);
    step.op(queue, views);
    queue.finish();
  }
  for (std::size_t o = 0; o < step.outs.size(); ++o) {
    const Out& out = step.outs[o];
    const Tensor& tensor = one.tensors[out.tensor];
    const View got = results[o].view(tensor.dtype, tensor.shape);
    const std::string name = step.name + " " + one.name + ": " + out.name;
    report_.line(name, apart(doubles_of(got), wanted[out.tensor]), "of its norm from float64",
                 at_most(out.tolerance));
    const MutView kept = written(one, state, out.tensor);
    if (out.has_cpu_bits && !have_same_bits(got, kept)) {
      report_.failure(name, "not the CPU's bits");
    }
    std::memcpy(kept.data(), got.data(), static_cast<std::size_t>(got.n_bytes()));
  }
}

}  // namespace llm::gpu
