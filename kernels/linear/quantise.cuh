// Activation rows in a form that products with quantised weights take, for rows that no kernel has made in it. A warp
// takes a block of 32 values.
#pragma once

#include "common/quantised.cuh"
#include "linear/params.h"

namespace ds41::kernels {

constexpr int kQuantiseThreads = 128;

// grid (four blocks of values of a row, token)
__global__ void __launch_bounds__(kQuantiseThreads) quantise(const __grid_constant__ QuantiseParams p) {
    const int lane = static_cast<int>(threadIdx.x) % simt::kWarp, warp = static_cast<int>(threadIdx.x) / simt::kWarp;
    const int block = static_cast<int>(blockIdx.x) * (kQuantiseThreads / simt::kWarp) + warp;
    const int column = block * kQuantisedBlock + lane;
    const std::int64_t token = blockIdx.y;
    if (column >= p.out.width) return; // a whole warp
    const float value[1] = {to_f32(simt::load(p.x + token * p.stride_x + column))};
    quantise_lanes<1>(p.out, token, column, value, true);
}

} // namespace ds41::kernels
