// Activation rows in ggml's q8_1 form, for Q2_K weights: per 32 values int8 codes and a scale. A warp takes a block.
#pragma once

#include "common/formats.cuh"
#include "linear/q2k.cuh"

namespace ds41::kernels {

constexpr int kQ8Threads = 128;

// grid (blocks of four q8 blocks of a row, token)
__global__ void __launch_bounds__(kQ8Threads) quantise_q8(const __grid_constant__ QuantiseQ8Params p) {
    const int lane = static_cast<int>(threadIdx.x) % simt::kWarp;
    const int block =
        static_cast<int>(blockIdx.x) * (kQ8Threads / simt::kWarp) + static_cast<int>(threadIdx.x) / simt::kWarp;
    const std::int64_t token = blockIdx.y;
    const int n_blocks = p.k / kQ8Values;
    if (block >= n_blocks) return; // a whole warp
    const float value = to_f32(simt::load(p.x + token * p.stride_x + block * kQ8Values + lane));
    float amax = fabsf(value);
    int finite = is_finite(value);
    SIMT_UNROLL
    for (int lanes = simt::kWarp / 2; lanes > 0; lanes /= 2) {
        amax = fmaxf(amax, __shfl_xor_sync(simt::kFullMask, amax, lanes));
        finite &= __shfl_xor_sync(simt::kFullMask, finite, lanes);
    }
    // The codes are made with the unrounded scale, to nearest, halves away from zero.
    const float d = amax / 127.0f;
    const float code = finite && d > 0.0f ? roundf(value / d) : 0.0f;
    simt::store(p.codes + token * p.k + block * kQ8Values + lane, static_cast<std::int8_t>(code));
    if (lane == 0)
        simt::store(p.scales + token * n_blocks + block,
                    finite ? f16_to_f32(f32_to_f16(d)) : float_from_bits(0x7fc00000u));
}

} // namespace ds41::kernels
