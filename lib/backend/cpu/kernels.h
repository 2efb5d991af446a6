// The inner loops, compiled once per target, as tables of functions. They know pointers and counts; formats are those
// of lib/numeric. What a kernel writes depends on its own operands alone.
#pragma once

#include "numeric/bf16.h"
#include "numeric/q8.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace ds41::cpu {

// Weight rows that one call multiplies (pairs.h: or several times as many), and the unit of work that threads share: 32
// rows of 1280 bf16 values are 80 KiB, some 8 us of memory traffic, a hundred times what claiming it costs. Also the
// rows of an fp8 weight block.
constexpr int kChunkRows = 32;

// Columns that are widened together: 4 rows of 512 floats are 8 KiB, a quarter of a level 1 cache, and 64 tokens of 512
// floats are 128 KiB, a quarter of a level 2 cache. (CPUs with AMX take 256 tokens, and have 2 MiB of that.)
constexpr int kBlockCols = 512;

// Tokens that a target may multiply without widening the weights first.
constexpr int kMostFewTokens = 4;

// Rows that a target may widen together.
constexpr int kMostPanelRows = 8;

// Room for those, or for a chunk of them as bf16.
constexpr int kPanelFloats = kChunkRows * kBlockCols / 2;
static_assert(kMostPanelRows * kBlockCols <= kPanelFloats);

// Running sums that a target may keep of one product, in simd.h's terms: its lanes.
constexpr int kMostLanes = 16;

// Columns that a product really runs over: the rest of a multiple of 64, which any target's vectors end with, is zero.
constexpr std::int64_t padded_cols(std::int64_t k) {
    return (k + 63) / 64 * 64;
}
constexpr std::int64_t n_col_blocks(std::int64_t k) {
    return (k + kBlockCols - 1) / kBlockCols;
}

// Activations as float products take them: [n_col_blocks(k)][n_tokens][kBlockCols] floats, each token times
// 2^-exponent. kPairs: within twice as many values as there are lanes those of even index come first, then the odd
// ones, as a vector of bf16 pairs is split by a shift and a mask.
// kCodes: within 64 values, the order in which a target widens fp8 weights.
enum class Order { kNatural, kPairs, kCodes };

// q8_1 activations, unpacked: codes, and per block of 32 its scale, and sums of four codes times that scale: at most 9
// and 11 bits, so exact.
struct Q8View {
    const std::int8_t *codes; // [n_tokens][k]
    const float *d;           // [n_tokens][k / 32]
    const float *sums;        // [n_tokens][k / 4]
};

struct DotArgs {
    const std::uint8_t *weights; // the first row; any alignment
    std::size_t row_bytes;
    const std::uint8_t *scales; // fp8: scale bytes of the matrix, k / 32 per block row
    std::int64_t first_row;     // fp8: row of the matrix that `weights` is
    std::int64_t k;
    int n_rows; // 1 to kChunkRows; pairs.h has a product of more
    int n_tokens;
    const float *x; // float products
    const int *exponents;
    const Bf16 *pairs; // products of pairs.h
    Q8View q8;         // quantised q2_k
    float *panel;      // [kPanelFloats]
    float *factors;    // of the blocks of 32 columns: [padded_cols(k) / 64][kMostLanes]
    float *scaled;     // fp8: activations of up to kMostFewTokens tokens, as x
    float *sums;       // [kChunkRows][n_tokens][kMostLanes]
    float *out;        // [n_tokens][kChunkRows], or of more rows [n_tokens][n_rows to a multiple of kChunkRows]
};

// Floats of DotArgs' four scratch buffers together.
constexpr std::size_t dot_scratch_floats(std::int64_t k, std::int64_t n_tokens) {
    return static_cast<std::size_t>(kPanelFloats + padded_cols(k) / 64 * kMostLanes +
                                    n_col_blocks(k) * kBlockCols * std::min<std::int64_t>(n_tokens, kMostFewTokens) +
                                    kChunkRows * n_tokens * kMostLanes);
}

using Dot = void (*)(const DotArgs &);

struct Q2KKernels {
    Dot q2_k; // the arithmetic of numeric/q2_k.h, bit for bit
};

