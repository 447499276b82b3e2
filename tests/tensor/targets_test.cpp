// The fast bodies on every instruction set that this machine has: a checkpoint resumed on another
// one, or ranks on unlike machines, meet these differences.
#include <hwy/targets.h>

#include <functional>

#include "tensor/ops/activation_kernels.h"
#include "tensor/ops/adamw_kernels.h"
#include "tensor/ops/attention_kernels.h"
#include "tensor/ops/cross_entropy_kernels.h"
#include "tensor/ops/dropout_kernels.h"
#include "tensor/ops/elementwise_kernels.h"
#include "tensor/ops/norm_kernels.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

namespace {

void use_target(std::int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().DeInit();
}

/// Everything the fast bodies write for fixed inputs, one tensor a body.
std::vector<Tensor> outputs() {
  std::vector<Tensor> all;
  const std::int64_t n = 333;
  const Tensor x = random_tensor({n}, 1, 6), dy = random_tensor({n}, 2), up = random_tensor({n}, 3);
  const auto out = [&](Shape shape) -> const Tensor& { return all.emplace_back(shape); };
  all.reserve(100);
  for (const Activation f : {Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    fast::activation_forward(f, x.data(), out({n}).data(), n);
    fast::activation_backward(f, x.data(), dy.data(), out({n}).data(), n);
    fast::gated_forward(f, x.data(), up.data(), out({n}).data(), n);
    const Tensor& dgate = out({n});
    fast::gated_backward(f, x.data(), up.data(), dy.data(), dgate.data(), out({n}).data(), n);
  }
  const Tensor &y = out({9, 37}), &mean = out({9}), &rstd = out({9}), &dx = out({9, 37});
  const Tensor &dweight = out({37}), &dbias = out({37});
  fast::layer_norm_forward(
      {9, 37, x.data(), up.data(), dy.data(), 1e-5f, y.data(), mean.data(), rstd.data()});
  fast::layer_norm_backward({9, 37, x.data(), up.data(), mean.data(), rstd.data(), dy.data(), false,
                             dx.data(), dweight.data(), dbias.data()});
  const Tensor &m = out({n}), &v = out({n}), &w = out({n});
  AdamwStep step{1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 2, 0.5f};
  fast::adamw(AdamwFactors(step), x.data(), w.data(), m.data(), v.data(), {}, n);
  const Tensor& scalars = out({4});
  scalars[0] = fast::log_sum_exp(x.data(), n);
  scalars[1] = static_cast<float>(fast::sum_of_squares(x.data(), n));
  fast::scaled_softmax(x.data(), n, scalars[0], 2, x.data());
  fast::dropout(77, 0.3f, 5, n, x.data(), dy.data(), out({n}).data());
  fast::sum_rows(dy.data(), 9, 37, 37, false, out({37}).data());
  const AttentionShape shape{1, 70, 4, 2, 20};
  const Tensor qkv = random_tensor({70, shape.qkv_width()}, 5), dout = random_tensor({70, 80}, 6);
  const Tensor &attended = out({70, 80}), &log_sum = out({1, 4, 70}),
               &dqkv = out({70, shape.qkv_width()});
  const Dropout dropout{.p = 0.1f};
  for (std::int64_t head = 0; head < 4; ++head) {
    fast::attention_forward({shape, qkv.data(), dropout, attended.data(), log_sum.data()}, 0, head);
  }
  for (std::int64_t head = 0; head < 2; ++head) {
    fast::attention_backward(
        {shape, qkv.data(), attended.data(), log_sum.data(), dout.data(), dropout, dqkv.data()}, 0,
        head);
  }
  return all;
}

}  // namespace

TEST_CASE("every target rounds to bf16 and f16, and widens them, with the same bits") {
  const std::int64_t n = 40'000;
  const Tensor x({n}), small({n});
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t bits = philox_at(1, static_cast<std::uint64_t>(i))[0];
    std::memcpy(&x[i], &bits, sizeof bits);       // of every size, infinities and NaN among them
    small[i] = static_cast<float>(i) * 0x1p-27f;  // subnormal in f16
  }
  for (const std::int64_t target :
       {std::int64_t{HWY_AVX3}, std::int64_t{HWY_AVX2}, std::int64_t{HWY_EMU128}}) {
    hwy::SetSupportedTargetsForTest(0);
    if (target != HWY_EMU128 && (hwy::SupportedTargets() & target) == 0) continue;
    use_target(target);
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      INFO(name_of(dtype) << " on " << hwy::TargetName(target));
      for (const Tensor* from : {&x, &small}) {
        const Tensor low({n}, dtype), wide({n});
        fast::convert(from->data(), low.view(), n);
        CHECK(same_bits(low, converted(*from, dtype)));
        fast::convert(View(low), wide.data(), n);
        CHECK(same_bits(wide, converted(low, Dtype::f32)));
      }
    }
    use_target(0);
  }
}

TEST_CASE(
    "registers of 256 and 512 bits give the same bits, and those without FMA the same numbers") {
  const std::vector<Tensor> chosen = outputs();
  for (const std::int64_t target :
       {std::int64_t{HWY_AVX3}, std::int64_t{HWY_AVX2}, std::int64_t{HWY_EMU128}}) {
    hwy::SetSupportedTargetsForTest(0);
    const bool is_here = target == HWY_EMU128 || (hwy::SupportedTargets() & target) != 0;
    if (!is_here) continue;
    use_target(target);
    const std::vector<Tensor> others = outputs();
    use_target(0);
    REQUIRE(others.size() == chosen.size());
    const bool machine_has_fma = (hwy::SupportedTargets() & HWY_AVX2) != 0;
    std::size_t n_same = 0;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      INFO("body " << i << " on " << hwy::TargetName(target));
      n_same += same_bits(chosen[i], others[i]);
      check_close(chosen[i], others[i], 5e-6);
    }
    // That rounding twice shows at all shows that the targets were really switched.
    CHECK((n_same == chosen.size()) == (target != HWY_EMU128 || !machine_has_fma));
  }
}
