// Q2_K weight rows against q8_1 activation rows.
// Numerics: lib/numeric/q2_k.h, bit for bit: lane q % 16 makes its value of a block from four code bytes in each of
// four planes; the lower half of the warp takes even blocks and the upper half odd ones; a butterfly adds the lanes.
// Products with scales and mins are made in integers: four codes of 2 bits times a scale of 4 bits are four bytes.
#pragma once

#include "linear/kernel.cuh"

namespace ds41::kernels {

constexpr int kQ2KValues = 256;
constexpr int kQ2KBlockBytes = 84;
constexpr int kQ2KPlanes = 4;
constexpr int kQ2KLanes = 16; // that share a block
constexpr int kQ8Values = 32;
constexpr int kQ8Blocks = kQ2KValues / kQ8Values;                   // against a block of weights
constexpr int kQ2KSteps = 4;                                        // blocks of a lane in flight for each row
constexpr int kQ2KChunk = kQ2KSteps * (simt::kWarp / kQ2KLanes);    // blocks of x that are staged
constexpr int kQ2KStagedWords = kQ2KChunk * kQ2KLanes * kQ2KPlanes; // of a token
constexpr int kQ2KStagedScales = kQ2KChunk * kQ8Blocks;
static_assert(kQ2KStagedWords * 4 == kQ2KChunk * kQ2KValues);

// As linear_blocks(). A lane has fewer bytes in flight here, so of one token more lanes are there: as many as have
// registers.
constexpr int q2k_blocks(int n_tokens, int n_warps) {
    return n_tokens > 1 ? linear_blocks(n_tokens, n_warps) : n_warps > kLinearWarps ? 2 : 3;
}

// A lane's words of a block: codes, and for the first five lanes what all share: 16 bytes of scales, d and dmin.
struct Q2KWords {
    static constexpr int kShared = 5, kBoth = 4; // the last of them: d and dmin, fp16
    std::uint32_t codes, shared;

