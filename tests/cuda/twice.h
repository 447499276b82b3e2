#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "tensor/queue.h"
#include "tests/cuda/device_copy.h"

namespace llm::test {

inline constexpr Dtype compute_dtypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16};
inline constexpr std::uint64_t n_seeds = 4;

/// One op on the CPU and on the device, with equal inputs.
class Twice {
 public:
  /// What an op reads, and writes in place.
  MutView operator()(const Values& values) {
    if (on_device_ == nullptr) return values.view;
    if (on_device_views_.size() == n_used_) on_device_views_.push_back(on_device_->upload(values));
    return on_device_views_[n_used_++];
  }
  using Op = std::function<void(Twice&, cudaStream_t device, Queue* cpu)>;
  /// Runs it in both places; then compares `out`, which the op was given as number `index` of its
  /// values, within `tolerance` of the largest element.
  static void check(const Op& op, const std::deque<Values*>& all, const std::vector<Values*>& outs,
                    double tolerance) {
    std::vector<std::vector<std::vector<float>>> results;
    for (std::uint64_t seed = 0; seed < n_seeds; ++seed) {
      DeviceRig rig(seed);
      std::vector<MutView> there;
      for (Values* const values : all) there.push_back(rig.upload(*values));
      Twice device;
      device.on_device_ = &rig;
      device.on_device_views_ = there;
      op(device, rig.stream, nullptr);
      std::vector<std::vector<float>> got;
      for (Values* const out : outs) {
        const auto index =
            static_cast<std::size_t>(std::find(all.begin(), all.end(), out) - all.begin());
        Values copy(0, out->view.dtype(), out->view.shape());
        rig.download(there[index], copy);
        std::vector<float>& values = got.emplace_back();
        for (std::int64_t i = 0; i < copy.view.n_elements(); ++i) values.push_back(copy[i]);
      }
      results.push_back(std::move(got));
    }
    Twice cpu;
    Queue queue;
    op(cpu, nullptr, &queue);
    queue.finish();
    for (const auto& got : results) {
      for (std::size_t o = 0; o < outs.size(); ++o) compare(got[o], *outs[o], tolerance, o);
    }
  }

 private:
  static void compare(const std::vector<float>& got, const Values& wanted, double tolerance,
                      std::size_t number) {
    INFO("output " << number);
    double largest = 0;
    double difference = 0;
    for (std::int64_t i = 0; i < wanted.view.n_elements(); ++i) {
      const double x = got[static_cast<std::size_t>(i)];
      const double y = wanted[i];
      if (std::isfinite(y)) largest = std::max(largest, std::fabs(y));
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      difference = std::max(difference, std::isfinite(x - y) ? std::fabs(x - y) : 1e30);
    }
    REQUIRE(difference <= tolerance * largest);
  }
  DeviceRig* on_device_ = nullptr;
  std::vector<MutView> on_device_views_;
  std::size_t n_used_ = 0;
};

/// Of the largest element, what two ways to compute a number may differ by.
inline double rounding_of(Dtype dtype) {
  return dtype == Dtype::f32 ? 2e-6 : dtype == Dtype::bf16 ? 8e-3 : 1e-3;
}

}  // namespace llm::test
