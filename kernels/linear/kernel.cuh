// Numerics: a lane takes eight values of every 256 and adds their products in f32, in ascending order, by fused
// multiply-adds; a butterfly adds the lanes. Nothing depends on how many rows of x ride along, or on what else the
// launch computes. Weights are decoded to exact values. fp8: both scales are powers of two and go into the values,
// which is the reference's sum of code products times the product of the scales unless that leaves f32's range.
#pragma once

#include "common/formats.cuh"
#include "common/quantised.cuh"
#include "linear/params.h"

namespace ds41::kernels {

constexpr int kLinearRows = 2;       // of a warp: a pair to be rotated
constexpr int kLinearWarps = 8;      // of a thread block: few, so that small matrices reach all multiprocessors
constexpr int kQuantisingWarps = 16; // of one whose results are quantised: its rows are one block of the quantiser
static_assert(kQuantisingWarps * kLinearRows == kQuantisedBlock);
constexpr int kLane = 8; // values of a lane: 16 bytes of bf16
// Loads of a lane in flight for each row: fewer where sums take the registers that a block of 16 warps has.
constexpr int linear_steps(int n_tokens, int n_warps) {
    return n_tokens > 8 && n_warps > kLinearWarps ? 2 : 4;
}
// Values of x that are staged: 2 KiB a row, or 1.
constexpr int linear_chunk(int n_tokens, int n_warps) {
    return linear_steps(n_tokens, n_warps) * simt::kWarp * kLane;
}
// Blocks that a multiprocessor holds at least: what it takes to keep loads in flight, and few enough that sums of many
// tokens stay in registers.
constexpr int linear_blocks(int n_tokens, int n_warps) {
    return n_tokens >= 8 || n_warps > kLinearWarps ? 1 : 2;
}

// What a warp computes: two rows of a slice.
struct WarpRows {
    const LinearSegment &segment;
    int slice;
    int first;              // of the slice; it may lie behind its last
    std::int64_t slice_row; // the slice's first row in the matrix and the output
};

// grid (row blocks of all slices of all segments); a thread block's rows are of one slice.
template <int kWarps> __device__ __forceinline__ WarpRows warp_rows(const LinearParams &p) {
    int which = 0;
    while (which + 1 < p.n_segments && static_cast<int>(blockIdx.x) >= p.segments[which + 1].first_block) ++which;
    const LinearSegment &s = p.segments[which];
    constexpr int kBlockRows = kWarps * kLinearRows;
    const int blocks_of_slice = (s.rows + kBlockRows - 1) / kBlockRows;
    const int block = static_cast<int>(blockIdx.x) - s.first_block;
    const int slice = block / blocks_of_slice, warp = static_cast<int>(threadIdx.x) / simt::kWarp;
    return {s, slice, block % blocks_of_slice * kBlockRows + warp * kLinearRows,
            static_cast<std::int64_t>(slice) * s.rows};
}

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

// f16_to_f32 without a branch, for scales that every lane reads.
__device__ __forceinline__ float half_to_f32(std::uint32_t half) {
    // The fields where a float has them, with an exponent that is 112 too small: subnormal halves are subnormal floats.
    const std::uint32_t magnitude = (half & 0x7fffu) << 13;
    const std::uint32_t bits = float_bits(float_from_bits(magnitude) * 0x1p112f);
    constexpr std::uint32_t kInfHalf = 0x7c00u << 13;
    return float_from_bits(bits | (magnitude >= kInfHalf ? kInfBits : 0u) | (half & 0x8000u) << 16);
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

// k is a multiple of 256, so that a warp has a block of 84 bytes: a word for each of 21 lanes. A lane's eight codes lie
// in one plane of one half of the block and share a scale.
template <> struct LinearWeights<LinearFormat::kQ2KPlain> {
    static constexpr int kWords = 21, kCodes = 4, kBoth = 20; // the first of the codes; d and dmin, fp16
    std::uint32_t word;

    template <bool kWide> __device__ __forceinline__ void load(const LinearSegment &s, std::int64_t row, int col) {
        constexpr int kValues = 256, kBytes = 84;
        const int lane = static_cast<int>(threadIdx.x) % simt::kWarp;
        const std::uint8_t *block = s.weights + (row * (s.k / kValues) + col / kValues) * kBytes;
        word = lane < kWords ? load_word<kWide>(block + 4 * lane) : 0;
    }
    __device__ __forceinline__ void clear() { word = 0; }
    __device__ __forceinline__ void values(float (&v)[kLane]) const {
        const int lane = static_cast<int>(threadIdx.x) % simt::kWarp;
        const int half = lane / 16, plane = lane % 16 / 4, pair = lane % 4; // of words in a plane
        const int scale_at = 8 * half + 2 * plane + pair / 2;
        const std::uint32_t words[2] = {__shfl_sync(simt::kFullMask, word, kCodes + 8 * half + 2 * pair),
                                        __shfl_sync(simt::kFullMask, word, kCodes + 8 * half + 2 * pair + 1)};
        const std::uint32_t scale = __shfl_sync(simt::kFullMask, word, scale_at / 4) >> (8 * (scale_at % 4));
        const std::uint32_t both = __shfl_sync(simt::kFullMask, word, kBoth);
        const float d = half_to_f32(both), dmin = half_to_f32(both >> 16);
        const float min = dmin * static_cast<float>(scale >> 4 & 15);
        SIMT_UNROLL
        for (int i = 0; i < kLane; ++i) {
            const std::uint32_t code = words[i / 4] >> (8 * (i % 4) + 2 * plane) & 3u;
            v[i] = d * static_cast<float>(scale & 15) * static_cast<float>(code) - min;
        }
    }
};

// Eight values of x, through the fp8 quantiser: four lanes have a block.
__device__ __forceinline__ uint4 quantised(uint4 bits) {
    std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
    BlockRange range;
    SIMT_UNROLL
    for (int i = 0; i < kLane; ++i) range.add(i % 2 ? high_bf16(words[i / 2]) : low_bf16(words[i / 2]));
    range.join_lanes<kQuantisedBlock / kLane>();
    const Fp8Quantiser quantiser(range);
    SIMT_UNROLL
    for (int i = 0; i < 4; ++i)
        words[i] = quantiser.value(low_bf16(words[i])).bits |
                   static_cast<std::uint32_t>(quantiser.value(high_bf16(words[i])).bits) << 16;
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

// The end of a product: the lanes' sums are added, results stored. All threads of the block come. `results` are words
// of two, [kTokens, kWarps], and are used where results are quantised.
template <int kTokens, int kWarps>
__device__ __forceinline__ void finish_rows(const LinearParams &p, const WarpRows &rows,
                                            const float (&sums)[kLinearRows][kTokens],
                                            const simt::Shared<std::uint32_t> &results) {
    const LinearSegment &s = rows.segment;
    const int warp = static_cast<int>(threadIdx.x) / simt::kWarp, lane = static_cast<int>(threadIdx.x) % simt::kWarp;
    float even = 0.0f, odd = 0.0f; // of token `lane`
    SIMT_UNROLL
    for (int t = 0; t < kTokens; ++t) {
        float pair[kLinearRows] = {sums[0][t], sums[1][t]};
        SIMT_UNROLL
        for (int lanes = simt::kWarp / 2; lanes > 0; lanes /= 2) SIMT_UNROLL
        for (int r = 0; r < kLinearRows; ++r) pair[r] += __shfl_xor_sync(simt::kFullMask, pair[r], lanes);
        if (lane == t) {
            even = pair[0];
            odd = pair[1];
        }
    }
    if (lane < p.n && rows.first < s.rows) {
        if (s.out) store_pair(s, lane, rows.slice_row + rows.first, even, odd, rows.first + 1 < s.rows);
        if constexpr (kWarps == kQuantisingWarps) results[lane * kWarps + warp] = pack_bf16(even, odd);
    }
    if constexpr (kWarps == kQuantisingWarps) {
        if (s.quantised.form == QuantisedForm::kNone) return; // the whole block
        __syncthreads();
        const int column = static_cast<int>(rows.slice_row) + rows.first - warp * kLinearRows + lane;
        for (int t = warp; t < p.n; t += kWarps) {
            const std::uint32_t pair = results[t * kWarps + lane / 2];
            const float value[1] = {lane % 2 ? high_bf16(pair) : low_bf16(pair)};
            quantise_lanes<1>(s.quantised, t, column, value, true);
        }
    }
}

template <LinearFormat kFormat, int kTokens, bool kWide, int kWarps>
__global__ void __launch_bounds__(kWarps *simt::kWarp, linear_blocks(kTokens, kWarps))
    linear(const __grid_constant__ LinearParams p) {
    const WarpRows rows = warp_rows<kWarps>(p);
    const LinearSegment &s = rows.segment;
    const int lane = static_cast<int>(threadIdx.x) % simt::kWarp;
    const Bf16 *x = s.x + static_cast<std::int64_t>(rows.slice) * s.k;

    constexpr int kSteps = linear_steps(kTokens, kWarps), kChunk = linear_chunk(kTokens, kWarps);
    SIMT_DYNAMIC_SHARED(pool);
    const auto staged = pool.take<Bf16>(kTokens * kChunk);
    const auto results = pool.take<std::uint32_t>(kWarps == kQuantisingWarps ? kTokens * kWarps : 0);
    float sums[kLinearRows][kTokens];
    SIMT_UNROLL
    for (int r = 0; r < kLinearRows; ++r) SIMT_UNROLL
    for (int t = 0; t < kTokens; ++t) sums[r][t] = 0.0f;

    // To the end of a stretch that all instances share: zeros behind the last column turn a lane's -0 into 0.
    constexpr int kStretch = linear_chunk(1, kLinearWarps);
    const int end = (s.k + kStretch - 1) / kStretch * kStretch;
    for (int chunk = 0; chunk < end; chunk += kChunk) {
        // The weights are on their way while x is staged.
        LinearWeights<kFormat> weights[kLinearRows][kSteps];
        SIMT_UNROLL
        for (int r = 0; r < kLinearRows; ++r) SIMT_UNROLL
        for (int step = 0; step < kSteps; ++step) {
            const int col = chunk + (step * simt::kWarp + lane) * kLane;
            if (rows.first + r < s.rows && col < s.k)
                weights[r][step].template load<kWide>(s, rows.slice_row + rows.first + r, col);
            else
                weights[r][step].clear();
        }
        __syncthreads(); // the last chunk has been read
        for (int i = static_cast<int>(threadIdx.x) * kLane; i < kTokens * kChunk; i += kWarps * simt::kWarp * kLane) {
            const int token = i / kChunk, col = chunk + i % kChunk;
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
                // Keeps the compiler from loading ahead more of x than there are registers for.
                if (kSteps < linear_steps(1, kLinearWarps) && t % 4 == 0) __syncwarp();
                const auto bits = staged.template load<uint4>(t * kChunk + (step * simt::kWarp + lane) * kLane);
                const float v[kLane] = {low_bf16(bits.x), high_bf16(bits.x), low_bf16(bits.y), high_bf16(bits.y),
                                        low_bf16(bits.z), high_bf16(bits.z), low_bf16(bits.w), high_bf16(bits.w)};
                SIMT_UNROLL
                for (int r = 0; r < kLinearRows; ++r) SIMT_UNROLL
                for (int e = 0; e < kLane; ++e) sums[r][t] = fmaf(w[r][e], v[e], sums[r][t]);
            }
        }
    }
    finish_rows<kTokens, kWarps>(p, rows, sums, results);
}

} // namespace ds41::kernels
