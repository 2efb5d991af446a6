// Products by pairs (AVX512_BF16, as Zen 4 has it): a lane's running sum takes two neighbouring columns at a time, the
// instruction's way, in ascending order; the sixteen lanes are added up as those of simd.h. One token or a few: weights
// go from memory to registers. More: some rows of 512 columns are multiplied with all tokens, three at a time, sums
// resting in memory from one block of columns to the next.
#include "backend/cpu/pairs.h"

#if DS41_CPU_HAS_PAIRS

#include "backend/cpu/fp8_pairs.h"

#include <cstring>

#define DS41_BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16")))
#define DS41_BF16_INLINE static inline __attribute__((always_inline)) DS41_BF16

namespace ds41::cpu {

namespace {

constexpr int kRows = 4;      // rows that share the activations of a few tokens
constexpr int kPanelRows = 8; // with 3 tokens 24 sums, 3 operands and one more
static_assert(kPanelRows <= kMostPanelRows);
constexpr int kLanes = 16;
constexpr int kVectorCols = 32;

DS41_BF16_INLINE __m512 add_pairs(__m512 sum, __m512i a, __m512i b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

DS41_BF16_INLINE float sum_lanes(__m512 v) {
    // Masked as in fp8_pairs.h.
    const __m256 eight =
        _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xff, v, 0), _mm512_maskz_extractf32x8_ps(0xff, v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

DS41_BF16_INLINE const std::uint8_t *row_at(const DotArgs &a, int r) {
    return a.weights + static_cast<std::size_t>(std::min(r, a.n_rows - 1)) * a.row_bytes;
}

DS41_BF16_INLINE __m512i load(const void *p) {
    return _mm512_loadu_si512(p);
}

// Vectors of a row, kVectors at a time from a column that is a multiple of as many columns; n columns remain, and zeros
// are beyond.
struct Bf16Rows {
    static constexpr int kVectors = 1, kBytes = 2;
    __attribute__((always_inline)) DS41_BF16 void get(const std::uint8_t *row, std::int64_t column, std::int64_t n,
                                                      __m512i (&v)[1]) {
        const std::uint8_t *p = row + 2 * column;
        v[0] = n >= kVectorCols ? load(p) : _mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << n) - 1), p);
    }
};
struct Fp8Rows {
    static constexpr int kVectors = 2, kBytes = 1;
    const Fp8Scales &scales;
    __m512i largest = {};
    __attribute__((always_inline)) DS41_BF16 void get(const std::uint8_t *row, std::int64_t column, std::int64_t n,
                                                      __m512i (&v)[2]) {
        fp8_row_pairs(row, scales, column, n, largest, v[0], v[1]);
    }
};

template <int kTokens, class Rows> DS41_BF16_INLINE void multiply_few(const DotArgs &a, Rows &rows) {
    constexpr int kCols = kVectorCols * Rows::kVectors;
    const std::int64_t stride_x = padded_cols(a.k);
    // Lines of later rows are asked for in ascending order: the next four's, or with short rows further ahead.
    const std::size_t distance = std::max<std::size_t>(kRows * a.row_bytes, 16384);
    for (int r = 0; r < a.n_rows; r += kRows) {
        const std::uint8_t *row[kRows];
        __m512 sums[kRows][kTokens];
        for (int i = 0; i < kRows; ++i) {
            row[i] = row_at(a, r + i);
            for (int t = 0; t < kTokens; ++t) sums[i][t] = _mm512_setzero_ps();
        }
        for (std::int64_t c = 0; c < a.k; c += kCols) {
            const std::uint8_t *next = row[0] + distance + kRows * Rows::kBytes * c;
            for (int i = 0; i < kRows; ++i) {
                __m512i v[Rows::kVectors];
                rows.get(row[i], c, a.k - c, v);
                __builtin_prefetch(next + 64 * i, 0, 2);
                for (int j = 0; j < Rows::kVectors; ++j)
                    for (int t = 0; t < kTokens; ++t)
                        sums[i][t] = add_pairs(sums[i][t], v[j], load(a.pairs + t * stride_x + c + kVectorCols * j));
            }
        }
        for (int i = 0; i < kRows && r + i < a.n_rows; ++i)
            for (int t = 0; t < kTokens; ++t) a.out[t * kChunkRows + r + i] = sum_lanes(sums[i][t]);
    }
}

template <int kTokens>
DS41_BF16_INLINE void multiply_panel(const Bf16 *panel, const Bf16 *x, std::int64_t stride_x, std::int64_t n_cols,
                                     bool is_first, float *held) {
    __m512 sums[kTokens][kPanelRows];
    for (int t = 0; t < kTokens; ++t)
        for (int r = 0; r < kPanelRows; ++r)
            sums[t][r] = is_first ? _mm512_setzero_ps() : _mm512_load_ps(held + (t * kPanelRows + r) * kLanes);
    for (std::int64_t c = 0; c < n_cols; c += kVectorCols) {
        __m512i xs[kTokens];
        for (int t = 0; t < kTokens; ++t) xs[t] = load(x + t * stride_x + c);
        for (int r = 0; r < kPanelRows; ++r) {
            __m512i row = load(panel + r * kBlockCols + c);
            __asm__("" : "+v"(row)); // or it would be loaded again for every product
            for (int t = 0; t < kTokens; ++t) sums[t][r] = add_pairs(sums[t][r], row, xs[t]);
        }
    }
    for (int t = 0; t < kTokens; ++t)
        for (int r = 0; r < kPanelRows; ++r) _mm512_store_ps(held + (t * kPanelRows + r) * kLanes, sums[t][r]);
}

template <class Rows> DS41_BF16_INLINE void multiply(const DotArgs &a, Rows &rows) {
    constexpr int kCols = kVectorCols * Rows::kVectors;
    auto *const panel = reinterpret_cast<Bf16 *>(a.panel);
    const std::int64_t stride_x = padded_cols(a.k);
    const std::int64_t panel_sums = std::int64_t{a.n_tokens} * kPanelRows * kLanes;
    for (std::int64_t column = 0; column < a.k; column += kBlockCols) {
        const std::int64_t n = std::min<std::int64_t>(kBlockCols, a.k - column);
        const Bf16 *x = a.pairs + column;
        for (int r = 0; r < a.n_rows; r += kPanelRows) {
            for (int i = 0; i < kPanelRows; ++i) {
                const std::uint8_t *row = row_at(a, r + i);
                for (std::int64_t c = 0; c < n; c += kCols) {
                    __m512i v[Rows::kVectors];
                    rows.get(row, column + c, n - c, v);
                    for (int j = 0; j < Rows::kVectors; ++j)
                        _mm512_store_si512(panel + i * kBlockCols + c + kVectorCols * j, v[j]);
                }
            }
            float *held = a.sums + r / kPanelRows * panel_sums;
            int t = 0;
            for (; t + 3 <= a.n_tokens; t += 3)
                multiply_panel<3>(panel, x + t * stride_x, stride_x, n, column == 0, held + t * kPanelRows * kLanes);
            if (a.n_tokens - t == 2)
                multiply_panel<2>(panel, x + t * stride_x, stride_x, n, column == 0, held + t * kPanelRows * kLanes);
            else if (a.n_tokens - t == 1)
                multiply_panel<1>(panel, x + t * stride_x, stride_x, n, column == 0, held + t * kPanelRows * kLanes);
        }
    }
    for (int r = 0; r < a.n_rows; r += kPanelRows)
        for (int t = 0; t < a.n_tokens; ++t)
            for (int i = 0; i < kPanelRows && r + i < a.n_rows; ++i)
                a.out[t * kChunkRows + r + i] =
                    sum_lanes(_mm512_load_ps(a.sums + r / kPanelRows * panel_sums + (t * kPanelRows + i) * kLanes));
}

template <class Rows> DS41_BF16_INLINE void multiply_any(const DotArgs &a, Rows &rows) {
    switch (a.n_tokens) {
    case 1:
        return multiply_few<1>(a, rows);
    case 2:
        return multiply_few<2>(a, rows);
    case 3:
        return multiply_few<3>(a, rows);
    case 4:
        return multiply_few<4>(a, rows);
    default:
        return multiply(a, rows);
    }
}

DS41_BF16 void dot_bf16(const DotArgs &a) {
    Bf16Rows rows;
    multiply_any(a, rows);
}

DS41_BF16 void dot_fp8_rows(const DotArgs &a, const Fp8Scales &scales) {
    Fp8Rows rows{scales};
    multiply_any(a, rows);
    finish_fp8(a, scales, _mm512_cmpeq_epu8_mask(rows.largest, _mm512_set1_epi8(kE4m3Nan)) != 0);
}

void dot_fp8(const DotArgs &args) {
    each_block_row(args, [](const DotArgs &a, const Fp8Scales &scales) { dot_fp8_rows(a, scales); });
}

// A token after the other.
void put(const Bf16 *rows, std::int64_t stride, int n_tokens, std::int64_t k, Bf16 *out) {
    for (int t = 0; t < n_tokens; ++t, out += padded_cols(k)) {
        std::copy_n(rows + t * stride, k, out);
        std::fill(out + k, out + padded_cols(k), Bf16{0});
    }
}

} // namespace

const PairKernels kAvx512Bf16Kernels = {dot_bf16, dot_fp8, put, kChunkRows};

} // namespace ds41::cpu

#endif
