// The formats of lib/numeric as kernels use them: the scalar definitions are the host's own, compiled for the device.
#pragma once

#include "numeric/bf16.h"
#include "numeric/e2m1.h"
#include "numeric/e4m3.h"
#include "numeric/rows.h"
#include "numeric/ue8m0.h"
#include "simt.h"

namespace ds41::kernels {

// The two bf16 values of a word, the lower first.
__device__ __forceinline__ float low_bf16(std::uint32_t word) {
    return float_from_bits(word << 16);
}
__device__ __forceinline__ float high_bf16(std::uint32_t word) {
    return float_from_bits(word & 0xffff0000u);
}
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
    return to_bf16(low).bits | static_cast<std::uint32_t>(to_bf16(high).bits) << 16;
}

} // namespace ds41::kernels
