#include "tensor/ops/norm.h"

#include "src/base/error.h"
#include "tensor/ops/norm_kernels.h"
#include "tests/support/float64.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

namespace {

constexpr float epsilon = 1e-5f;

Doubles reference(const Doubles& x, const Doubles& weight, const Doubles& bias, bool is_rms) {
  return float64::norm_forward({is_rms, double{epsilon}}, x, weight, bias);
}

struct Buffers {
  explicit Buffers(std::int64_t n, std::int64_t width)
      : y({n, width}), dx({n, width}), mean({n}), rstd({n}), dweight({width}), dbias({width}) {}
  Tensor y, dx, mean, rstd, dweight, dbias;
};

}  // namespace

TEST_CASE("layer norm and RMS norm by hand") {
  Queue queue;
  const Tensor x = tensor_of({1, 4}, {1, 2, 3, 4}), weight = tensor_of({4}, {1, 1, 2, 1});
  const Tensor bias = tensor_of({4}, {0, 0, 0, 5});
  const Buffers out(1, 4);
  layer_norm_forward(queue, x, weight, bias, 0, out.y, out.mean, out.rstd);
  queue.finish();
  const double unit = std::sqrt(0.8);  // 1 / standard deviation of 1, 2, 3, 4
  check_close(out.y, Doubles{-1.5 * unit, -0.5 * unit, unit, 1.5 * unit + 5}, 1e-7);
  CHECK(out.mean[0] == 2.5f);
  rms_norm_forward(queue, x, weight, 0, out.y, out.rstd);
  queue.finish();
  const double root = std::sqrt(7.5);
  check_close(out.y, Doubles{1 / root, 2 / root, 6 / root, 4 / root}, 1e-7);
}

TEST_CASE("the norms' gradients agree with central differences in float64") {
  for (const bool is_rms : {false, true}) {
    for (const std::int64_t width : {2, 17, 33}) {
      Queue queue;
      const Tensor x = random_tensor({3, width}, 1), weight = random_tensor({width}, 2);
      const Tensor bias = random_tensor({width}, 3), dy = random_tensor({3, width}, 4);
      const Buffers b(3, width);
      if (is_rms) {
        rms_norm_forward(queue, x, weight, epsilon, b.y, b.rstd);
        rms_norm_backward(queue, x, weight, b.rstd, dy, Write::set, b.dx, Write::set, b.dweight);
      } else {
        layer_norm_forward(queue, x, weight, bias, epsilon, b.y, b.mean, b.rstd);
        layer_norm_backward(queue, x, weight, b.mean, b.rstd, dy, Write::set, b.dx, Write::set,
                            b.dweight, b.dbias);
      }
      queue.finish();
      const Doubles xs = doubles(x), ws = doubles(weight), dys = doubles(dy);
      const Doubles bs = is_rms ? Doubles{} : doubles(bias);
      check_close(b.y, reference(xs, ws, bs, is_rms), 1e-6);
      check_close(
          b.dx,
          numeric_gradient(
              xs, [&](const Doubles& at) { return inner(reference(at, ws, bs, is_rms), dys); }),
          3e-6);
      check_close(
          b.dweight,
          numeric_gradient(
              ws, [&](const Doubles& at) { return inner(reference(xs, at, bs, is_rms), dys); }),
          3e-6);
      if (is_rms) continue;
      check_close(
          b.dbias,
          numeric_gradient(
              bs, [&](const Doubles& at) { return inner(reference(xs, ws, at, is_rms), dys); }),
          3e-6);
    }
  }
}

TEST_CASE("the norms' gradients are added where Write::add says so, over several tiles") {
  const std::int64_t n = 5000, width = 384;
  Queue queue;
  const Tensor x = random_tensor({n, width}, 1), weight = random_tensor({width}, 2);
  const Tensor dy = random_tensor({n, width}, 3);
  const Buffers b(n, width), once(n, width);
  layer_norm_forward(queue, x, weight, View(), epsilon, b.y, b.mean, b.rstd);
  int n_tiles = 0;
  queue.finish();
  queue.observe([&](const char*, std::int64_t, std::int64_t) { ++n_tiles; });
  layer_norm_backward(queue, x, weight, b.mean, b.rstd, dy, Write::set, once.dx, Write::set,
                      once.dweight, once.dbias);
  queue.finish();
  CHECK(n_tiles >= 3);
  for (int i = 0; i < 2; ++i) {
    layer_norm_backward(queue, x, weight, b.mean, b.rstd, dy, Write::add, b.dx, Write::add,
                        b.dweight, b.dbias);
  }
  queue.finish();
  const auto twice = [](Doubles values) {
    for (double& value : values) value *= 2;
    return values;
  };
  check_close(b.dx, twice(doubles(once.dx)), 1e-6);
  check_close(b.dweight, twice(doubles(once.dweight)), 1e-6);
  check_close(b.dbias, twice(doubles(once.dbias)), 1e-6);
  const Buffers plain(n, width);
  plain::layer_norm_backward({n, width, x.data(), weight.data(), b.mean.data(), b.rstd.data(),
                              dy.data(), false, plain.dx.data(), plain.dweight.data(),
                              plain.dbias.data()});
  check_close(once.dweight, plain.dweight, 1e-5);  // 5,000 terms, in another order
  check_close(once.dbias, plain.dbias, 1e-5);
}

