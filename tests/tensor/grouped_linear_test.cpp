#include "tensor/ops/grouped_linear.h"

#include <algorithm>
#include <thread>

#include "src/base/error.h"
#include "tests/tensor/support.h"

using namespace llm;
using namespace llm::test;

namespace {

struct Case {
  std::vector<std::int32_t> n_rows;  ///< by expert
  std::int64_t n_in;
  std::int64_t n_out;

  auto n_experts() const { return static_cast<std::int64_t>(n_rows.size()); }
  std::int64_t n() const {
    std::int64_t sum = 0;
    for (const std::int32_t rows : n_rows) sum += rows;
    return sum;
  }
  Tensor begins() const {
    std::vector<std::int32_t> ids{0};
    for (const std::int32_t rows : n_rows) ids.push_back(ids.back() + rows);
    return ids_of(ids);
  }
};

/// Experts without rows, with few, and with several tiles of them.
const Case cases[] = {{{3, 0, 20, 1}, 7, 5},
                      {{0, 0, 0}, 8, 8},
                      {{64, 15, 16, 17, 80, 0, 79}, 96, 40},
                      {{400, 0, 10}, 700, 420},
                      {{0, 150}, 1500, 130}};

/// Results of the three calls.
struct Results {
  Results(const Case& c, Dtype dtype)
      : y({c.n(), c.n_out}, dtype),
        dx({c.n(), c.n_in}, dtype),
        dw({c.n_experts() * c.n_out, c.n_in}),
        db({c.n_experts() * c.n_out}) {}
  Tensor y, dx, dw, db;
};

struct Operands {
  Operands(const Case& c, Dtype dtype)
      : x(converted(random_tensor({c.n(), c.n_in}, 1), dtype)),
        w(converted(random_tensor({c.n_experts() * c.n_out, c.n_in}, 2, 0.1f), dtype)),
        b(random_tensor({c.n_experts() * c.n_out}, 3)),
        dy(converted(random_tensor({c.n(), c.n_out}, 4), dtype)) {}
  Tensor x, w, b, dy;
};

void run(const Case& c, const Operands& o, Write write, const Results& r) {
  const Tensor begins = c.begins();
  Queue queue;
  grouped_linear_forward(queue, begins, o.x, o.w, o.b, r.y);
  grouped_linear_backward_input(queue, begins, o.dy, o.w, write, r.dx);
  grouped_linear_backward_weight(queue, begins, o.x, o.dy, write, r.dw, r.db);
  queue.finish();
}

/// The definition: a plain product for each expert, in f32.
void run_plain(const Case& c, const Operands& o, const Results& r) {
  const Tensor x = converted(o.x, Dtype::f32), w = converted(o.w, Dtype::f32);
  const Tensor dy = converted(o.dy, Dtype::f32);
  std::int64_t begin = 0;
  for (std::int64_t e = 0; e < c.n_experts(); ++e) {
    const std::int64_t n = c.n_rows[static_cast<std::size_t>(e)];
    const float* const w_e = w.data() + e * c.n_out * c.n_in;
    float* const y = r.y.data() + begin * c.n_out;
    matmul_plain({false, true, n, c.n_out, c.n_in, 1, x.data() + begin * c.n_in, c.n_in, w_e,
                  c.n_in, 0, y, c.n_out});
    for (std::int64_t i = 0; i < n * c.n_out; ++i) y[i] += o.b[e * c.n_out + i % c.n_out];
    matmul_plain({false, false, n, c.n_in, c.n_out, 1, dy.data() + begin * c.n_out, c.n_out, w_e,
                  c.n_in, 0, r.dx.data() + begin * c.n_in, c.n_in});
    matmul_plain({true, false, c.n_out, c.n_in, n, 1, dy.data() + begin * c.n_out, c.n_out,
                  x.data() + begin * c.n_in, c.n_in, 0, r.dw.data() + e * c.n_out * c.n_in,
                  c.n_in});
    for (std::int64_t f = 0; f < c.n_out; ++f) {
      float sum = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += dy[(begin + i) * c.n_out + f];
      r.db[e * c.n_out + f] = sum;
    }
    begin += n;
  }
}

std::vector<ProductKernel> kernels_of(Dtype dtype) {
  if (dtype == Dtype::bf16 && has_fast_bf16()) {
    return {ProductKernel::bf16, ProductKernel::f32_copies};
  }
  return {ProductKernel::f32_copies};
}

/// |a - b| at most `tolerance` of the largest, whatever the dtypes.
void check_near(const View& a, const View& b, double tolerance) {
  check_close(converted(a, Dtype::f32), converted(b, Dtype::f32), tolerance);
}

}  // namespace

