#pragma once
#include <string>

#include "src/base/check.h"
#include "tensor/cuda/module.h"
#include "tensor/cuda/op_key.h"
#include "tensor/ops/router.h"
#include "tensor/queue.h"

namespace llm {

inline void expect_on(Device device, const View& view, const char* op) {
  const bool holds = view.empty() || view.device() == device;
  CHECK_CONTRACT(holds, std::string(op) + " works " +
                            (device == Device::cpu ? "on the CPU" : "on a device") +
                            ", where its tensors lie");
}
inline void expect_on(Device device, const MutView& view, const char* op) {
  expect_on(device, View(view), op);
}
inline void expect_on(Device device, const Routing& routing, const char* op) {
  for (const MutView& view : {routing.logits, routing.experts, routing.weights, routing.rows,
                              routing.visits, routing.begins, routing.counts}) {
    expect_on(device, view, op);
  }
}
template <typename T>
void expect_on(Device, const T&, const char*) {}

/// For ops, when they have checked their shapes: checks that all tensors lie where the queue works,
/// and where that is a device puts the op's kernels into the queue; false on the CPU.
template <typename... Parameters, typename... Arguments>
bool issued(Queue& queue, const char* name,
            void (*const cuda::OpCalls::*call)(cudaStream_t, Parameters...),
            const Arguments&... arguments) {
  (expect_on(queue.device(), arguments, name), ...);
  if (queue.device() == Device::cpu) return false;
  const auto kernels = cuda::module().ops.*call;
  const auto put = [kernels, arguments...](cudaStream_t stream, const std::int64_t* numbers) {
    kernels(stream, cuda::with_numbers(arguments, numbers)...);
  };
  if constexpr ((cuda::is_repeated<Arguments> && ...)) {
    if (queue.uses_graphs()) {
      queue.issue(name, cuda::key_of(reinterpret_cast<const void*>(kernels), arguments...), put);
      return true;
    }
  }
  queue.issue(name, [put](cudaStream_t stream) { put(stream, nullptr); });
  return true;
}

}  // namespace llm
