#include "tensor/ops/linear.h"

#include <numeric>
#include <string>

#include "src/base/error.h"
#include "tensor/ops/activation.h"
#include "tensor/ops/matmul.h"
#include "tests/support/float64.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

namespace {

/// y = x W^T + b of n rows in float64.
Doubles reference(const Doubles& x, const Doubles& w, const Doubles& b, std::size_t n) {
  const std::size_t n_in = x.size() / n;
  std::vector<std::size_t> rows(n);
  std::iota(rows.begin(), rows.end(), std::size_t{0});
  return float64::linear_forward({{0, n}, n_in, w.size() / n_in}, x, w, b, rows);
}

}  // namespace

TEST_CASE("a linear layer by hand: y = x W^T + b") {
  Queue queue;
  const Tensor x = tensor_of({1, 2}, {1, 2}), w = tensor_of({3, 2}, {1, 0, 0, 1, 1, 1});
  const Tensor b = tensor_of({3}, {10, 20, 30});
  const Tensor y({1, 3});
  linear_forward(queue, x, w, b, y);
  queue.finish();
  check_close(y, Doubles{11, 22, 33}, 0);
  linear_forward(queue, x, w, View(), y);
  queue.finish();
  check_close(y, Doubles{1, 2, 3}, 0);
}

TEST_CASE("a linear layer's gradients agree with central differences in float64") {
  for (const std::int64_t n : {1, 5}) {
    Queue queue;
    const Tensor x = random_tensor({n, 7}, 1), w = random_tensor({3, 7}, 2);
    const Tensor b = random_tensor({3}, 3), dy = random_tensor({n, 3}, 4);
    const Tensor y({n, 3}), dx({n, 7}), dw({3, 7}), db({3});
    linear_forward(queue, x, w, b, y);
    linear_backward_input(queue, dy, w, Write::set, dx);
    linear_backward_weight(queue, x, dy, Write::set, dw, db);
    queue.finish();
    const auto rows = static_cast<std::size_t>(n);
    const Doubles xs = doubles(x), ws = doubles(w), bs = doubles(b), dys = doubles(dy);
    check_close(y, reference(xs, ws, bs, rows), 1e-6);
    check_close(dx,
                numeric_gradient(
                    xs, [&](const Doubles& at) { return inner(reference(at, ws, bs, rows), dys); }),
                1e-6);
    check_close(dw,
                numeric_gradient(
                    ws, [&](const Doubles& at) { return inner(reference(xs, at, bs, rows), dys); }),
                1e-6);
    check_close(db,
                numeric_gradient(
                    bs, [&](const Doubles& at) { return inner(reference(xs, ws, at, rows), dys); }),
                1e-6);
  }
}

TEST_CASE("Write::add adds a gradient to what is there, and Write::set does not read it") {
  Queue queue;
  const Tensor x = random_tensor({9, 5}, 1), w = random_tensor({4, 5}, 2),
               dy = random_tensor({9, 4}, 4);
  const Tensor dx({9, 5}), dw({4, 5}), db({4});
  for (const Tensor* t : {&dx, &dw, &db}) {
    for (std::int64_t i = 0; i < t->size(); ++i) (*t)[i] = NAN;
  }
  linear_backward_input(queue, dy, w, Write::set, dx);
  linear_backward_weight(queue, x, dy, Write::set, dw, db);
  queue.finish();
  const Doubles dx_once = doubles(dx), dw_once = doubles(dw), db_once = doubles(db);
  linear_backward_input(queue, dy, w, Write::add, dx);
  linear_backward_weight(queue, x, dy, Write::add, dw, db);
  queue.finish();
  const auto twice = [](Doubles x) {
    for (double& e : x) e *= 2;
    return x;
  };
  check_close(dx, twice(dx_once), 1e-6);
  check_close(dw, twice(dw_once), 1e-6);
  check_close(db, twice(db_once), 1e-6);
}