TEST_CASE("linear layers of experts are a plain product for each of them") {
  for (const Case& c : cases) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
      for (const ProductKernel kernel : kernels_of(dtype)) {
        const UseProductKernel use(kernel);
        INFO(name_of(dtype) << ", " << c.n() << " rows, " << c.n_in << " to " << c.n_out);
        const Operands o(c, dtype);
        const Results r(c, dtype), plain(c, Dtype::f32);
        run_plain(c, o, plain);
        run(c, o, Write::set, r);
        // Sums of up to 1,500 terms in another order, and a rounding of the result.
        const double rounding = dtype == Dtype::f32 ? 1e-5 : dtype == Dtype::bf16 ? 4e-3 : 5e-4;
        check_near(r.y, plain.y, rounding);
        check_near(r.dx, plain.dx, rounding);
        check_near(r.dw, plain.dw, 1e-5);
        check_near(r.db, plain.db, 0);
        run(c, o, Write::add, r);
        for (std::int64_t i = 0; i < plain.dw.size(); ++i) plain.dw[i] *= 2;
        for (std::int64_t i = 0; i < plain.dx.size(); ++i) plain.dx[i] *= 2;
        check_near(r.dw, plain.dw, 1e-5);
        check_near(r.dx, plain.dx, 2 * rounding);
      }
    }
  }
}

TEST_CASE("an expert without rows has gradients of exactly 0, and Write::add leaves them") {
  const Case c{{5, 0, 4}, 12, 6};
  const Operands o(c, Dtype::f32);
  const Results r(c, Dtype::f32);
  for (const Tensor* t : {&r.dw, &r.db}) std::fill_n(t->data(), t->size(), NAN);
  run(c, o, Write::set, r);
  const auto idle = [&](float expected) {
    return std::all_of(r.dw.data() + 6 * 12, r.dw.data() + 12 * 12,
                       [=](float x) { return x == expected; }) &&
           std::all_of(r.db.data() + 6, r.db.data() + 12, [=](float x) { return x == expected; });
  };
  CHECK(idle(0));
  std::fill_n(r.dw.data(), r.dw.size(), 3.0f);
  std::fill_n(r.db.data(), r.db.size(), 3.0f);
  run(c, o, Write::add, r);
  CHECK(idle(3));
}

TEST_CASE("a row has the same bits whatever the number of its expert's rows") {
  for (const auto& [n_in, n_out] : {std::pair{96, 40}, {768, 512}, {1024, 300}, {33, 2048}}) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
      for (const ProductKernel kernel : kernels_of(dtype)) {
        const UseProductKernel use(kernel);
        const Case many{{0, 300}, n_in, n_out};
        const Operands o(many, dtype);
        const Results all(many, dtype);
        run(many, o, Write::set, all);
        for (const std::int32_t n : {1, 2, 15, 16, 17, 100}) {
          const std::int64_t first = 101;
          const Case few{{0, n}, n_in, n_out};
          Operands some(few, dtype);
          std::memcpy(some.w.view().data(), o.w.view().data(),
                      static_cast<std::size_t>(o.w.view().n_bytes()));
          std::memcpy(some.b.data(), o.b.data(), static_cast<std::size_t>(o.b.view().n_bytes()));
          const View x = part(View(o.x), first * n_in, {n, n_in});
          const View dy = part(View(o.dy), first * n_out, {n, n_out});
          std::memcpy(some.x.view().data(), x.data(), static_cast<std::size_t>(x.n_bytes()));
          std::memcpy(some.dy.view().data(), dy.data(), static_cast<std::size_t>(dy.n_bytes()));
          const Results r(few, dtype);
          run(few, some, Write::set, r);
          INFO(name_of(dtype) << ", " << n << " rows, " << n_in << " to " << n_out);
          CHECK(same_bits(r.y, part(View(all.y), first * n_out, {n, n_out})));
          CHECK(same_bits(r.dx, part(View(all.dx), first * n_in, {n, n_in})));
        }
      }
    }
  }
}

TEST_CASE("what linear layers of experts hold beside their views is what is said") {
  for (const Case& c : cases) {
    if (c.n() == 0) continue;
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
      INFO(name_of(dtype) << ", " << c.n() << " rows, " << c.n_in << " to " << c.n_out);
      const Operands o(c, dtype);
      const Results r(c, dtype);
      const std::int64_t before = op_scratch_bytes();
      restart_op_scratch_peak();
      std::thread([&] {  // one that has no scratch yet
        run(c, o, Write::set, r);
        run(c, o, Write::add, r);
      })
          .join();
      const std::int64_t held = op_scratch_peak_bytes() - before;
      const OpScratch said = grouped_linear_scratch(dtype, c.n_experts(), c.n(), c.n_in, c.n_out);
      CHECK(held <= said.thread_bytes);
      CHECK(held >= said.thread_bytes / 4);
    }
  }
}

TEST_CASE("linear layers of experts refuse shapes that do not fit when they are called") {
  const Case c{{2, 3}, 4, 6};
  const Operands o(c, Dtype::f32);
  const Tensor y({5, 6}), begins = c.begins();
  Queue queue;
  CHECK_THROWS_AS(grouped_linear_forward(queue, begins, o.x, Tensor({6, 4}), o.b, y),
                  ContractBroken);
  CHECK_THROWS_AS(grouped_linear_forward(queue, begins, o.x, o.w, Tensor({6}), y), ContractBroken);
  CHECK_THROWS_AS(grouped_linear_forward(queue, ids_of({0}), o.x, o.w, o.b, y), ContractBroken);
  CHECK(queue.empty());
}
