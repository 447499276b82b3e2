#include "tensor/cuda/module.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>

#include "src/base/error.h"
#include "tensor/cuda/launch.h"
#include "tensor/cuda/products.h"
#ifndef LLM_CUDA_BUILD
#include <cuda_build.h>
#endif

namespace llm::cuda {
namespace {

// Memory is allocated and filled on a stream of its own, before a step and never in one.
cudaStream_t stream_of_memory = nullptr;

cudaStream_t memory_stream() {
  if (stream_of_memory == nullptr) {
    check(cudaStreamCreateWithFlags(&stream_of_memory, cudaStreamNonBlocking),
          "cudaStreamCreateWithFlags");
  }
  return stream_of_memory;
}

// By stream, from its first product on.
std::map<cudaStream_t, std::unique_ptr<Products>> products;
bool uses_library = true;

void use_library(bool is_used) {
  uses_library = is_used;
}

void open_products(cudaStream_t stream) {
  if (uses_library && products.count(stream) == 0) {
    products.emplace(stream, std::make_unique<Products>(stream));
  }
}

template <auto op, typename... Arguments>
void multiply(cudaStream_t stream, Arguments... arguments) {
  open_products(stream);
  op(stream, arguments...);
}

void close() {
  if (stream_of_memory != nullptr) cudaStreamDestroy(stream_of_memory);
  stream_of_memory = nullptr;
}

std::string why_none() {
  int n = 0;  // stays as it is without a driver
  const cudaError_t error = cudaGetDeviceCount(&n);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return n == 0 ? cudaGetErrorString(cudaErrorNoDevice) : "";
}

int n_devices() {
  int n = 0;
  return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

DeviceFacts facts(int device) {
  DeviceFacts facts;
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  char id[32] = {};
  check(cudaDeviceGetPCIBusId(id, sizeof id, device), "cudaDeviceGetPCIBusId");
  std::size_t free_bytes = 0;
  std::size_t n_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &n_bytes), "cudaMemGetInfo");
  facts.name = properties.name;
  facts.pci_id = id;
  facts.n_bytes = static_cast<std::int64_t>(n_bytes);
  facts.free_bytes = static_cast<std::int64_t>(free_bytes);
  facts.capability = 10 * properties.major + properties.minor;
  return facts;
}

void select(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  // The pool keeps what is given back: by itself it returns all of it to the driver whenever
  // something waits for the device, and ops would allocate their scratch anew in each step.
  cudaMemPool_t pool = nullptr;
  std::uint64_t kept_bytes = UINT64_MAX;
  check(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &kept_bytes),
        "cudaMemPoolSetAttribute");
}

void* allocate(std::int64_t n_bytes) {
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(n_bytes, 1));
  void* const memory = allocate_in(memory_stream(), size);
  check(cudaMemsetAsync(memory, 0, size, memory_stream()), "cudaMemsetAsync");
  check(cudaStreamSynchronize(memory_stream()), "cudaStreamSynchronize");
  return memory;
}

void release(void* memory) {
  cudaFreeAsync(memory, memory_stream());  // on the way out of a process it may fail
}

void* allocate_pinned(std::int64_t n_bytes) {
  void* memory = nullptr;
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(n_bytes, 1));
  const cudaError_t error = cudaHostAlloc(&memory, size, cudaHostAllocDefault);
  if (error == cudaErrorMemoryAllocation) throw OutOfMemory(n_bytes);
  check(error, "cudaHostAlloc");
  return memory;
}

void release_pinned(void* memory) {
  cudaFreeHost(memory);
}

cudaStream_t create_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}

void destroy_stream(cudaStream_t stream) {
  products.erase(stream);
  cudaStreamSynchronize(stream);
  cudaStreamDestroy(stream);
}

