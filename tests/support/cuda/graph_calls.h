#pragma once
// Of CUDA's runtime what captures and launches graphs, for include/cuda_runtime.h.
#include "tests/support/cuda/cuda_types.h"
#include "tests/support/cuda/device.h"
#include "tests/support/cuda/handles.h"

inline cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  llm::emulator::current_device()->begin_capture(llm::emulator::number_of(stream));
  return cudaSuccess;
}
inline cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const int number = llm::emulator::current_device()->end_capture(llm::emulator::number_of(stream));
  *graph = llm::emulator::handle_of<cudaGraph_t>(number);
  return cudaSuccess;
}
// A graph and what is launched of it have one number.
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                        unsigned long long) {
  *executable = llm::emulator::handle_of<cudaGraphExec_t>(llm::emulator::number_of(graph));
  return cudaSuccess;
}
inline cudaError_t cudaGraphDestroy(cudaGraph_t) {
  return cudaSuccess;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  llm::emulator::current_device()->launch_graph(llm::emulator::number_of(executable),
                                                llm::emulator::number_of(stream));
  return cudaSuccess;
}
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  llm::emulator::current_device()->destroy_graph(llm::emulator::number_of(executable));
  return cudaSuccess;
}
