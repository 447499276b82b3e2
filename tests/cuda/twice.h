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
      results_.push_back(std::move(got));
    }
    Twice cpu;
    Queue queue;
    op(cpu, nullptr, &queue);
    queue.finish();
    for (const auto& got : results_) {
      for (std::size_t o = 0; o < outs.size(); ++o) compare(got[o], *outs[o], tolerance, o);
    }
    results_.clear();
  }

 private:
  static void compare(const std::vector<float>& got, const Values& wanted, double tolerance,
                      std::size_t number) {
    INFO("output " << number);
    double largest = 0;
    double difference = 0;
    for (std::int64_t i = 0; i < wanted.view.n_elements(); ++i) {
      const double x = got[static_cast<std::size_t>(i)];
      largest = std::max(largest, std::fabs(double{wanted[i]}));
      difference = std::max(difference, std::isnan(x) ? 1e30 : std::fabs(x - double{wanted[i]}));
    }
    REQUIRE(difference <= tolerance * largest);
  }
  static inline std::vector<std::vector<std::vector<float>>> results_;
  DeviceRig* on_device_ = nullptr;
  std::vector<MutView> on_device_views_;
  std::size_t n_used_ = 0;
};

/// Of the largest element, what two ways to compute a number may differ by.
inline double rounding_of(Dtype dtype) {
  return dtype == Dtype::f32 ? 2e-6 : dtype == Dtype::bf16 ? 8e-3 : 1e-3;
}

}  // namespace llm::test