void synchronize(cudaStream_t stream) {
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

cudaEvent_t create_event(bool is_timed) {
  cudaEvent_t event = nullptr;
  const unsigned flags = is_timed ? cudaEventDefault : cudaEventDisableTiming;
  check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  return event;
}

void destroy_event(cudaEvent_t event) {
  cudaEventDestroy(event);
}

void record(cudaEvent_t event, cudaStream_t stream) {
  check(cudaEventRecord(event, stream), "cudaEventRecord");
}

bool is_reached(cudaEvent_t event) {
  const cudaError_t error = cudaEventQuery(event);
  if (error == cudaErrorNotReady) return false;
  check(error, "work on the device");  // of a kernel before it
  return true;
}

std::int64_t elapsed_ns(cudaEvent_t begin, cudaEvent_t end) {
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
  return static_cast<std::int64_t>(static_cast<double>(ms) * 1e6);
}

void copy_bytes(cudaStream_t stream, const void* from, void* to, std::int64_t n_bytes) {
  if (n_bytes == 0) return;
  check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(n_bytes), cudaMemcpyDefault, stream),
        "cudaMemcpyAsync");
}

void begin_capture(cudaStream_t stream) {
  // Of this thread alone: no other one works with the device.
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

cudaGraphExec_t end_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "cudaGraphInstantiate");
  return executable;
}

void cancel_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream, &graph) == cudaSuccess) cudaGraphDestroy(graph);
}

void launch_graph(cudaGraphExec_t graph, cudaStream_t stream) {
  check(cudaGraphLaunch(graph, stream), "cudaGraphLaunch");
}

void destroy_graph(cudaGraphExec_t graph) {
  cudaGraphExecDestroy(graph);
}

constexpr RuntimeCalls runtime_calls() {
  return {.why_none = why_none,
          .n_devices = n_devices,
          .facts = facts,
          .select = select,
          .close = close,
          .allocate = allocate,
          .release = release,
          .allocate_pinned = allocate_pinned,
          .release_pinned = release_pinned,
          .create_stream = create_stream,
          .destroy_stream = destroy_stream,
          .use_library = use_library,
          .synchronize = synchronize,
          .create_event = create_event,
          .destroy_event = destroy_event,
          .record = record,
          .is_reached = is_reached,
          .elapsed_ns = elapsed_ns,
          .copy = copy_bytes,
          .begin_capture = begin_capture,
          .end_capture = end_capture,
          .cancel_capture = cancel_capture,
          .launch_graph = launch_graph,
          .destroy_graph = destroy_graph};
}

constexpr OpCalls op_calls() {
  return {.convert = convert,
          .fill = fill,
          .write_numbers = write_numbers,
          .add = add,
          .add_rows = add_rows,
          .activation_forward = activation_forward,
          .activation_backward = activation_backward,
          .gated_forward = gated_forward,
          .gated_backward = gated_backward,
          .adamw = adamw,
          .sum_of_squares = sum_of_squares,
          .dropout = dropout,
          .embedding_forward = embedding_forward,
          .embedding_backward = embedding_backward,
          .add_positions = add_positions,
          .linear_forward = multiply<linear_forward>,
          .linear_gelu_tanh = multiply<linear_gelu_tanh>,
          .linear_backward_input = multiply<linear_backward_input>,
          .linear_backward_weight = multiply<linear_backward_weight>,
          .rope = rope,
          .attention_forward = attention_forward,
          .attention_backward = attention_backward,
          .rope_step = rope_step,
          .keep_keys_values = keep_keys_values,
          .attention_step = attention_step,
          .cross_entropy = cross_entropy,
          .cross_entropy_statistics = cross_entropy_statistics,
          .cross_entropy_of_parts = cross_entropy_of_parts,
          .route = route,
          .router_backward = router_backward,
          .group_rows = group_rows,
          .combine_rows = combine_rows,
          .combine_rows_backward = combine_rows_backward,
          .order_by_expert = order_by_expert,
          .rows_by_expert = rows_by_expert,
          .rows_by_rank = rows_by_rank,
          .grouped_linear_forward = grouped_linear_forward,
          .grouped_linear_backward_input = grouped_linear_backward_input,
          .grouped_linear_backward_weight = grouped_linear_backward_weight,
          .layer_norm_forward = layer_norm_forward,
          .layer_norm_backward = layer_norm_backward,
          .rms_norm_forward = rms_norm_forward,
          .rms_norm_backward = rms_norm_backward};
}

}  // namespace
}  // namespace llm::cuda

/// What the programs look up in the module.
extern "C" const llm::cuda::Module* llm_cuda_module() {
  static const llm::cuda::Module module{LLM_CUDA_BUILD, llm::cuda::runtime_calls(),
                                        llm::cuda::op_calls()};
  return &module;
}
