#pragma once
#include <cstdint>
#include <string>

#include "tensor/cuda/ops.h"
#include "tensor/view.h"

using cudaEvent_t = struct CUevent_st*;
using cudaGraphExec_t = struct CUgraphExec_st*;

namespace llm::cuda {

/// What a device says of itself.
struct DeviceFacts {
  std::string name;
  std::string pci_id;  ///< "0000:17:00.0": two ranks with one id share a device
  std::int64_t n_bytes = 0;
  std::int64_t free_bytes = 0;
  int capability = 0;  ///< 90 for 9.0
};

/// CUDA's runtime as this project uses it, for one device of a process. Every function is called
/// on the loop's thread, after `select`. Failures throw ContractBroken with CUDA's reason;
/// `allocate` throws OutOfMemory.
struct RuntimeCalls {
  /// Why there is no device: one line with CUDA's own words; empty where there is one.
  std::string (*why_none)();
  int (*n_devices)();
  DeviceFacts (*facts)(int device);
  void (*select)(int device);
  /// Gives back what the module itself has on the device, when all else is released.
  void (*close)();

  /// Zero-filled, from a stream-ordered pool; anything may use it once this returns.
  void* (*allocate)(std::int64_t n_bytes);
  /// Nothing uses it any more.
  void (*release)(void* memory);
  void* (*allocate_pinned)(std::int64_t n_bytes);
  void (*release_pinned)(void* memory);

  cudaStream_t (*create_stream)();
  /// Waits for what is in it.
  void (*destroy_stream)(cudaStream_t stream);
  /// Whether streams that multiply from now on do it by cuBLASLt, as at first, or by plain kernels.
  void (*use_library)(bool is_used);
  void (*synchronize)(cudaStream_t stream);
  /// An event that also tells the time costs more.
  cudaEvent_t (*create_event)(bool is_timed);
  void (*destroy_event)(cudaEvent_t event);
  void (*record)(cudaEvent_t event, cudaStream_t stream);
  /// Whether the device has come to its last record.
  bool (*is_reached)(cudaEvent_t event);
  /// From one timed event that was reached to another.
  std::int64_t (*elapsed_ns)(cudaEvent_t begin, cudaEvent_t end);

  /// Between device and pinned memory, or within the device.
  void (*copy)(cudaStream_t stream, const void* from, void* to, std::int64_t n_bytes);

  /// What ops put into the stream from here on does not run but becomes a graph. They may allocate
  /// what they release, and wait for nothing.
  void (*begin_capture)(cudaStream_t stream);
  cudaGraphExec_t (*end_capture)(cudaStream_t stream);
  /// After an error of what was put in.
  void (*cancel_capture)(cudaStream_t stream);
  void (*launch_graph)(cudaGraphExec_t graph, cudaStream_t stream);
  /// When no launch of it is in a stream any more.
  void (*destroy_graph)(cudaGraphExec_t graph);
};

/// The ops of tensor/cuda/ops.h.
struct OpCalls {
#define LLM_CUDA_OP(name) decltype(&cuda::name) name
  LLM_CUDA_OP(convert);
  LLM_CUDA_OP(fill);
  LLM_CUDA_OP(write_numbers);
  LLM_CUDA_OP(add);
  LLM_CUDA_OP(add_rows);
  LLM_CUDA_OP(activation_forward);
  LLM_CUDA_OP(activation_backward);
  LLM_CUDA_OP(gated_forward);
  LLM_CUDA_OP(gated_backward);
  LLM_CUDA_OP(adamw);
  LLM_CUDA_OP(sum_of_squares);
  LLM_CUDA_OP(dropout);
  LLM_CUDA_OP(embedding_forward);
  LLM_CUDA_OP(embedding_backward);
  LLM_CUDA_OP(add_positions);
  LLM_CUDA_OP(linear_forward);
  LLM_CUDA_OP(linear_gelu_tanh);
  LLM_CUDA_OP(linear_backward_input);
  LLM_CUDA_OP(linear_backward_weight);
  LLM_CUDA_OP(rope);
  LLM_CUDA_OP(attention_forward);
  LLM_CUDA_OP(attention_backward);
  LLM_CUDA_OP(rope_step);
  LLM_CUDA_OP(keep_keys_values);
  LLM_CUDA_OP(attention_step);
  LLM_CUDA_OP(cross_entropy);
  LLM_CUDA_OP(cross_entropy_statistics);
  LLM_CUDA_OP(cross_entropy_of_parts);
  LLM_CUDA_OP(route);
  LLM_CUDA_OP(router_backward);
  LLM_CUDA_OP(group_rows);
  LLM_CUDA_OP(combine_rows);
  LLM_CUDA_OP(combine_rows_backward);
  LLM_CUDA_OP(order_by_expert);
  LLM_CUDA_OP(rows_by_expert);
  LLM_CUDA_OP(rows_by_rank);
  LLM_CUDA_OP(grouped_linear_forward);
  LLM_CUDA_OP(grouped_linear_backward_input);
  LLM_CUDA_OP(grouped_linear_backward_weight);
  LLM_CUDA_OP(layer_norm_forward);
  LLM_CUDA_OP(layer_norm_backward);
  LLM_CUDA_OP(rms_norm_forward);
  LLM_CUDA_OP(rms_norm_backward);
#undef LLM_CUDA_OP
};

/// All that the programs have of CUDA: the functions of a module that is opened when the program
/// runs (tensor/cuda/open_module.h), so that they start without driver and libraries.
struct Module {
  const char* build;  ///< of the sources: a module of another build is not used
  RuntimeCalls runtime;
  OpCalls ops;
};

/// The process's module from now on; nullptr: none. It outlives all that is on the device.
void use_module(const Module* module);
/// Whether there is one.
bool has_module();
/// Throws ContractBroken where there is none.
const Module& module();

}  // namespace llm::cuda
