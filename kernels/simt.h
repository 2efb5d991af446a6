// The dialect that kernels are written in: CUDA C++, with the operations below in place of those that a host compiler
// cannot follow. nvcc sees CUDA itself; a host compiler sees a simulator with the same names, which runs a block's
// threads as fibers and checks what CUDA leaves undefined. kernels/README.md describes both.
//
//   SIMT_LAUNCH(stream, (kernel<...>), grid, block, dynamic_shared_bytes, params)    0, or an error number
//   SIMT_SHARED(T, name, n)          static shared array
//   SIMT_DYNAMIC_SHARED(pool)        dynamic shared memory; pool.take<T>(n) gives consecutive arrays
//   simt::load, load_once, store     every access to global memory
//   simt::copy_async16 ...           global to shared memory, there after the wait and a barrier
//   simt::mma_m16n8k16_bf16          tensor cores
//   __syncthreads, __syncwarp, __shfl_*_sync, __ballot_sync, __any_sync, __all_sync
#pragma once

#include "simt/types.h"

#if defined(__CUDACC__)
#include "simt/cuda.h"
#else
#include "simt/host.h"
#endif
