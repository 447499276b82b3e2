#include "schedules/accumulation.h"

#include <algorithm>

#include "src/base/check.h"

namespace llm {
namespace {

void visit(int begin, int end, int buffer, std::vector<AccumulationStep>& steps) {
  if (end - begin == 1) {
    steps.push_back({buffer, 0});
    return;
  }
  const int middle = begin + (end - begin) / 2;
  visit(begin, middle, buffer, steps);
  visit(middle, end, buffer + 1, steps);
  ++steps.back().n_additions;
}

}  // namespace

std::vector<AccumulationStep> accumulation_tree(int n_microbatches) {
  CHECK_CONTRACT(n_microbatches >= 1, "a step has a microbatch");
  std::vector<AccumulationStep> steps;
  visit(0, n_microbatches, 0, steps);
  return steps;
}

int n_accumulation_buffers(const std::vector<AccumulationStep>& steps) {
  int n_buffers = 0;
  for (const AccumulationStep& step : steps) n_buffers = std::max(n_buffers, step.buffer + 1);
  return n_buffers;
}

}  // namespace llm
