#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tensor/queue.h"
#include "tensor/storage.h"
#include "tensor/thread_pool.h"
#include "tests/gpu/report.h"
#include "tests/support/float64.h"

namespace llm::gpu {

using float64::Doubles;

/// What an op is given: numbers in [-2, 2) by its place among the case's tensors, or their absolute
/// values; integers in [0, n_values), of labels every eleventh -100; or integers that grow by
/// n_values from element to element, from 0 on.
struct Tensor {
  enum class Kind : char { numbers, positive, integers, labels, steps };
  Dtype dtype;
  Shape shape;
  Kind kind = Kind::numbers;
  std::int64_t n_values = 0;
};

/// A tensor that an op sets, and how far from float64 it may be: |a - b| over |b|, norms of the
/// tensor.
struct Out {
  std::string name;
  std::size_t tensor;
  double tolerance;
  bool has_cpu_bits = false;  ///< the op's plain body is its definition to the bit
};

/// One op on a case's tensors, which hold what the device's ops before it have left there.
struct Step {
  std::string name;
  std::vector<Out> outs;  ///< all that the op sets
  std::function<void(Queue&, const std::vector<MutView>&)> op;
  /// The same in float64, from what the op reads; it may leave elements out.
  std::function<void(std::vector<Doubles>&)> reference;
};

struct Case {
  std::string name;  ///< what is common to the steps; the report's lines end with it
  std::vector<Tensor> tensors;
  std::vector<Step> steps;
};

/// Half of the last place of a number of this dtype, relative to it: one rounding changes a
/// tensor's norm by less.
double unit_roundoff(Dtype dtype);
/// Of a result that is rounded to `dtype` once and was a sum of n terms in f32 before: errors of
/// the sums' roundings are like a random walk, so they grow as the root of n. 16 roundings for what
/// else there is: exponentials, reciprocals, differences.
double rounding(Dtype dtype, double n_terms = 1);
/// Of a product's f32 result: a tensor core cuts the sums of low dtypes off instead of rounding
/// them, by 16 terms at least at a time, so that their errors add up.
double product_rounding(Dtype from, Dtype to, double n_terms);

/// n numbers below n_all, evenly spaced, the first and the last among them; all where there are
/// fewer.
std::vector<std::size_t> sample(std::size_t n_all, std::size_t n);
/// body(i) for each i below n, at once.
void in_parallel(std::size_t n, const std::function<void(std::size_t)>& body);

/// Runs cases twice on the device and reports how far each op's results are from float64, which
/// gets what the device's op got. Two runs have the same bits, and those of the CPU where the
/// contract says so.
class KernelCheck {
 public:
  explicit KernelCheck(Report& report, int n_threads) : report_(report), pool_(n_threads) {}
  void check(const Case& one);

 private:
  /// By step, by out.
  using Results = std::vector<std::vector<Storage>>;
  Results run_on_device(const Case& one, const std::vector<Storage>& initial) const;
  void check_step(const Case& one, const Step& step, const std::vector<Storage>& results,
                  std::vector<Storage>& state);

  Report& report_;
  ThreadPool pool_;
};

}  // namespace llm::gpu
