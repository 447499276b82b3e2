#include "tests/gpu/both.h"

#include <algorithm>
#include <cmath>
#include <cstring>

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

double element(const View& x, std::int64_t i) {
  if (x.dtype() == Dtype::i32) return x.as<std::int32_t>()[i];
  if (x.dtype() == Dtype::f64) return x.as<double>()[i];
  double value = 0;
  with_type_of(x.dtype(), [&](auto type) { value = to_float(x.as<decltype(type)>()[i]); });
  return value;
}

/// The largest difference, in parts of the largest element of `wanted`.
double apart(const View& got, const View& wanted) {
  double largest = 0;
  double difference = 0;
  for (std::int64_t i = 0; i < wanted.n_elements(); ++i) {
    const double x = element(got, i);
    const double y = element(wanted, i);
    if (std::isfinite(y)) largest = std::max(largest, std::fabs(y));
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    difference = std::max(difference, std::isfinite(x - y) ? std::fabs(x - y) : INFINITY);
  }
  return difference == 0 ? 0 : difference / largest;
}

View seen(const Case& one, const std::vector<Storage>& storages, std::size_t i) {
  return storages[i].view(one.tensors[i].dtype, one.tensors[i].shape);
}

}  // namespace

std::vector<Storage> Both::run_on_device(const Case& one,
                                         const std::vector<Storage>& initial) const {
  std::vector<Storage> there;
  std::vector<Storage> results;
  Queue queue(Device::cuda);
  std::vector<MutView> views;
  for (std::size_t i = 0; i < initial.size(); ++i) {
    there.emplace_back(initial[i].n_bytes(), Device::cuda);
    views.push_back(there[i].view(one.tensors[i].dtype, one.tensors[i].shape));
    copy(queue, seen(one, initial, i), views[i]);
  }
  one.op(queue, views);
  for (const std::size_t i : one.outs) {
    results.push_back(Storage::pinned(initial[i].n_bytes()));
    copy(queue, views[i], results.back().view(one.tensors[i].dtype, one.tensors[i].shape));
  }
  queue.finish();
  return results;
}

void Both::check(const Case& one) {
  std::vector<Storage> initial;
  for (std::size_t i = 0; i < one.tensors.size(); ++i) {
    initial.push_back(values_of(one.tensors[i], i + 1));
  }
  const std::vector<Storage> first = run_on_device(one, initial);
  const std::vector<Storage> second = run_on_device(one, initial);
  std::vector<MutView> views;  // the CPU works in place
  for (std::size_t i = 0; i < initial.size(); ++i) {
    views.push_back(initial[i].view(one.tensors[i].dtype, one.tensors[i].shape));
  }
  Queue queue(Device::cpu, &pool_);
  one.op(queue, views);
  queue.finish();
  double difference = 0;
  for (std::size_t o = 0; o < one.outs.size(); ++o) {
    const std::size_t i = one.outs[o];
    const View got = first[o].view(one.tensors[i].dtype, one.tensors[i].shape);
    difference = std::max(difference, apart(got, views[i]));
    if (std::memcmp(got.data(), second[o].view(got.dtype(), got.shape()).data(),
                    static_cast<std::size_t>(got.n_bytes())) != 0) {
      report_.failure(one.name, "two runs have other bits in tensor " + std::to_string(i));
    }
  }
  report_.line(one.name, difference, "of the largest element", at_most(one.tolerance));
}

}  // namespace llm::gpu
