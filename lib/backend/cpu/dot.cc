// Products of weight rows with float activations, one kernel for every weight format and every number of tokens.
// Numerics: operands exact (fp8 times powers of two, see below), f32 sums as simd.h says, rounded by the caller.
// One token or a few: weights go from memory to registers. More: some rows of 512 columns are widened into the level 1
// cache and multiplied with all tokens, three at a time, sums resting in memory from one block of columns to the next.
#include "backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/dot.cc"
#include <hwy/foreach_target.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/orders.h"
#include "backend/cpu/simd.h"
#include "numeric/fp8_linear.h"
#include "numeric/q2_k.h"

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace ds41::cpu {
namespace HWY_NAMESPACE {

namespace {

constexpr int kRows = 4; // rows that share the activations of a few tokens

// ---- One block of columns: kPanelRows widened rows times kTokens tokens ----

// With 3 tokens, 12 sums, 3 operands and one more fill 16 registers; of 32, 24 sums and 4 operands.
constexpr int kPanelRows = kLanes == 16 ? 8 : 4;
static_assert(kPanelRows <= kMostPanelRows);

// GCC would load a register of 64 bytes again for every product, more than a CPU loads in the time of one.
HWY_INLINE VF loaded_once(VF v) {
#if defined(__GNUC__) && (HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL)
    __asm__("" : "+v"(v.raw));
#endif
    return v;
}

template <int kTokens>
HWY_INLINE void multiply_panel(const float *panel, const float *x, int64_t n_cols, bool first, float *sums) {
    const F f;
    for (int part = 0; part < kParts; ++part) {
        const float *w = panel + kN * part;
        VF acc[kTokens][kPanelRows];
        float *held = sums + kN * part;
        for (int t = 0; t < kTokens; ++t)
            for (int r = 0; r < kPanelRows; ++r)
                acc[t][r] = first ? hn::Zero(f) : hn::Load(f, held + (t * kPanelRows + r) * kLanes);
        for (int64_t i = 0; i < n_cols; i += kLanes) {
            VF xs[kTokens];
            for (int t = 0; t < kTokens; ++t) xs[t] = hn::Load(f, x + t * kBlockCols + kN * part + i);
            for (int r = 0; r < kPanelRows; ++r) {
                const VF row = loaded_once(hn::Load(f, w + r * kBlockCols + i));
                for (int t = 0; t < kTokens; ++t) acc[t][r] = hn::MulAdd(row, xs[t], acc[t][r]);
            }
        }
        for (int t = 0; t < kTokens; ++t)
            for (int r = 0; r < kPanelRows; ++r) hn::Store(acc[t][r], f, held + (t * kPanelRows + r) * kLanes);
    }
}

HWY_INLINE void load_lanes(const float *p, VF (&v)[kParts]) {
    for (int part = 0; part < kParts; ++part) v[part] = hn::Load(F(), p + kN * part);
}

// Sums of four rows and one token to out, as far as there are rows.
HWY_INLINE void finish_rows(const VF (&a)[kParts], const VF (&b)[kParts], const VF (&c)[kParts], const VF (&d)[kParts],
                            int n_rows, float *out) {
    HWY_ALIGN float four[4];
    hn::Store(sum_lanes_of_4(a, b, c, d), F4(), four);
    std::memcpy(out, four, sizeof(float) * static_cast<size_t>(std::min(n_rows, 4)));
}

// Row `r` of the args, or the last one where the panel reaches beyond: its sums are not kept.
HWY_INLINE const uint8_t *row_at(const DotArgs &a, int r) {
    return a.weights + static_cast<size_t>(std::min(r, a.n_rows - 1)) * a.row_bytes;
}

// Any number of tokens. Format: widen(row, column, n, out) writes n values and zeros to padded_cols(n).
template <class Format> HWY_INLINE void multiply(const DotArgs &a, const Format &format) {
    const int64_t n_blocks = n_col_blocks(a.k);
    const auto panel_sums = static_cast<int64_t>(a.n_tokens) * kPanelRows * kLanes;
    for (int64_t b = 0; b < n_blocks; ++b) {
        const int n = static_cast<int>(std::min<int64_t>(kBlockCols, a.k - b * kBlockCols));
        const int64_t n_cols = padded_cols(n);
        const float *x = a.x + b * a.n_tokens * kBlockCols;
        for (int r = 0; r < a.n_rows; r += kPanelRows) {
            for (int i = 0; i < kPanelRows; ++i)
                format.widen(row_at(a, r + i), b * kBlockCols, n, a.panel + i * kBlockCols);
            float *sums = a.sums + r / kPanelRows * panel_sums;
            int t = 0;
            for (; t + 3 <= a.n_tokens; t += 3)
                multiply_panel<3>(a.panel, x + t * kBlockCols, n_cols, b == 0, sums + t * kPanelRows * kLanes);
            if (a.n_tokens - t == 2)
                multiply_panel<2>(a.panel, x + t * kBlockCols, n_cols, b == 0, sums + t * kPanelRows * kLanes);
            else if (a.n_tokens - t == 1)
                multiply_panel<1>(a.panel, x + t * kBlockCols, n_cols, b == 0, sums + t * kPanelRows * kLanes);
        }
    }
    for (int r = 0; r < a.n_rows; r += kPanelRows) {
        for (int t = 0; t < a.n_tokens; ++t) {
            const float *sums = a.sums + r / kPanelRows * panel_sums + t * kPanelRows * kLanes;
            for (int i = 0; i < kPanelRows && r + i < a.n_rows; i += 4) {
                VF v[4][kParts];
                for (int j = 0; j < 4; ++j) load_lanes(sums + (i + j) * kLanes, v[j]);
                finish_rows(v[0], v[1], v[2], v[3], a.n_rows - r - i, a.out + t * kChunkRows + r + i);
            }
        }
    }
}

// ---- Few tokens: weights go from memory to registers, four rows at once ----

// Tokens whose sums have room in the registers beside a row's values and its products.
constexpr int kFewTokens = kLanes == 16 ? 4 : kParts == 1 ? 3 : 1;
static_assert(kFewTokens <= kMostFewTokens);

// Rows follow each other in memory. Lines of later ones are asked for, in ascending order, while four are multiplied:
// the next four's, or with short rows as far ahead as the memory is behind.
HWY_INLINE size_t prefetch_distance(const DotArgs &a) {
    return std::max<size_t>(kRows * a.row_bytes, 16384);
}

// n values of a row times those of the tokens. Format: split(row, column, n, v, largest) gives the vectors of kGroup
// values, zeros from the n-th on, in the order of the activations.
template <int kTokens, class Format>
HWY_INLINE void multiply_group(const Format &format, const uint8_t *row, int64_t column, int n, const float *x,
                               VF (&acc)[kTokens][kParts], VU8 &largest) {
    VF v[Format::kGroup / kN];
    format.split(row, column, n, v, largest);
    for (int j = 0; j < Format::kGroup / kN; ++j)
        for (int t = 0; t < kTokens; ++t)
            acc[t][j % kParts] = hn::MulAdd(v[j], hn::Load(F(), x + t * kBlockCols + kN * j), acc[t][j % kParts]);
}

// The sums are those of multiply(), term by term.
template <int kTokens, class Format>
HWY_INLINE void multiply_few(const DotArgs &a, const float *x_first, const Format &format) {
    constexpr int kStep = 64 / Format::kBytes; // values of a row in a line
    constexpr int kGroup = Format::kGroup;
    const size_t ahead = prefetch_distance(a);
    for (int r = 0; r < a.n_rows; r += kRows) {
        const uint8_t *row[kRows];
        VF acc[kRows][kTokens][kParts];
        VU8 largest = hn::Zero(U8()); // of all four: one register
        for (int i = 0; i < kRows; ++i) {
            row[i] = row_at(a, r + i);
            for (int t = 0; t < kTokens; ++t)
                for (int part = 0; part < kParts; ++part) acc[i][t][part] = hn::Zero(F());
        }
        for (int64_t b = 0; b < a.k; b += kBlockCols) {
            const float *x = x_first + b * kTokens;
            const int n = static_cast<int>(std::min<int64_t>(kBlockCols, a.k - b));
            int c = 0;
            for (; c + kStep <= n; c += kStep) {
                const uint8_t *next = row[0] + ahead + kRows * Format::kBytes * (b + c);
                for (int i = 0; i < kRows; ++i) {
                    __builtin_prefetch(next + 64 * i, 0, 2);
                    for (int at = c; at < c + kStep; at += kGroup)
                        multiply_group<kTokens>(format, row[i], b + at, kGroup, x + at, acc[i], largest);
                }
            }
            for (; c < n; c += kGroup)
                for (int i = 0; i < kRows; ++i)
                    multiply_group<kTokens>(format, row[i], b + c, std::min(kGroup, n - c), x + c, acc[i], largest);
        }
        for (int t = 0; t < kTokens; ++t)
            finish_rows(acc[0][t], acc[1][t], acc[2][t], acc[3][t], a.n_rows - r, a.out + t * kChunkRows + r);
        if (has_nan(largest)) format.mark_nan(a, row, r, kTokens);
    }
}

template <class Format> HWY_INLINE void multiply_few(const DotArgs &a, const float *x, const Format &format) {
    static_assert(kFewTokens <= 4);
    if (a.n_tokens == 1) return multiply_few<1>(a, x, format);
    if constexpr (kFewTokens >= 3) {
        if (a.n_tokens == 2) return multiply_few<2>(a, x, format);
        if (a.n_tokens == 3) return multiply_few<3>(a, x, format);
    }
    if constexpr (kFewTokens == 4) return multiply_few<4>(a, x, format);
}

// ---- BF16 ----

struct Bf16Format {
    static constexpr int kBytes = 2, kGroup = kPairs;
    HWY_INLINE void widen(const uint8_t *row, int64_t column, int n, float *out) const {
        widen_pairs(row + 2 * column, n, out);
    }
    HWY_INLINE void split(const uint8_t *row, int64_t column, int n, VF (&v)[2 * kParts], VU8 &) const {
        uint8_t tail[2 * kPairs] = {};
        const uint8_t *values = row + 2 * column;
        if (n < kPairs) values = static_cast<uint8_t *>(std::memcpy(tail, values, static_cast<size_t>(2 * n)));
        VF even[kParts], odd[kParts];
        split_pairs(values, even, odd);
        for (int part = 0; part < kParts; ++part) {
            v[part] = even[part];
            v[kParts + part] = odd[part];
        }
    }
    HWY_INLINE void mark_nan(const DotArgs &, const uint8_t *const (&)[kRows], int, int) const {} // NaN is NaN anyway
};

void dot_bf16(const DotArgs &a) {
    if (a.n_tokens <= kFewTokens)
        multiply_few(a, a.x, Bf16Format{});
    else
        multiply(a, Bf16Format{});
}

// ---- F32 ----

struct F32Format {
    HWY_INLINE void widen(const uint8_t *row, int64_t column, int n, float *out) const {
        std::memcpy(out, row + 4 * column, static_cast<size_t>(4 * n));
        pad(n, out);
    }
};

void dot_f32(const DotArgs &a) {
    multiply(a, F32Format{});
}

// ---- FP8 ----
//
// A product is (code * 2^(s - S)) * (x code * 2^(t - T)) with s and t the scales of its blocks, S the largest scale of
// the weight's block row and T the token's; the sum is multiplied by 2^(S + T) at the end. So no factor overflows,
// whatever the scales, and what is lost lies 2^100 below the largest block.

// kScaled: the activations have taken the factors.
template <bool kScaled> struct Fp8Format {
    static constexpr int kBytes = 1, kGroup = kE4m3Group;
    const float *factors; // of the blocks of 32, times kE4m3Up

    HWY_INLINE void split(const uint8_t *row, int64_t column, int n, VF (&v)[kE4m3Vectors], VU8 &largest) const {
        split_e4m3(row + column, n, v, largest);
        if (kScaled) return;
        const VF factor = factors_at(factors, column);
        for (int j = 0; j < kE4m3Vectors; ++j) v[j] = hn::Mul(v[j], factor);
    }
    HWY_INLINE void widen(const uint8_t *row, int64_t column, int n, float *out) const {
        VU8 largest = hn::Zero(U8());
        int i = 0;
        for (; i < n; i += kGroup) {
            VF v[kE4m3Vectors];
            split(row, column + i, n - i, v, largest);
            for (int j = 0; j < kE4m3Vectors; ++j) hn::Store(v[j], F(), out + i + kN * j);
        }
        pad(i, out);
        // Whatever it is multiplied with, the row's sum is NaN.
        if (has_nan(largest)) out[0] = nan();
    }
    HWY_INLINE void mark_nan(const DotArgs &a, const uint8_t *const (&row)[kRows], int r, int n_tokens) const {
        for (int i = 0; i < kRows && r + i < a.n_rows; ++i)
            if (std::any_of(row[i], row[i] + a.k, [](uint8_t code) { return (code & 0x7f) == kE4m3Nan; }))
                for (int t = 0; t < n_tokens; ++t) a.out[t * kChunkRows + r + i] = nan();
    }
};

// The tokens' values times the factors of their blocks: 32 rows have those in common. Tells whether all products are
// exact, as they are but for scales some 2^100 apart. (w * factor) * x has the bits of w * (x * factor) then.
HWY_INLINE bool scale_activations(const DotArgs &a) {
    const F f;
    auto exact = hn::FirstN(f, kN);
    for (int64_t b = 0; b < a.k; b += kBlockCols) {
        const int64_t n = std::min<int64_t>(kBlockCols, a.k - b), place = b * a.n_tokens;
        for (int64_t c = 0; c < n; c += kE4m3Group) {
            const VF factor = factors_at(a.factors, b + c);
            // Of a power of two; of 0 it is one that takes nothing but 0 back to itself.
            const VF inverse = hn::BitCast(f, hn::Sub(hn::Set(U(), 254u << 23), hn::BitCast(U(), factor)));
            for (int t = 0; t < a.n_tokens; ++t) {
                for (int64_t i = place + t * kBlockCols + c, end = i + kE4m3Group; i < end; i += kN) {
                    const VF x = hn::Load(f, a.x + i), scaled = hn::Mul(x, factor);
                    exact = hn::And(exact, hn::Eq(hn::Mul(scaled, inverse), x)); // NaN is left to the other way
                    hn::Store(scaled, f, a.scaled + i);
                }
            }
        }
    }
    return hn::AllTrue(f, exact);
}

void dot_fp8(const DotArgs &args) {
    const int64_t n_scales = args.k / 32;
    DotArgs a = args;
    for (int at = 0; at < args.n_rows; at += a.n_rows) {
        // Rows of one block row: those have their scales in common.
        const int64_t row = args.first_row + at;
        a.weights = args.weights + static_cast<size_t>(at) * args.row_bytes;
        a.n_rows = std::min(args.n_rows - at, static_cast<int>(kFp8WeightBlock - row % kFp8WeightBlock));
        a.out = args.out + at;
        const uint8_t *scales = args.scales + row / kFp8WeightBlock * n_scales;
        int largest = 0;
        for (int64_t b = 0; b < n_scales; ++b) largest = std::max<int>(largest, scales[b]);
        for (int64_t b = 0; b < n_scales; ++b) put_factor(a.factors, b, relative_scale(scales[b], largest) * kE4m3Up);
        if (n_scales % 2 == 1) put_factor(a.factors, n_scales, 0.0f); // beside the last block, where two share a vector
        const Fp8Format<false> format{a.factors};
        if (a.n_tokens > kFewTokens)
            multiply(a, format);
        else if (scale_activations(a))
            multiply_few(a, a.scaled, Fp8Format<true>{a.factors});
        else
            multiply_few(a, a.x, format);
        for (int t = 0; t < a.n_tokens; ++t) {
            // In f64 a factor of any such exponent is a number, and the product exact until it is a float again.
            const int exponent = largest - 127 + a.exponents[t];
            const double factor = std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
            for (int r = 0; r < a.n_rows; ++r) {
                float &value = a.out[t * kChunkRows + r];
                value = static_cast<float>(double{value} * factor);
            }
        }
    }
}

// ---- Q2_K with plain activations ----

struct Q2KFormat {
    HWY_INLINE void widen(const uint8_t *row, int64_t column, int n, float *out) const {
        for (int at = 0; at < n; at += kQ2KBlock) {
            const uint8_t *block = row + (column + at) / kQ2KBlock * kQ2KBytes;
            const Q2KScales scales = q2_k_scales(block);
            for (int t = 0; t < 16; ++t) {
                const uint8_t *codes = block + 16 + 32 * (t / 8) + 16 * (t % 2);
                const int shift = t % 8 / 2 * 2;
                // As decode_q2_k_row: products are exact, the difference is rounded.
                const float scale = scales.d * static_cast<float>(block[t] & 15);
                const float min = scales.dmin * static_cast<float>(block[t] >> 4);
                for (int r = 0; r < 16; ++r)
                    out[at + 16 * t + r] = scale * static_cast<float>((codes[r] >> shift) & 3) - min;
            }
        }
    }
};

void dot_q2_k_plain(const DotArgs &a) {
    multiply(a, Q2KFormat{});
}

constexpr DotKernels kTable = {dot_bf16, dot_f32, dot_fp8, dot_q2_k_plain};

} // namespace

} // namespace HWY_NAMESPACE
} // namespace ds41::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
DS41_CPU_TABLE(DotKernels, dot_kernels)
#endif