TEST_CASE("a linear layer cut into several tiles agrees with one plain product") {
  Queue queue;
  const std::int64_t n = 700, n_in = 600, n_out = 520;  // forward: two tiles; weight gradient: two
  const Tensor x = random_tensor({n, n_in}, 1), w = random_tensor({n_out, n_in}, 2, 0.1f);
  const Tensor dy = random_tensor({n, n_out}, 3, 0.1f);
  const Tensor y({n, n_out}), dx({n, n_in}), dw({n_out, n_in}), db({n_out});
  int n_tiles = 0;
  queue.observe([&](const char*, std::int64_t, std::int64_t) { ++n_tiles; });
  linear_forward(queue, x, w, View(), y);
  linear_backward_input(queue, dy, w, Write::set, dx);
  linear_backward_weight(queue, x, dy, Write::set, dw, db);
  queue.finish();
  CHECK(n_tiles >= 6);
  const Tensor plain_y({n, n_out}), plain_dx({n, n_in}), plain_dw({n_out, n_in});
  matmul_plain(
      {false, true, n, n_out, n_in, 1, x.data(), n_in, w.data(), n_in, 0, plain_y.data(), n_out});
  matmul_plain({false, false, n, n_in, n_out, 1, dy.data(), n_out, w.data(), n_in, 0,
                plain_dx.data(), n_in});
  matmul_plain(
      {true, false, n_out, n_in, n, 1, dy.data(), n_out, x.data(), n_in, 0, plain_dw.data(), n_in});
  check_close(y, plain_y, 1e-5);  // sums of 700 terms, in another order
  check_close(dx, plain_dx, 1e-5);
  check_close(dw, plain_dw, 1e-5);
  for (std::int64_t o = 0; o < n_out; ++o) {
    float sum = 0;
    for (std::int64_t r = 0; r < n; ++r) sum += dy[r * n_out + o];
    REQUIRE(db[o] == sum);  // rows in order
  }
}

TEST_CASE("a linear layer turns its weights slab by slab") {
  const std::int64_t n = 300, n_in = 4096, n_out = 300;  // slabs of 256 and 44 features
  const Tensor x = random_tensor({n, n_in}, 1), w = random_tensor({n_out, n_in}, 2, 0.02f);
  const Tensor b = random_tensor({n_out}, 3), y({n, n_out}), plain({n, n_out});
  Queue queue;
  std::string ops;
  queue.observe([&](const char* op, std::int64_t, std::int64_t) {
    ops += op == std::string("linear_transpose") ? "t" : "f";
  });
  linear_forward(queue, x, w, b, y);
  queue.finish();
  CHECK(ops == "tffffftff");
  matmul_plain(
      {false, true, n, n_out, n_in, 1, x.data(), n_in, w.data(), n_in, 0, plain.data(), n_out});
  for (std::int64_t i = 0; i < n * n_out; ++i) plain[i] += b[i % n_out];
  check_close(y, plain, 1e-5);  // sums of 4,096 terms, in another order
}

TEST_CASE("a linear layer gives a row the same bits among few rows and many") {
  const std::int64_t sizes[][2] = {{4096, 300}, {1024, 1024}, {800, 1024}, {384, 96}, {33, 2048}};
  for (const auto& [n_in, n_out] : sizes) {
    const std::int64_t n = 300, first = 64, n_few = 21;
    const Tensor x = random_tensor({n, n_in}, 1), w = random_tensor({n_out, n_in}, 2, 0.02f);
    const Tensor dy = random_tensor({n, n_out}, 3), y({n, n_out}), dx({n, n_in});
    const Tensor few_y({n_few, n_out}), few_dx({n_few, n_in});
    Queue queue;
    linear_forward(queue, x, w, View(), y);
    linear_backward_input(queue, dy, w, Write::set, dx);
    linear_forward(queue, part(View(x), first * n_in, {n_few, n_in}), w, View(), few_y);
    linear_backward_input(queue, part(View(dy), first * n_out, {n_few, n_out}), w, Write::set,
                          few_dx);
    queue.finish();
    INFO(n_in << " to " << n_out);
    CHECK(same_bits(y.data() + first * n_out, few_y.data(), few_y.size()));
    CHECK(same_bits(dx.data() + first * n_in, few_dx.data(), few_dx.size()));
  }
}