struct DotKernels {
    Dot bf16, f32, fp8, q2_k_plain;
};

struct ActivationKernels {
    // One token's values [from, from + n) of a row into its blocks; `from` is a multiple of 512, n at most 512.
    void (*widen)(const Bf16 *x, int n, Order order, float *out);
    // The same through the fp8 quantiser of activations; scale codes of the blocks of 32 have been computed. Not in the
    // order kPairs.
    void (*widen_fp8)(const Bf16 *x, int n, const std::uint8_t *scales, int exponent, Order order, float *out);
    void (*fp8_scales)(const Bf16 *x, std::int64_t n, std::uint8_t *scales); // n / 32 of them
    void (*quantise_q8)(const Bf16 *x, std::int64_t n, std::int8_t *codes, float *d, float *sums);
    // Sums to bf16: one bit pattern for all NaN, whichever operand an instruction took it from.
    void (*round)(const float *x, std::int64_t n, Bf16 *out);
};

struct AttendKernels {
    // Packed rows to floats.
    void (*unpack_window)(const std::uint8_t *row, int n, float *out);
    void (*unpack_compressed)(const std::uint8_t *row, int n, float *out);
    // scores[h * stride_scores + r] = q_h . row_r for 4 heads and n_rows rows; q is [4][head_dim].
    void (*scores)(const float *q, const float *rows, std::int64_t stride_rows, int n_rows, int head_dim, float *scores,
                   std::int64_t stride_scores);
    // One head's scores to weights, and the denominator. n is padded to a multiple of kMostLanes with -inf by the
    // callee.
    float (*softmax)(float *scores, int n, float scale, float sink);
    // sums[h][e] += weights[h * stride_weights + r] * row_r[e] for 4 heads, r ascending.
    void (*weigh)(const float *weights, std::int64_t stride_weights, const float *rows, std::int64_t stride_rows,
                  int n_rows, int head_dim, float *sums);
    // o = bf16(sums / denominator); zeros for a denominator of 0.
    void (*finish)(const float *sums, float denominator, int head_dim, Bf16 *o);
    // Rotate n_pairs adjacent pairs by cosines and sines, each product and sum rounded to f32 and the result to bf16.
    void (*rotate)(Bf16 *pairs, int n_pairs, const float *cosines, const float *sines);
    // For tests: out[i] = e^x[i], x <= 0; n is a multiple of kMostLanes.
    void (*exp)(const float *x, int n, float *out);
};

// Keys that are unpacked together: for every head two vectors of 8.
constexpr int kKeyTile = 16;

// One token's index queries, unpacked.
struct IndexQuery {
    std::int8_t *codes; // [n_heads][head_dim], twice the e2m1 values, in the order of unpacked keys
    std::int32_t *bias; // [n_heads][head_dim / 32]: 12 times the sum of each block's codes
    float *scales;      // [n_heads][head_dim / 32], a quarter of the block's scale
    float *weights;     // [n_heads]
};

struct ScoreKernels {
    // n = head_dim. A packed query row; writes its head's part of an IndexQuery.
    void (*unpack_query)(const std::uint8_t *row, int n, std::int8_t *codes, std::int32_t *bias, float *scales);
    // kKeyTile packed rows into tile [n / 4][kKeyTile][4] bytes and scales [n / 32][kKeyTile].
    void (*unpack_keys)(const std::uint8_t *const *rows, int n, std::uint8_t *tile, float *scales);
    // Scores of the tile's keys, as bf16 bits. A NaN is negative, so that it sorts below.
    void (*score)(const IndexQuery &query, int n_heads, int n, const std::uint8_t *tile, const float *scales,
                  std::uint16_t *out);
};

const DotKernels &dot_kernels(std::int64_t target) noexcept;
const ActivationKernels &activation_kernels(std::int64_t target) noexcept;
const Q2KKernels &q2_k_kernels(std::int64_t target) noexcept;
const AttendKernels &attend_kernels(std::int64_t target) noexcept;
const ScoreKernels &score_kernels(std::int64_t target) noexcept;

} // namespace ds41::cpu