TEST_CASE("the fast norms agree with the definition at every odd width") {
  for (const std::int64_t width : odd_sizes) {
    if (width == 0) continue;
    const std::int64_t n = 3;
    const Tensor x = random_tensor({n, width}, 1), weight = random_tensor({width}, 2);
    const Tensor bias = random_tensor({width}, 3), dy = random_tensor({n, width}, 4);
    const Buffers fast(n, width), plain(n, width);
    for (const Buffers* b : {&fast, &plain}) {
      const bool is_fast = b == &fast;
      const NormForward forward{n,       width,       x.data(),       weight.data(), bias.data(),
                                epsilon, b->y.data(), b->mean.data(), b->rstd.data()};
      (is_fast ? fast::layer_norm_forward : plain::layer_norm_forward)(forward);
      (is_fast ? fast::layer_norm_backward : plain::layer_norm_backward)(
          {n, width, x.data(), weight.data(), b->mean.data(), b->rstd.data(), dy.data(), true,
           b->dx.data(), b->dweight.data(), b->dbias.data()});
    }
    // One element has no variance: rstd is 316 and what is left of h is rounding.
    const double tolerance = width < 3 ? 1e-3 : 3e-6;
    check_close(fast.y, plain.y, tolerance);
    check_close(fast.rstd, plain.rstd, tolerance);
    check_close(fast.dx, plain.dx, tolerance);
    check_close(fast.dweight, plain.dweight, tolerance);
    check_close(fast.dbias, plain.dbias, tolerance);
    for (const Buffers* b : {&fast, &plain}) {
      const bool is_fast = b == &fast;
      (is_fast ? fast::rms_norm_forward
               : plain::rms_norm_forward)({n, width, x.data(), weight.data(), nullptr, epsilon,
                                           b->y.data(), nullptr, b->rstd.data()});
      (is_fast ? fast::rms_norm_backward : plain::rms_norm_backward)(
          {n, width, x.data(), weight.data(), nullptr, b->rstd.data(), dy.data(), false,
           b->dx.data(), b->dweight.data(), nullptr});
    }
    check_close(fast.y, plain.y, 3e-6);
    check_close(fast.dx, plain.dx, 3e-6);
    check_close(fast.dweight, plain.dweight, 3e-6);
  }
}

TEST_CASE("a row's bits do not depend on the rows around it") {
  const std::int64_t n = 5, width = 37;
  const Tensor x = random_tensor({n, width}, 1), weight = random_tensor({width}, 2);
  const Tensor dy = random_tensor({n, width}, 3), dweight({width});
  const Buffers whole(n, width), single(n, width);
  for (std::int64_t step : {n, std::int64_t{1}}) {
    const Buffers& b = step == n ? whole : single;
    for (std::int64_t r = 0; r < n; r += step) {
      fast::layer_norm_forward({step, width, &x[r * width], weight.data(), nullptr, epsilon,
                                &b.y[r * width], &b.mean[r], &b.rstd[r]});
      fast::layer_norm_backward({step, width, &x[r * width], weight.data(), &b.mean[r], &b.rstd[r],
                                 &dy[r * width], false, &b.dx[r * width], dweight.data(), nullptr});
    }
  }
  CHECK(same_bits(whole.y, single.y));
  CHECK(same_bits(whole.rstd, single.rstd));
  CHECK(same_bits(whole.dx, single.dx));
}

TEST_CASE("the norms refuse shapes that do not fit") {
  Queue queue;
  const Tensor x({2, 4}), weight({3}), rstd({2}), good({4});
  CHECK_THROWS_AS(rms_norm_forward(queue, x, weight, epsilon, x, rstd), ContractBroken);
  CHECK_THROWS_AS(rms_norm_forward(queue, x, good, epsilon, x, good), ContractBroken);
  CHECK_THROWS_AS(layer_norm_forward(queue, x, good, View(), epsilon, x, good, rstd),
                  ContractBroken);
}
