// Numerics: the norm's squares are summed in f64 and the mean is rounded once, as in the reference; everything else is
// f32 in the reference's order, with exp_f32 for its exponentials. So norm, rotation and quantisers give its bits.
#pragma once

#include "common/exp.cuh"
#include "common/formats.cuh"
#include "common/quantised.cuh"
#include "common/rows.cuh"
#include "rows/commit.cuh"
#include "rows/params.h"

namespace ds41::kernels {

constexpr int kRowThreads = 128;

// The tile's index of the first token of the group that token i completes; negative where the group began before.
__device__ __forceinline__ int group_begin(int i, std::int64_t pos, int ratio) {
    return i - static_cast<int>(pos % ratio);
}

// Value e of the group that token i of the tile completes.
__device__ __forceinline__ Bf16 pooled(const RowsParams &p, const RowJob &job, int i, const Token &token, int e) {
    const SpanRows span = simt::load(p.spans + token.span);
    // Tokens of the group from this index on are in the tile; those before are in the state.
    const int span_begin = span.first_token > p.first ? span.first_token - p.first : 0;
    const int begin = group_begin(i, token.pos, job.ratio);
    const auto product = [&](int r, int which) {
        const float *source = begin + r >= span_begin
                                  ? job.products + (static_cast<std::int64_t>(begin + r) * 2 + which) * job.width
                                  : span.group_state + (static_cast<std::int64_t>(which) * job.ratio + r) * job.width;
        return simt::load(source + e);
    };
    float max = product(0, 1);
    for (int r = 1; r < job.ratio; ++r) {
        const float gate = product(r, 1);
        max = max < gate ? gate : max;
    }
    float sum = 0.0f;
    for (int r = 0; r < job.ratio; ++r) sum += exp_f32(product(r, 1) - max);
    float value = 0.0f;
    for (int r = 0; r < job.ratio; ++r) value += product(r, 0) * (exp_f32(product(r, 1) - max) / sum);
    return to_bf16(value);
}

// The sum over the block, in every thread: a butterfly in each warp, then the warps in order.
__device__ __forceinline__ double block_sum(double value) {
    SIMT_SHARED(double, warps, kRowThreads / simt::kWarp);
    SIMT_UNROLL
    for (int lanes = simt::kWarp / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(simt::kFullMask, value, lanes);
    if (threadIdx.x % simt::kWarp == 0) warps[threadIdx.x / simt::kWarp] = value;
    __syncthreads();
    double sum = 0.0;
    for (int w = 0; w < kRowThreads / simt::kWarp; ++w) sum += warps[w];
    return sum;
}

// Four bytes of a row. Rows of an odd number of blocks are not aligned to words.
__device__ __forceinline__ void store_word(std::uint8_t *p, std::uint32_t word) {
    if (reinterpret_cast<std::uintptr_t>(p) % 4 == 0) {
        simt::store(reinterpret_cast<std::uint32_t *>(p), word);
    } else {
        for (int i = 0; i < 4; ++i) simt::store(p + i, static_cast<std::uint8_t>(word >> (8 * i)));
    }
}

template <typename S> __device__ __forceinline__ float amax_of(const S &row, int begin, int n, float floor) {
    float amax = floor;
    bool finite = true;
    for (int i = 0; i < n; ++i) {
        const float value = to_f32(row[begin + i]);
        finite = finite && is_finite(value);
        amax = fmaxf(amax, fabsf(value));
    }
    return finite ? amax : float_from_bits(0x7fc00000u);
}

// Eight e2m1 codes to a word, for n values from `begin` on; words and the scale byte go to global memory.
template <typename S>
__device__ __forceinline__ void store_e2m1(const S &row, int begin, int n, float scale, std::uint8_t *codes) {
    for (int i = 0; i < n; i += 8) {
        std::uint32_t word = 0;
        for (int e = 0; e < 8; ++e)
            word |= static_cast<std::uint32_t>(f32_to_e2m1(to_f32(row[begin + i + e]) / scale)) << (4 * e);
        store_word(codes + (begin + i) / 2, word);
    }
}

// A thread packs a block of values: few values each, and no thread waits for another.
template <typename S>
__device__ __forceinline__ void pack_row(const S &row, int width, RowPacking packing, std::uint8_t *out) {
    if (packing == RowPacking::kWindow) {
        for (int b = static_cast<int>(threadIdx.x); b < width / kWindowBlock; b += kRowThreads) {
            const int begin = b * kWindowBlock;
            const float amax = amax_of(row, begin, kWindowBlock, kFp8AmaxFloor);
            const bool broken = is_nan(amax);
            const float scale = broken ? 1.0f : pow2_ceil(amax / kE4m3Max);
            for (int i = 0; i < kWindowBlock; i += 4) {
                std::uint32_t word = 0;
                for (int e = 0; e < 4; ++e) {
                    const std::uint8_t code = broken ? kE4m3Nan : f32_to_e4m3(to_f32(row[begin + i + e]) / scale);
                    word |= static_cast<std::uint32_t>(code) << (8 * e);
                }
                store_word(out + begin + i, word);
            }
            simt::store(out + width + b, broken ? kUe8m0Nan : pow2_to_ue8m0(scale));
        }
    } else if (packing == RowPacking::kCompressed) {
        for (int b = static_cast<int>(threadIdx.x); b < width / kCompressedBlock; b += kRowThreads) {
            const int begin = b * kCompressedBlock;
            const std::uint8_t code =
                f32_to_e4m3(amax_of(row, begin, kCompressedBlock, kCompressedAmaxFloor) / kE2m1Max);
            store_e2m1(row, begin, kCompressedBlock, code == kE4m3Nan ? 1.0f : e4m3_to_f32(code), out);
            simt::store(out + width / 2 + b, code);
        }
    } else {
        for (int b = static_cast<int>(threadIdx.x); b < width / kIndexKeyBlock; b += kRowThreads) {
            const int begin = b * kIndexKeyBlock;
            const float amax = amax_of(row, begin, kIndexKeyBlock, kIndexKeyAmaxFloor);
            const float scale = is_nan(amax) ? 1.0f : pow2_ceil(amax / kE2m1Max);
            store_e2m1(row, begin, kIndexKeyBlock, scale, out);
            simt::store(out + width / 2 + b, is_nan(amax) ? kUe8m0Nan : pow2_to_ue8m0(scale));
        }
    }
}

// Bytes of a row that is packed so.
__device__ __forceinline__ int packed_bytes(RowPacking packing, int width) {
    return static_cast<int>(packing == RowPacking::kWindow       ? window_row_bytes(width)
                            : packing == RowPacking::kCompressed ? compressed_row_bytes(width)
                                                                 : index_key_row_bytes(width));
}

__device__ __forceinline__ std::uint8_t *packed_row(const RowsParams &p, const RowJob &job, const Token &token,
                                                    std::int64_t row) {
    const int row_bytes = packed_bytes(job.packing, job.width);
    if (job.packed) return job.packed + row * row_bytes;
    const SpanRows span = simt::load(p.spans + token.span);
    return row_address(job.packing == RowPacking::kCompressed ? span.compressed : span.index_keys,
                       token.pos / job.ratio, row_bytes);
}

// The products of token i of the tile into its sequence's state.
__device__ __forceinline__ void keep_products(const RowsParams &p, const RowJob &job, int i, const Token &token) {
    const SpanRows span = simt::load(p.spans + token.span);
    const int slot = static_cast<int>(token.pos % job.ratio);
    // Complete within the tile: its last token is there, and of this span.
    const int last = i + job.ratio - 1 - slot;
    if (last < p.n && p.first + last < span.first_token + span.n_tokens) return;
    for (int e = static_cast<int>(threadIdx.x); e < 2 * job.width; e += kRowThreads) {
        const int which = e / job.width;
        simt::store(span.group_state + (static_cast<std::int64_t>(which) * job.ratio + slot) * job.width +
                        e % job.width,
                    simt::load(job.products + static_cast<std::int64_t>(i) * 2 * job.width + e));
    }
}

// Four values a thread, so that eight lanes have a block.
template <typename S> __device__ __forceinline__ void quantise_row(const S &row, const RowJob &job, int i) {
    constexpr int kValues = 4;
    for (int first = 0; first < job.width; first += kRowThreads * kValues) {
        const int column = first + static_cast<int>(threadIdx.x) * kValues;
        float values[kValues] = {};
        if (column < job.width) {
            SIMT_UNROLL
            for (int e = 0; e < kValues; ++e) values[e] = to_f32(row[column + e]);
        }
        quantise_lanes(job.quantised, i, column, values, column < job.width);
    }
}

// grid (row of the tile, job): rows of a token lie behind each other. A block whose job has no such row ends at once.
__global__ void __launch_bounds__(kRowThreads) rows(const __grid_constant__ RowsParams p) {
    const RowJob &job = p.jobs[blockIdx.y];
    const int i = static_cast<int>(blockIdx.x) / job.rows_per_token,
              sub = static_cast<int>(blockIdx.x) % job.rows_per_token;
    if (i >= p.n) return;
    const Token token = load_token(p.tokens, p.first + i);
    if (is_padding(token)) return;
    if (job.source == RowSource::kState) {
        keep_products(p, job, i, token);
        return;
    }
    if (job.ratio > 0 && (token.pos + 1) % job.ratio != 0) return;

    SIMT_DYNAMIC_SHARED(pool);
    const auto row = pool.take<Bf16>(static_cast<std::size_t>(job.width));
    double squares = 0.0;
    for (int e = static_cast<int>(threadIdx.x); e < job.width; e += kRowThreads) {
        const Bf16 value = job.source == RowSource::kPool
                               ? pooled(p, job, i, token, e)
                               : simt::load(job.rows + i * job.stride_rows + sub * job.width + e);
        row[e] = value;
        squares += static_cast<double>(to_f32(value)) * static_cast<double>(to_f32(value));
    }
    if (job.norm) {
        const double mean = block_sum(squares) / static_cast<double>(job.width);
        const float scale = 1.0f / sqrtf(static_cast<float>(mean) + job.eps);
        for (int e = static_cast<int>(threadIdx.x); e < job.width; e += kRowThreads)
            row[e] = to_bf16(simt::load(job.norm + e) * (to_f32(row[e]) * scale));
    }
    __syncthreads();
    if (job.angles) {
        const int tail = job.width - 2 * job.n_pairs;
        for (int k = static_cast<int>(threadIdx.x); k < job.n_pairs; k += kRowThreads) {
            const float2 angle = simt::load(reinterpret_cast<const float2 *>(job.angles) + i * job.n_pairs + k);
            const float re = to_f32(row[tail + 2 * k]), im = to_f32(row[tail + 2 * k + 1]);
            row[tail + 2 * k] = to_bf16(re * angle.x - im * angle.y);
            row[tail + 2 * k + 1] = to_bf16(re * angle.y + im * angle.x);
        }
        __syncthreads();
    }
    if (job.out)
        for (int e = static_cast<int>(threadIdx.x); e < job.width; e += kRowThreads)
            simt::store(job.out + i * job.stride_out + sub * job.width + e, static_cast<Bf16>(row[e]));
    if (job.quantised.form != QuantisedForm::kNone) quantise_row(row, job, i);
    if (job.packing != RowPacking::kNone)
        pack_row(row, job.width, job.packing,
                 packed_row(p, job, token, static_cast<std::int64_t>(i) * job.rows_per_token + sub));
}

// grid (token of the step)
__global__ void __launch_bounds__(kRowThreads) commit_window(const __grid_constant__ CommitWindowParams p) {
    const int i = static_cast<int>(blockIdx.x);
    const Token token = load_token(p.tokens, i);
    if (is_padding(token)) return;
    commit_row<kRowThreads>(p.window_new, i, token, p.spans, p.window_size, p.row_bytes);
}

} // namespace ds41::kernels