    template <bool kWide> __device__ __forceinline__ void load(const std::uint8_t *block, int q) {
        constexpr int kCodesAt = 16, kBothAt = 80;
        codes = load_word<kWide>(block + kCodesAt + 4 * q);
        shared = q < kShared ? load_word<kWide>(block + (q == kBoth ? kBothAt : 4 * q)) : 0;
    }
};

// The products of four signed bytes, added up, as a float. The sum is made in the mantissa of a number whose unit is
// one, which costs less than a conversion.
__device__ __forceinline__ float byte_dot(std::uint32_t a, std::uint32_t b) {
    constexpr float kBase = 0x1.8p+23f;
    const int sum = simt::dot4(static_cast<int>(a), static_cast<int>(b), static_cast<int>(float_bits(kBase)));
    return float_from_bits(static_cast<std::uint32_t>(sum)) - kBase;
}

template <int kTokens, bool kWide, int kWarps>
__global__ void __launch_bounds__(kWarps *simt::kWarp, q2k_blocks(kTokens, kWarps))
    linear_q2k(const __grid_constant__ LinearParams p) {
    const WarpRows rows = warp_rows<kWarps>(p);
    const LinearSegment &s = rows.segment;
    const int lane = static_cast<int>(threadIdx.x) % simt::kWarp;
    const int upper = lane / kQ2KLanes, q = lane % kQ2KLanes; // which of two blocks; the lane's place in it
    const int half = q / 8, group = q % 8 / 4;                // of 128 values, and of 16 in a plane
    const int n_blocks = s.k / kQ2KValues;
    const std::int64_t stride_codes = static_cast<std::int64_t>(s.n_slices) * s.k;
    const std::int8_t *const x = s.codes + static_cast<std::int64_t>(rows.slice) * s.k;
    const float *const x_scales = s.code_scales + static_cast<std::int64_t>(rows.slice) * (s.k / kQ8Values);

    const int n = kTokens == 1 ? 1 : p.n; // the one is known when this is compiled

    SIMT_DYNAMIC_SHARED(pool);
    const auto codes = pool.take<std::uint32_t>(kTokens * kQ2KStagedWords); // [token, block, lane, plane]
    const auto scales = pool.take<float>(kTokens * kQ2KStagedScales);       // [token, block, half, plane]
    const auto results = pool.take<std::uint32_t>(kWarps == kQuantisingWarps ? kTokens * kWarps : 0);
    float sums[kLinearRows][kTokens];
    SIMT_UNROLL
    for (int r = 0; r < kLinearRows; ++r) SIMT_UNROLL
    for (int t = 0; t < kTokens; ++t) sums[r][t] = 0.0f;

    for (int chunk = 0; chunk < n_blocks; chunk += kQ2KChunk) {
        // The weights are on their way while x is staged.
        Q2KWords weights[kLinearRows][kQ2KSteps];
        SIMT_UNROLL
        for (int r = 0; r < kLinearRows; ++r) SIMT_UNROLL
        for (int step = 0; step < kQ2KSteps; ++step) {
            const int b = chunk + 2 * step + upper;
            weights[r][step] = {};
            if (rows.first + r < s.rows && b < n_blocks)
                weights[r][step].template load<kWide>(
                    s.weights + ((rows.slice_row + rows.first + r) * n_blocks + b) * kQ2KBlockBytes, q);
        }
        __syncthreads(); // the last chunk has been read
        for (int i = static_cast<int>(threadIdx.x); i < n * kQ2KChunk * kQ2KLanes; i += kWarps * simt::kWarp) {
            // The words of a lane's planes behind each other, so that it has them in one load.
            const int token = i / (kQ2KChunk * kQ2KLanes), b = i / kQ2KLanes % kQ2KChunk, at = i % kQ2KLanes;
            std::uint32_t words[kQ2KPlanes] = {0, 0, 0, 0};
            if (chunk + b < n_blocks) {
                const std::int8_t *source = x + token * stride_codes + (chunk + b) * kQ2KValues + at % 8 * 4;
                SIMT_UNROLL
                for (int plane = 0; plane < kQ2KPlanes; ++plane)
                    words[plane] = simt::load(
                        reinterpret_cast<const std::uint32_t *>(source + (at / 8 * kQ2KPlanes + plane) * kQ8Values));
            }
            codes.template store<uint4>(i * kQ2KPlanes, uint4{words[0], words[1], words[2], words[3]});
        }
        for (int i = static_cast<int>(threadIdx.x); i < n * kQ2KStagedScales; i += kWarps * simt::kWarp) {
            const int token = i / kQ2KStagedScales, at = chunk * kQ8Blocks + i % kQ2KStagedScales;
            const bool has_scale = at < n_blocks * kQ8Blocks;
            scales[i] = has_scale ? simt::load(x_scales + token * (stride_codes / kQ8Values) + at) : 0.0f;
        }
        __syncthreads();
        SIMT_UNROLL
        for (int step = 0; step < kQ2KSteps; ++step) {
            if (chunk + 2 * step >= n_blocks) break;                                            // the whole block
            std::uint32_t scaled_codes[kLinearRows][kQ2KPlanes], mins[kLinearRows][kQ2KPlanes]; // four bytes each
            float d[kLinearRows], dmin[kLinearRows];
            SIMT_UNROLL
            for (int r = 0; r < kLinearRows; ++r) {
                const Q2KWords &w = weights[r][step];
                const int first_lane = upper * kQ2KLanes;
                const std::uint32_t both = __shfl_sync(simt::kFullMask, w.shared, first_lane + Q2KWords::kBoth);
                const std::uint32_t low = __shfl_sync(simt::kFullMask, w.shared, first_lane + 2 * half);
                const std::uint32_t high = __shfl_sync(simt::kFullMask, w.shared, first_lane + 2 * half + 1);
                const std::uint32_t of_planes = simt::byte_perm(low, high, group ? 0x7531 : 0x6420);
                d[r] = half_to_f32(both);
                dmin[r] = half_to_f32(both >> 16);
                SIMT_UNROLL
                for (int plane = 0; plane < kQ2KPlanes; ++plane) {
                    const std::uint32_t scale = of_planes >> (8 * plane) & 15u,
                                        min = of_planes >> (8 * plane + 4) & 15u;
                    scaled_codes[r][plane] = (w.codes >> (2 * plane) & 0x03030303u) * scale;
                    mins[r][plane] = min * 0x01010101u;
                }
            }
            SIMT_UNROLL
            for (int t = 0; t < kTokens; ++t) {
                if (t >= n) break;
                const int b = t * kQ2KChunk + 2 * step + upper;
                const uint4 words = codes.template load<uint4>((b * kQ2KLanes + q) * kQ2KPlanes);
                const float4 scale = scales.template load<float4>(b * kQ8Blocks + half * kQ2KPlanes);
                const std::uint32_t xs[kQ2KPlanes] = {words.x, words.y, words.z, words.w};
                const float d8[kQ2KPlanes] = {scale.x, scale.y, scale.z, scale.w};
                SIMT_UNROLL
                for (int r = 0; r < kLinearRows; ++r) {
                    float scaled_dot = 0.0f, scaled_min = 0.0f;
                    SIMT_UNROLL
                    for (int plane = 0; plane < kQ2KPlanes; ++plane) {
                        scaled_dot += d8[plane] * byte_dot(scaled_codes[r][plane], xs[plane]);
                        scaled_min += d8[plane] * byte_dot(mins[r][plane], xs[plane]);
                    }
                    sums[r][t] += d[r] * scaled_dot - dmin[r] * scaled_min;
                }
            }
        }
    }
    finish_rows<kTokens, kWarps>(p, rows, sums, results);
}

} // namespace ds41::kernels
