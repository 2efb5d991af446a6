// Products on CPUs that multiply pairs of bf16 values: of BF16 weights, and of FP8 ones, whose codes times powers of
// two are bf16 numbers too. Not of Highway's making, which has no such target in the versions that this library
// supports; so these files are compiled once, and each function names its instruction set.
//
// Numerics: products are exact and sums f32, in an order that each file says. Unlike everything else here, operands,
// products and sums below 2^-126 count as 0: the instructions know no others.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/targets.h"

#if HWY_TARGETS & HWY_AVX3_DL
#define DS41_CPU_HAS_PAIRS 1
#else
#define DS41_CPU_HAS_PAIRS 0
#endif

namespace ds41::cpu {

// Tokens whose activations lie together.
constexpr int kTileTokens = 16;

// Rows and columns of a tile of weights.
constexpr int kTileRows = 16;
constexpr int kTileCols = 32;
constexpr std::size_t kTileBytes = kTileRows * kTileCols * sizeof(Bf16);

// Activations as pairs: [ceil(n_tokens / kTileTokens)] tiles, the last one with as many tokens as remain, of
// padded_cols(k) values for each token, zeros from the k-th on. What is within a tile is the target's own matter.
constexpr std::int64_t pairs_of(std::int64_t k, std::int64_t n_tokens) {
    return padded_cols(k) * n_tokens;
}

struct PairKernels {
    Dot bf16, fp8;
    // Rows of k values, `stride` apart, of one tile's tokens.
    void (*put)(const Bf16 *rows, std::int64_t stride, int n_tokens, std::int64_t k, Bf16 *out);
    // Rows that bf16() takes at most, a multiple of kChunkRows: of more than a chunk where many tokens are multiplied,
    // so that both find each other in the level 2 cache.
    int most_bf16_rows;
};

#if DS41_CPU_HAS_PAIRS
extern const PairKernels kAmxKernels;        // amx.cc
extern const PairKernels kAvx512Bf16Kernels; // avx512_bf16.cc
#endif

} // namespace ds41::cpu
