#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tensor/queue.h"
#include "tensor/storage.h"
#include "tensor/thread_pool.h"
#include "tests/gpu/report.h"

namespace llm::gpu {

/// What an op is given: numbers in [-2, 2) by its place among the op's tensors, or their absolute
/// values; integers in [0, n_values), of labels every eleventh -100; or integers that grow by
/// n_values from element to element, from 0 on.
struct Tensor {
  enum class Kind : char { numbers, positive, integers, labels, steps };
  Dtype dtype;
  Shape shape;
  Kind kind = Kind::numbers;
  std::int64_t n_values = 0;
};

/// An op with its tensors, of which `outs` are compared.
struct Case {
  std::string name;
  std::vector<Tensor> tensors;
  std::vector<std::size_t> outs;
  double tolerance;  ///< of an output's largest element; 0: the same bits
  std::function<void(Queue&, const std::vector<MutView>&)> op;
};

/// Runs a case on the CPU, whose ops are tested against float64 in tests/tensor, and twice on the
/// device, and reports by how much the results differ; two runs on the device have the same bits.
class Both {
 public:
  explicit Both(Report& report, int n_threads) : report_(report), pool_(n_threads) {}
  void check(const Case& one);

 private:
  std::vector<Storage> run_on_device(const Case& one, const std::vector<Storage>& initial) const;

  Report& report_;
  ThreadPool pool_;
};

}  // namespace llm::gpu
