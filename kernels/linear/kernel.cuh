// Numerics: a lane takes eight values of every 256 and adds their products in f32, in ascending order, by fused
// multiply-adds; a butterfly adds the lanes. Nothing depends on how many rows of x ride along, or on what else the
// launch computes. Weights are decoded to exact values. fp8: both scales are powers of two and go into the values,
// which is the reference's sum of code products times the product of the scales unless that leaves f32's range.
#pragma once

#include "common/formats.cuh"
#include "linear/params.h"
#include "numeric/f16.h"

namespace ds41::kernels {

constexpr int kLinearWarps = 8;
constexpr int kLinearThreads = kLinearWarps * simt::kWarp;
constexpr int kLinearRows = 2;                               // of a warp: a pair to be rotated
constexpr int kLinearBlockRows = kLinearWarps * kLinearRows; // that share what is staged of x
constexpr int kLane = 8;                                     // values of a lane: 16 bytes of bf16
constexpr int kSteps = 4;                                    // loads of a lane in flight for each row
// Blocks that a multiprocessor holds at least: what it takes to keep loads in flight, and few enough that sums of many
// tokens stay in registers.
constexpr int linear_blocks(int n_tokens) {
    return n_tokens >= 8 ? 1 : 2;
}
constexpr int kLinearChunk = kSteps * simt::kWarp * kLane; // values of x that are staged: 2 KiB a row

// Four bytes of a Q2_K row: a word where the rows stand on words.
template <bool kWide> __device__ __forceinline__ std::uint32_t load_word(const std::uint8_t *p) {
    if constexpr (kWide) {
        return simt::load_once(reinterpret_cast<const std::uint32_t *>(p));
    } else {
        std::uint32_t word = 0;
        SIMT_UNROLL
        for (int i = 0; i < 4; ++i) word |= static_cast<std::uint32_t>(simt::load(p + i)) << (8 * i);
        return word;
    }
}

// Raw bits of a lane's eight weights, and how to read them. kWide: rows are aligned to what one load takes.
template <LinearFormat> struct LinearWeights;

template <> struct LinearWeights<LinearFormat::kBf16> {
    uint4 bits;

    template <bool kWide> __device__ __forceinline__ void load(const LinearSegment &s, std::int64_t row, int col) {
        const auto *p = reinterpret_cast<const Bf16 *>(s.weights) + row * s.k + col;
        if constexpr (kWide) {
            bits = simt::load_once(reinterpret_cast<const uint4 *>(p));
        } else {
            std::uint32_t words[4] = {0, 0, 0, 0};
            SIMT_UNROLL
            for (int i = 0; i < kLane; ++i)
                if (col + i < s.k)
                    words[i / 2] |= static_cast<std::uint32_t>(simt::load(p + i).bits) << (i % 2 ? 16 : 0);
            bits = {words[0], words[1], words[2], words[3]};
        }
    }
    __device__ __forceinline__ void clear() { bits = {0, 0, 0, 0}; }
    __device__ __forceinline__ void values(float (&v)[kLane]) const {
        v[0] = low_bf16(bits.x);
        v[1] = high_bf16(bits.x);
        v[2] = low_bf16(bits.y);
        v[3] = high_bf16(bits.y);
        v[4] = low_bf16(bits.z);
        v[5] = high_bf16(bits.z);
        v[6] = low_bf16(bits.w);
        v[7] = high_bf16(bits.w);
    }
};

template <> struct LinearWeights<LinearFormat::kF32> {
    float4 low, high;

    template <bool kWide> __device__ __forceinline__ void load(const LinearSegment &s, std::int64_t row, int col) {
        const float *p = reinterpret_cast<const float *>(s.weights) + row * s.k + col;
        if constexpr (kWide) {
            low = simt::load_once(reinterpret_cast<const float4 *>(p));
            high = col + 4 < s.k ? simt::load_once(reinterpret_cast<const float4 *>(p) + 1)
                                 : float4{0.0f, 0.0f, 0.0f, 0.0f};
        } else {
            float v[kLane];
            SIMT_UNROLL
            for (int i = 0; i < kLane; ++i) v[i] = col + i < s.k ? simt::load(p + i) : 0.0f;
            low = {v[0], v[1], v[2], v[3]};
            high = {v[4], v[5], v[6], v[7]};
        }
    }
    __device__ __forceinline__ void clear() { low = high = {0.0f, 0.0f, 0.0f, 0.0f}; }
    __device__ __forceinline__ void values(float (&v)[kLane]) const {
        v[0] = low.x;
        v[1] = low.y;
        v[2] = low.z;
        v[3] = low.w;
        v[4] = high.x;
        v[5] = high.y;
        v[6] = high.z;
        v[7] = high.w;
    }
};

// k is a multiple of 32: eight codes always lie in one block.
template <> struct LinearWeights<LinearFormat::kFp8> {
    uint2 codes;
    std::uint8_t scale;

    template <bool kWide> __device__ __forceinline__ void load(const LinearSegment &s, std::int64_t row, int col) {
        constexpr int kBlock = 32;
        codes = simt::load_once(reinterpret_cast<const uint2 *>(s.weights + row * s.k + col));
        scale = simt::load(s.scales + row / kBlock * (s.k / kBlock) + col / kBlock);
    }
    __device__ __forceinline__ void clear() {
        codes = {0, 0};
        scale = 0;
    }
    __device__ __forceinline__ void values(float (&v)[kLane]) const {
        const float s = ue8m0_to_f32(scale);
        SIMT_UNROLL
        for (int i = 0; i < kLane; ++i)
            v[i] = e4m3_to_f32(static_cast<std::uint8_t>((i < 4 ? codes.x : codes.y) >> (8 * (i % 4)))) * s;
    }
};

// k is a multiple of 256: eight codes lie in one plane of one half of a block, and share a scale.
template <> struct LinearWeights<LinearFormat::kQ2KPlain> {
    std::uint32_t words[2]; // bytes, of which this plane has two bits
    std::uint32_t both;     // d and dmin, fp16
    std::uint8_t scale;
    std::uint8_t shift;

    template <bool kWide> __device__ __forceinline__ void load(const LinearSegment &s, std::int64_t row, int col) {
        constexpr int kValues = 256, kBytes = 84;
        const std::uint8_t *block = s.weights + (row * (s.k / kValues) + col / kValues) * kBytes;
        const int half = col % kValues / 128, plane = col % 128 / 32, r = col % 32;
        const std::uint8_t *codes = block + 16 + 32 * half + r;
        words[0] = load_word<kWide>(codes);
        words[1] = load_word<kWide>(codes + 4);
        both = load_word<kWide>(block + 80);
        scale = simt::load(block + 8 * half + 2 * plane + r / 16);
        shift = static_cast<std::uint8_t>(2 * plane);
    }
    __device__ __forceinline__ void clear() {
        words[0] = words[1] = both = 0;
        scale = shift = 0;
    }
    __device__ __forceinline__ void values(float (&v)[kLane]) const {
        const float d = f16_to_f32(static_cast<std::uint16_t>(both)),
                    dmin = f16_to_f32(static_cast<std::uint16_t>(both >> 16));
        const float min = dmin * static_cast<float>(scale >> 4);
        SIMT_UNROLL
        for (int i = 0; i < kLane; ++i) {
            const std::uint32_t code = words[i / 4] >> (8 * (i % 4) + shift) & 3u;
            v[i] = d * static_cast<float>(scale & 15) * static_cast<float>(code) - min;
        }
    }
};

// Eight values of x, through the fp8 quantiser: the four lanes of a block of 32 agree on its scale. A block that holds
// a NaN or an infinity becomes NaN throughout.
__device__ __forceinline__ uint4 quantised(uint4 bits) {
    std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
    float amax = kFp8AmaxFloor;
    int finite = 1;
    SIMT_UNROLL
    for (int i = 0; i < kLane; ++i) {
        const float value = i % 2 ? high_bf16(words[i / 2]) : low_bf16(words[i / 2]);
        finite &= is_finite(value);
        amax = fmaxf(amax, fabsf(value));
    }
    SIMT_UNROLL
    for (int lanes = 1; lanes < kWindowBlock / kLane; lanes *= 2) {
        amax = fmaxf(amax, __shfl_xor_sync(simt::kFullMask, amax, lanes));
        finite &= __shfl_xor_sync(simt::kFullMask, finite, lanes);
    }
    const float scale = pow2_ceil(amax / kE4m3Max);
    SIMT_UNROLL
    for (int i = 0; i < 4; ++i) {
        const float low = e4m3_to_f32(f32_to_e4m3(low_bf16(words[i]) / scale)) * scale;
        const float high = e4m3_to_f32(f32_to_e4m3(high_bf16(words[i]) / scale)) * scale;
        words[i] = finite ? pack_bf16(low, high) : 0x7fc07fc0u;
    }
    return {words[0], words[1], words[2], words[3]};
}

template <LinearOutput kOutput>
__device__ __forceinline__ void store_output(const LinearSegment &s, int token, std::int64_t row, float value) {
    if constexpr (kOutput == LinearOutput::kF32)
        simt::store(static_cast<float *>(s.out) + token * s.stride_out + row, value);
    else if constexpr (kOutput == LinearOutput::kScaled)
        simt::store(static_cast<Bf16 *>(s.out) + token * s.stride_out + row, to_bf16(to_f32(to_bf16(value)) * s.scale));
    else
        simt::store(static_cast<Bf16 *>(s.out) + token * s.stride_out + row, to_bf16(value));
}

// Two neighbouring rows of one token. They are a pair of a head's rotated part, or neither is: both begin evenly.
__device__ __forceinline__ void store_rotated(const LinearSegment &s, int token, std::int64_t row, float even,
                                              float odd) {
    float re = to_f32(to_bf16(even)), im = to_f32(to_bf16(odd));
    const int pair = (static_cast<int>(row % s.head_dim) - (s.head_dim - 2 * s.n_pairs)) / 2;
    if (row % s.head_dim >= s.head_dim - 2 * s.n_pairs) {
        const float2 angle = simt::load(reinterpret_cast<const float2 *>(s.angles) + token * s.n_pairs + pair);
        const float turned = re * angle.x - im * angle.y;
        im = re * angle.y + im * angle.x;
        re = turned;
    }
    simt::store(reinterpret_cast<std::uint32_t *>(static_cast<Bf16 *>(s.out) + token * s.stride_out + row),
                pack_bf16(re, im));
}

// Both rows of a warp.
__device__ __forceinline__ void store_pair(const LinearSegment &s, int token, std::int64_t row, float even, float odd,
                                           bool has_odd) {
    if (s.output == LinearOutput::kRotated) {
        store_rotated(s, token, row, even, odd);
    } else if (s.output == LinearOutput::kF32) {
        store_output<LinearOutput::kF32>(s, token, row, even);
        if (has_odd) store_output<LinearOutput::kF32>(s, token, row + 1, odd);
    } else if (s.output == LinearOutput::kScaled) {
        store_output<LinearOutput::kScaled>(s, token, row, even);
        if (has_odd) store_output<LinearOutput::kScaled>(s, token, row + 1, odd);
    } else {
        store_output<LinearOutput::kBf16>(s, token, row, even);
        if (has_odd) store_output<LinearOutput::kBf16>(s, token, row + 1, odd);
    }
}

// grid (row blocks of all slices of all segments); a block's rows are of one slice.
template <LinearFormat kFormat, int kTokens, bool kWide>
__global__ void __launch_bounds__(kLinearThreads, linear_blocks(kTokens))
    linear(const __grid_constant__ LinearParams p) {
    int which = 0;
    while (which + 1 < p.n_segments && static_cast<int>(blockIdx.x) >= p.segments[which + 1].first_block) ++which;
    const LinearSegment &s = p.segments[which];
    const int blocks_of_slice = (s.rows + kLinearBlockRows - 1) / kLinearBlockRows;
    const int block = static_cast<int>(blockIdx.x) - s.first_block;
    const int slice = block / blocks_of_slice;
    const int warp = static_cast<int>(threadIdx.x) / simt::kWarp, lane = static_cast<int>(threadIdx.x) % simt::kWarp;
    const int first_row = block % blocks_of_slice * kLinearBlockRows + warp * kLinearRows; // of the slice
    const std::int64_t slice_row = static_cast<std::int64_t>(slice) * s.rows;
    const Bf16 *x = s.x + static_cast<std::int64_t>(slice) * s.k;

    SIMT_DYNAMIC_SHARED(pool);
    const auto staged = pool.take<Bf16>(kTokens * kLinearChunk);
    float sums[kLinearRows][kTokens];
    SIMT_UNROLL
    for (int r = 0; r < kLinearRows; ++r) SIMT_UNROLL
    for (int t = 0; t < kTokens; ++t) sums[r][t] = 0.0f;

    for (int chunk = 0; chunk < s.k; chunk += kLinearChunk) {
        // The weights are on their way while x is staged.
        LinearWeights<kFormat> weights[kLinearRows][kSteps];
        SIMT_UNROLL
        for (int r = 0; r < kLinearRows; ++r) SIMT_UNROLL
        for (int step = 0; step < kSteps; ++step) {
            const int col = chunk + (step * simt::kWarp + lane) * kLane;
            if (first_row + r < s.rows && col < s.k)
                weights[r][step].template load<kWide>(s, slice_row + first_row + r, col);
            else
                weights[r][step].clear();
        }
        __syncthreads(); // the last chunk has been read
        for (int i = static_cast<int>(threadIdx.x) * kLane; i < kTokens * kLinearChunk; i += kLinearThreads * kLane) {
            const int token = i / kLinearChunk, col = chunk + i % kLinearChunk;
            const Bf16 *source = x + token * s.stride_x + col;
            uint4 bits = {0, 0, 0, 0};
            if (token < p.n) {
                if (kWide && col < s.k) {
                    bits = simt::load(reinterpret_cast<const uint4 *>(source));
                } else if (!kWide) {
                    std::uint32_t words[4] = {0, 0, 0, 0};
                    SIMT_UNROLL
                    for (int e = 0; e < kLane; ++e)
                        if (col + e < s.k)
                            words[e / 2] |= static_cast<std::uint32_t>(simt::load(source + e).bits) << (e % 2 ? 16 : 0);
                    bits = {words[0], words[1], words[2], words[3]};
                }
            }
            if (kFormat == LinearFormat::kFp8 && s.quantise) bits = quantised(bits);
            staged.template store<uint4>(i, bits);
        }
        __syncthreads();
        SIMT_UNROLL
        for (int step = 0; step < kSteps; ++step) {
            float w[kLinearRows][kLane];
            SIMT_UNROLL
            for (int r = 0; r < kLinearRows; ++r) weights[r][step].values(w[r]);
            SIMT_UNROLL
            for (int t = 0; t < kTokens; ++t) {
                const auto bits = staged.template load<uint4>(t * kLinearChunk + (step * simt::kWarp + lane) * kLane);
                const float v[kLane] = {low_bf16(bits.x), high_bf16(bits.x), low_bf16(bits.y), high_bf16(bits.y),
                                        low_bf16(bits.z), high_bf16(bits.z), low_bf16(bits.w), high_bf16(bits.w)};
                SIMT_UNROLL
                for (int r = 0; r < kLinearRows; ++r) SIMT_UNROLL
                for (int e = 0; e < kLane; ++e) sums[r][t] = fmaf(w[r][e], v[e], sums[r][t]);
            }
        }
    }
    SIMT_UNROLL
    for (int t = 0; t < kTokens; ++t) {
        float even = sums[0][t], odd = sums[1][t];
        SIMT_UNROLL
        for (int lanes = simt::kWarp / 2; lanes > 0; lanes /= 2) {
            even += __shfl_xor_sync(simt::kFullMask, even, lanes);
            odd += __shfl_xor_sync(simt::kFullMask, odd, lanes);
        }
        if (lane == t && t < p.n && first_row < s.rows)
            store_pair(s, t, slice_row + first_row, even, odd, first_row + 1 < s.rows);
    }
}

} // namespace ds41::kernels
