// cuBLAS, opened at first use: 600 MB that only prefills need are not linked.
#pragma once

#include "backend/cuda/device.h"

namespace ds41 {

// Enqueue. 0, a cudaError_t, or kCublasMissing and above with cublas_sentence() for it.
constexpr int kCublasMissing = 10000;
int cublas_gemm(DeviceStream stream, const DeviceGemm &gemm);
const char *cublas_sentence();

} // namespace ds41
