#include "actors/tied_gradient.h"

#include <algorithm>

#include "src/base/check.h"
#include "tensor/ops/elementwise.h"

namespace llm {
namespace {

int n_slots(const std::vector<AccumulationStep>& steps, int n_pending) {
  const int n_microbatches = static_cast<int>(steps.size());
  return n_accumulation_buffers(steps) + std::min(n_pending, n_microbatches) - 1;
}

}  // namespace

std::vector<AccumulationStep> tied_accumulation(const AccumulationPlan& plan) {
  if (plan.kind == Accumulation::tree) return plan.steps;
  std::vector<AccumulationStep> steps(plan.steps.size(), {1, 1});
  steps.front() = {0, 0};
  return steps;
}

int n_extra_leaves(const AccumulationPlan& plan, int n_pending) {
  return std::max(0, n_slots(tied_accumulation(plan), n_pending) - plan.n_buffers());
}

TiedGradient::TiedGradient(const ModelState& state, std::vector<AccumulationStep> steps,
                           int n_pending)
    : steps_(std::move(steps)) {
  const std::int64_t tensor = state.tied_tensor();
  CHECK_CONTRACT(tensor >= 0, "a tied gradient is on the rank that owns the embedding");
  const Shape shape = state.specs()[state.spec_of(tensor)].shape;
  const int n = n_slots(steps_, n_pending);
  const std::int64_t begin = state.layout().tensor_begin[static_cast<std::size_t>(tensor)];
  for (int i = 0; i < std::min(n, state.n_gradient_buffers()); ++i) {
    slots_.push_back(part(state.flat_gradients(i), begin, shape));
  }
  const std::int64_t n_extra = n - static_cast<std::int64_t>(slots_.size());
  extra_ = Storage(n_extra * shape.n_elements() * 4, state.device());
  for (std::int64_t i = 0; i < n_extra; ++i) {
    slots_.push_back(extra_.view(Dtype::f32, shape, i * shape.n_elements() * 4));
  }
  for (std::size_t i = slots_.size() - 1; i > 0; --i) free_.push_back(i);
  tree_.resize(static_cast<std::size_t>(n_accumulation_buffers(steps_)));
}

MutView TiedGradient::leaf(int m) {
  const auto found = leaves_.find(m);
  if (found != leaves_.end()) return slots_[found->second];
  std::size_t slot = 0;  // the first microbatch's, where the sum ends
  if (m > 0) {
    CHECK_CONTRACT(!free_.empty(), "the plan counts the leaves that wait");
    slot = free_.back();
    free_.pop_back();
  }
  leaves_.emplace(m, slot);
  return slots_[slot];
}

void TiedGradient::merge(Queue& queue, int m) {
  const auto found = leaves_.find(m);
  CHECK_CONTRACT(found != leaves_.end() && found == leaves_.begin(),
                 "leaves join the tree in microbatch order");
  std::size_t slot = found->second;
  leaves_.erase(found);
  const AccumulationStep& step = steps_[static_cast<std::size_t>(m)];
  for (int n = 1; n <= step.n_additions; ++n) {
    const std::size_t into = tree_[static_cast<std::size_t>(step.buffer - n)];
    add(queue, slots_[slot], slots_[into]);
    free_.push_back(slot);
    slot = into;
  }
  tree_[static_cast<std::size_t>(step.buffer - step.n_additions)] = slot;
}

}  // namespace llm
