// FP8 weights as bf16 numbers, for the products of pairs.h. Needs AVX-512 with VBMI, as the functions that call it say.
#pragma once

#include "backend/cpu/pairs.h"
#include "numeric/fp8_linear.h"

#include <algorithm>
#include <bit>
#include <immintrin.h>

namespace ds41::cpu {

#define DS41_AVX512_VBMI __attribute__((always_inline, target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")))

// The upper and the lower byte of each e4m3 magnitude as bf16.
struct Fp8PairTable {
    alignas(64) std::uint8_t upper[128], lower[128];
};
constexpr Fp8PairTable make_fp8_pair_table() {
    Fp8PairTable table{};
    for (int code = 0; code < kE4m3Nan; ++code) { // a NaN is told from `largest`
        int exponent = code >> 3, mantissa = code & 7;
        if (exponent == 0)
            for (exponent = 1; mantissa != 0 && mantissa < 8; --exponent) mantissa *= 2;
        const int bits = code == 0 ? 0 : (exponent + 120) << 7 | (mantissa & 7) << 4;
        table.upper[code] = static_cast<std::uint8_t>(bits >> 8);
        table.lower[code] = static_cast<std::uint8_t>(bits & 0xff);
    }
    return table;
}
inline constexpr Fp8PairTable kFp8PairTable = make_fp8_pair_table();

// Of the rows that share a block row of scales: how far each block of 32 columns lies below the largest scale, in units
// of the exponent of a bf16 number, twice, so that memory gives it to all lanes.
struct Fp8Scales {
    const std::uint32_t *below; // [k / 32]
    int largest;
};

inline Fp8Scales fp8_scales_of(const DotArgs &a, std::int64_t row) {
    const std::int64_t n = a.k / kFp8WeightBlock;
    const std::uint8_t *codes = a.scales + row / kFp8WeightBlock * n;
    auto *const below = reinterpret_cast<std::uint32_t *>(a.factors);
    const int largest = *std::max_element(codes, codes + n);
    for (std::int64_t b = 0; b < n; ++b) below[b] = static_cast<std::uint32_t>(largest - codes[b]) * 0x800080u;
    return {below, largest};
}

// 64 codes of a row as two vectors of 32 numbers, times 2^(scale - largest scale). A number that would fall below
// 2^-126 becomes one that the products take for 0. `largest` keeps the largest magnitude of all codes.
static inline DS41_AVX512_VBMI void fp8_pairs(__m512i codes, __m512i below0, __m512i below1, __m512i &largest,
                                              __m512i &first, __m512i &second) {
    const __m512i magnitudes = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
    const __mmask64 negative = _mm512_movepi8_mask(codes);
    largest = _mm512_max_epu8(largest, magnitudes);
    // Interleaving works within 16 bytes: the first 8 codes of each are the first half of all.
    // (Masked by all ones because GCC 12 warns of the plain form: GCC bug 105593.)
    const __m512i at = _mm512_maskz_permutexvar_epi64(0xff, _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), magnitudes);
    const __m512i lower = _mm512_permutex2var_epi8(_mm512_load_si512(kFp8PairTable.lower), at,
                                                   _mm512_load_si512(kFp8PairTable.lower + 64));
    const __m512i upper = _mm512_permutex2var_epi8(_mm512_load_si512(kFp8PairTable.upper), at,
                                                   _mm512_load_si512(kFp8PairTable.upper + 64));
    first = _mm512_subs_epu16(_mm512_unpacklo_epi8(lower, upper), below0);
    second = _mm512_subs_epu16(_mm512_unpackhi_epi8(lower, upper), below1);
    const __m512i sign = _mm512_set1_epi16(static_cast<short>(0x8000));
    first = _mm512_mask_add_epi16(first, static_cast<__mmask32>(negative), first, sign);
    second = _mm512_mask_add_epi16(second, static_cast<__mmask32>(negative >> 32), second, sign);
}

static inline DS41_AVX512_VBMI __m512i fp8_below(const Fp8Scales &scales, std::int64_t block) {
    return _mm512_set1_epi32(static_cast<int>(scales.below[block]));
}

// Up to 64 codes from `column` on, n of them there: a multiple of 32.
static inline DS41_AVX512_VBMI void fp8_row_pairs(const std::uint8_t *row, const Fp8Scales &scales, std::int64_t column,
                                                  std::int64_t n, __m512i &largest, __m512i &first, __m512i &second) {
    if (n >= 64) {
        fp8_pairs(_mm512_loadu_si512(row + column), fp8_below(scales, column / 32), fp8_below(scales, column / 32 + 1),
                  largest, first, second);
    } else {
        const __m512i below = fp8_below(scales, column / 32);
        fp8_pairs(_mm512_maskz_loadu_epi8(0xffffffffu, row + column), below, below, largest, first, second);
    }
}

// What is left of a product of rows in one block row: the power of two, and rows with NaN codes, whose sums are NaN
// whatever they are multiplied with. `with_nan`: some row may have one.
inline void finish_fp8(const DotArgs &a, const Fp8Scales &scales, bool with_nan) {
    for (int t = 0; t < a.n_tokens; ++t) {
        // In f64 a factor of any such exponent is a number, and the product exact until it is a float again.
        const int exponent = scales.largest - 127 + a.exponents[t];
        const double factor = std::bit_cast<double>(static_cast<std::uint64_t>(exponent + 1023) << 52);
        for (int r = 0; r < a.n_rows; ++r) {
            float &value = a.out[t * kChunkRows + r];
            value = static_cast<float>(double{value} * factor);
        }
    }
    if (!with_nan) return;
    for (int r = 0; r < a.n_rows; ++r) {
        const std::uint8_t *row = a.weights + static_cast<std::size_t>(r) * a.row_bytes;
        if (std::any_of(row, row + a.k, [](std::uint8_t code) { return (code & 0x7f) == kE4m3Nan; }))
            for (int t = 0; t < a.n_tokens; ++t) a.out[t * kChunkRows + r] = float_from_bits(0x7fc00000u);
    }
}

// f(args, scales) for the rows of each block row.
template <class F> inline void each_block_row(const DotArgs &args, F f) {
    DotArgs a = args;
    for (int at = 0; at < args.n_rows; at += a.n_rows) {
        const std::int64_t row = args.first_row + at;
        a.weights = args.weights + static_cast<std::size_t>(at) * args.row_bytes;
        a.n_rows = std::min(args.n_rows - at, static_cast<int>(kFp8WeightBlock - row % kFp8WeightBlock));
        a.out = args.out + at;
        f(a, fp8_scales_of(a, row));
    }
}

} // namespace ds41::cpu