TEST_CASE("a linear layer in bf16 has the same bits for any number of threads") {
  const std::int64_t n = 256, n_in = 768, n_out = 640;
  const Tensor x = converted(random_tensor({n, n_in}, 1), Dtype::bf16);
  const Tensor w = converted(random_tensor({n_out, n_in}, 2, 0.02f), Dtype::bf16);
  const Tensor y({n, n_out}, Dtype::bf16), dx({n, n_in}, Dtype::bf16), dw({n_out, n_in});
  const auto run = [&](int n_threads) {
    ThreadPool pool(n_threads);
    Queue queue(Device::cpu, &pool);
    linear_forward(queue, x, w, View(), y);
    linear_backward_input(queue, y, w, Write::set, dx);
    linear_backward_weight(queue, x, y, Write::set, dw, MutView());
    queue.finish();
  };
  run(1);
  const Tensor y1 = converted(y, Dtype::bf16), dx1 = converted(dx, Dtype::bf16);
  const Tensor dw1 = converted(dw, Dtype::f32);
  for (const int n_threads : {2, 3}) {
    run(n_threads);
    INFO(n_threads << " threads");
    CHECK(same_bits(y, y1));
    CHECK(same_bits(dx, dx1));
    CHECK(same_bits(dw, dw1));
  }
}

TEST_CASE("a linear layer refuses shapes that do not fit when it is called") {
  Queue queue;
  const Tensor x({2, 3}), w({4, 5}), y({2, 4}), b({3}), good_w({4, 3});
  CHECK_THROWS_AS(linear_forward(queue, x, w, View(), y), ContractBroken);
  CHECK_THROWS_AS(linear_forward(queue, x, good_w, b, y), ContractBroken);
  CHECK_THROWS_WITH(linear_forward(queue, x, good_w, View(), x),
                    Catch::Contains("y is f32 (2, 4)") && Catch::Contains("(2, 3)"));
  CHECK(queue.empty());
}

TEST_CASE("no rows at all give no output and a zero weight gradient") {
  Queue queue;
  const Tensor x({0, 3}), dy({0, 2}), y({0, 2}), w({2, 3}), db({2});
  const Tensor dw = random_tensor({2, 3}, 1);
  linear_forward(queue, x, w, View(), y);
  linear_backward_input(queue, dy, w, Write::set, x);
  linear_backward_weight(queue, x, dy, Write::set, dw, db);
  queue.finish();
  check_close(dw, Doubles(6, 0.0), 0);
}

TEST_CASE("a linear layer with its gelu has the bits of the two ops, and may leave the gelu out") {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
    INFO(name_of(dtype));
    Queue queue;
    const Tensor x = converted(random_tensor({5, 7}, 1), dtype);
    const Tensor w = converted(random_tensor({8, 7}, 2), dtype), b = random_tensor({8}, 3);
    const Tensor up({5, 8}, dtype), hidden({5, 8}, dtype);
    const Tensor expected_up({5, 8}, dtype), expected({5, 8}, dtype), alone({5, 8}, dtype);
    linear_gelu_tanh(queue, x, w, b, up, hidden, Hidden::wanted);
    linear_gelu_tanh(queue, x, w, b, alone, expected, Hidden::room);
    linear_forward(queue, x, w, b, expected_up);
    activation_forward(queue, Activation::gelu_tanh, expected_up, expected);
    queue.finish();
    CHECK(same_bits(up, expected_up));
    CHECK(same_bits(hidden, expected));
    CHECK(same_bits(alone, expected_up));
    CHECK_THROWS_AS(linear_gelu_tanh(queue, x, w, b, up, x, Hidden::wanted), ContractBroken);
  }
}
