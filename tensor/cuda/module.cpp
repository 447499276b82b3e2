#include "tensor/cuda/module.h"

namespace llm::cuda {
namespace {

const Module* current = nullptr;

}  // namespace

void use_module(const Module* module) {
  current = module;
}

bool has_module() {
  return current != nullptr;
}

const Module& module() {
  CHECK_CONTRACT(current != nullptr, "work for a device needs the module of CUDA");
  return *current;
}

}  // namespace llm::cuda
