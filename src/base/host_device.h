#pragma once

/// Before functions that kernels call too, so that a formula stands once for CPU and device.
#ifdef __CUDACC__
#define LLM_HOST_DEVICE __host__ __device__
#else
#define LLM_HOST_DEVICE
#endif
