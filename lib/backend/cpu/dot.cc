// Products of weight rows with float activations, one kernel for every weight format and every number of tokens.
// Numerics: operands exact (fp8 times powers of two, see below), f32 sums as simd.h says, rounded by the caller.
// One token: weights go from memory to registers. More: four rows of 512 columns are widened into the level 1 cache and
// multiplied with all tokens, three at a time, sums resting in memory from one block of columns to the next.
#include "backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/dot.cc"
#include <hwy/foreach_target.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/simd.h"
#include "numeric/fp8_linear.h"
#include "numeric/q2_k.h"

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace ds41::cpu {
namespace HWY_NAMESPACE {

namespace {

// 16 bf16 values as 8 even and 8 odd ones.
HWY_INLINE void split_pairs(const uint8_t *p, VF (&even)[kParts], VF (&odd)[kParts]) {
    const U u;
    for (int part = 0; part < kParts; ++part) {
        const VU pairs = hn::BitCast(u, hn::LoadU(U8(), p + 4 * kN * part));
        even[part] = hn::BitCast(F(), hn::ShiftLeft<16>(pairs));
        odd[part] = hn::BitCast(F(), hn::And(pairs, hn::Set(u, 0xffff0000u)));
    }
}

// 4 * kN e4m3 codes as floats times 2^-8: shifted into place they are f16 numbers, subnormal ones too, but for the NaN
// codes, which look like 480. `largest` keeps the largest magnitude of all codes, so that the caller can tell.
HWY_INLINE void split_e4m3(const uint8_t *p, VF (&out)[4], VU8 &largest) {
    const F f;
    const U8 u8;
    const U16 u16;
    const hn::Half<U16> h16;
    const hn::RebindToSigned<U16> i16;
    const hn::Rebind<hwy::float16_t, F> f16;
    const VU8 codes = hn::LoadU(u8, p);
    largest = hn::Max(largest, hn::And(codes, hn::Set(u8, kE4m3Nan)));
    const VU8 zero = hn::Zero(u8);
    // Codes in the upper bytes; the arithmetic shift leaves the sign in place and a copy below, which the mask clears.
    const auto mask = hn::Set(u16, 0xbf80);
    const auto low = hn::BitCast(i16, hn::InterleaveLower(u8, zero, codes));
    const auto high = hn::BitCast(i16, hn::InterleaveUpper(u8, zero, codes));
    const auto a = hn::And(hn::BitCast(u16, hn::ShiftRight<1>(low)), mask);
    const auto b = hn::And(hn::BitCast(u16, hn::ShiftRight<1>(high)), mask);
    // Interleaving works within 16 bytes: registers of 32 hold codes 0-7 and 16-23 in a, the others in b.
    constexpr int kSecond = kParts == 1 ? 2 : 1, kThird = kParts == 1 ? 1 : 2;
    out[0] = hn::PromoteTo(f, hn::BitCast(f16, hn::LowerHalf(h16, a)));
    out[kSecond] = hn::PromoteTo(f, hn::BitCast(f16, hn::UpperHalf(h16, a)));
    out[kThird] = hn::PromoteTo(f, hn::BitCast(f16, hn::LowerHalf(h16, b)));
    out[3] = hn::PromoteTo(f, hn::BitCast(f16, hn::UpperHalf(h16, b)));
}

HWY_INLINE bool has_nan(VU8 largest) {
    return !hn::AllFalse(U8(), hn::Eq(largest, hn::Set(U8(), kE4m3Nan)));
}

HWY_INLINE float nan() {
    return float_from_bits(0x7fc00000u);
}

// ---- One block of columns: kPanelRows widened rows times kTokens tokens ----

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
                const VF row = hn::Load(f, w + r * kBlockCols + i);
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

// Sums of kPanelRows rows and one token to out, as far as there are rows.
HWY_INLINE void finish_panel(const VF (&a)[kParts], const VF (&b)[kParts], const VF (&c)[kParts], const VF (&d)[kParts],
                             int n_rows, float *out) {
    HWY_ALIGN float four[4];
    hn::Store(sum_lanes_of_4(a, b, c, d), F4(), four);
    std::memcpy(out, four, sizeof(float) * static_cast<size_t>(std::min(n_rows, kPanelRows)));
}

// Row `r` of the args, or the last one where the panel reaches beyond: its sums are not kept.
HWY_INLINE const uint8_t *row_at(const DotArgs &a, int r) {
    return a.weights + static_cast<size_t>(std::min(r, a.n_rows - 1)) * a.row_bytes;
}

// Any number of tokens. Format: widen(row, column, n, out) writes n values and zeros to a multiple of 16.
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
            VF v[kPanelRows][kParts];
            for (int i = 0; i < kPanelRows; ++i) load_lanes(sums + i * kLanes, v[i]);
            finish_panel(v[0], v[1], v[2], v[3], a.n_rows - r, a.out + t * kChunkRows + r);
        }
    }
}

// ---- BF16 ----

void widen_pairs(const uint8_t *row, int n, float *out) {
    const F f;
    VF even[kParts], odd[kParts];
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        split_pairs(row + 2 * i, even, odd);
        for (int part = 0; part < kParts; ++part) {
            hn::Store(even[part], f, out + i + kN * part);
            hn::Store(odd[part], f, out + i + 8 + kN * part);
        }
    }
    if (i == n) return;
    uint8_t tail[32] = {};
    std::memcpy(tail, row + 2 * i, static_cast<size_t>(2 * (n - i)));
    split_pairs(tail, even, odd);
    for (int part = 0; part < kParts; ++part) {
        hn::Store(even[part], f, out + i + kN * part);
        hn::Store(odd[part], f, out + i + 8 + kN * part);
    }
}

struct Bf16Format {
    HWY_INLINE void widen(const uint8_t *row, int64_t column, int n, float *out) const {
        widen_pairs(row + 2 * column, n, out);
    }
};

HWY_INLINE void multiply_bf16_16(const uint8_t *row, const float *x, VF (&acc)[kParts]) {
    VF even[kParts], odd[kParts];
    split_pairs(row, even, odd);
    for (int part = 0; part < kParts; ++part) {
        acc[part] = hn::MulAdd(even[part], hn::Load(F(), x + kN * part), acc[part]);
        acc[part] = hn::MulAdd(odd[part], hn::Load(F(), x + 8 + kN * part), acc[part]);
    }
}

// The next four rows follow in memory: their lines are asked for while these are multiplied.
HWY_INLINE void prefetch(const uint8_t *p) {
    __builtin_prefetch(p, 0, 2);
}

void dot_bf16(const DotArgs &a) {
    if (a.n_tokens > 1) return multiply(a, Bf16Format{});
    const int64_t whole = a.k / 16 * 16;
    const size_t ahead = kPanelRows * a.row_bytes;
    for (int r = 0; r < a.n_rows; r += kPanelRows) {
        const uint8_t *row[kPanelRows];
        VF acc[kPanelRows][kParts];
        for (int i = 0; i < kPanelRows; ++i) {
            row[i] = row_at(a, r + i);
            for (int part = 0; part < kParts; ++part) acc[i][part] = hn::Zero(F());
        }
        int64_t c = 0;
        for (; c + 32 <= whole; c += 32) {
            for (int i = 0; i < kPanelRows; ++i) {
                prefetch(row[i] + ahead + 2 * c);
                multiply_bf16_16(row[i] + 2 * c, a.x + c, acc[i]);
                multiply_bf16_16(row[i] + 2 * c + 32, a.x + c + 16, acc[i]);
            }
        }
        if (c < whole)
            for (int i = 0; i < kPanelRows; ++i) multiply_bf16_16(row[i] + 2 * c, a.x + c, acc[i]);
        if (whole < a.k) {
            for (int i = 0; i < kPanelRows; ++i) {
                uint8_t tail[32] = {};
                std::memcpy(tail, row[i] + 2 * whole, static_cast<size_t>(2 * (a.k - whole)));
                multiply_bf16_16(tail, a.x + whole, acc[i]);
            }
        }
        finish_panel(acc[0], acc[1], acc[2], acc[3], a.n_rows - r, a.out + r);
    }
}

// ---- F32 ----

struct F32Format {
    HWY_INLINE void widen(const uint8_t *row, int64_t column, int n, float *out) const {
        std::memcpy(out, row + 4 * column, static_cast<size_t>(4 * n));
        for (int i = n; i % 16 != 0; ++i) out[i] = 0.0f;
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

// 2^(code - largest), 0 where that is no normal number.
HWY_INLINE float relative_scale(int code, int largest) {
    const int exponent = code - largest + 127;
    return exponent > 0 ? float_from_bits(static_cast<uint32_t>(exponent) << 23) : 0.0f;
}

struct Fp8Format {
    const float *factors; // of the blocks of 32, times 2^8
    HWY_INLINE void widen(const uint8_t *row, int64_t column, int n, float *out) const {
        const F f;
        VU8 largest = hn::Zero(U8());
        for (int i = 0; i < n; i += 4 * kN) {
            VF v[4];
            split_e4m3(row + column + i, v, largest);
            const VF factor = hn::Set(f, factors[(column + i) / 32]);
            for (int j = 0; j < 4; ++j) hn::Store(hn::Mul(v[j], factor), f, out + i + kN * j);
        }
        // Whatever it is multiplied with, the row's sum is NaN.
        if (has_nan(largest)) out[0] = nan();
    }
};

void dot_fp8_one(const DotArgs &a) {
    const size_t ahead = kPanelRows * a.row_bytes;
    for (int r = 0; r < a.n_rows; r += kPanelRows) {
        const uint8_t *row[kPanelRows];
        VF acc[kPanelRows][kParts];
        VU8 largest = hn::Zero(U8()); // of all four: one register
        for (int i = 0; i < kPanelRows; ++i) {
            row[i] = row_at(a, r + i);
            for (int part = 0; part < kParts; ++part) acc[i][part] = hn::Zero(F());
        }
        for (int64_t c = 0; c < a.k; c += 32) {
            const VF factor = hn::Set(F(), a.factors[c / 32]);
            for (int i = 0; i < kPanelRows; ++i) {
                if (c % 64 == 0) prefetch(row[i] + ahead + c);
                for (int at = 0; at < 32; at += 4 * kN) {
                    VF v[4];
                    split_e4m3(row[i] + c + at, v, largest);
                    for (int j = 0; j < 4; ++j)
                        acc[i][j % kParts] =
                            hn::MulAdd(hn::Mul(v[j], factor), hn::Load(F(), a.x + c + at + kN * j), acc[i][j % kParts]);
                }
            }
        }
        finish_panel(acc[0], acc[1], acc[2], acc[3], a.n_rows - r, a.out + r);
        if (!has_nan(largest)) continue;
        for (int i = 0; i < kPanelRows && r + i < a.n_rows; ++i)
            if (std::any_of(row[i], row[i] + a.k, [](uint8_t code) { return (code & 0x7f) == kE4m3Nan; }))
                a.out[r + i] = nan();
    }
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
        for (int64_t b = 0; b < n_scales; ++b) a.factors[b] = relative_scale(scales[b], largest) * 256.0f;
        if (a.n_tokens == 1)
            dot_fp8_one(a);
        else
            multiply(a, Fp8Format{a.factors});
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

// ---- Activations ----

void widen(const Bf16 *x, int n, Order order, float *out) {
    if (order == Order::kPairs) return widen_pairs(reinterpret_cast<const uint8_t *>(x), n, out);
    int i = 0;
    for (; i + kN <= n; i += kN) hn::Store(load_bf16(&x[i].bits), F(), out + i);
    for (; i < n; ++i) out[i] = to_f32(x[i]);
    for (; i % 16 != 0; ++i) out[i] = 0.0f;
}

HWY_INLINE VF abs_lanes(VF v) {
    return hn::BitCast(F(), hn::And(hn::BitCast(U(), v), hn::Set(U(), ~kSignBit)));
}

// Largest magnitude of 32 values, as bits: infinities and NaN lie above every number.
HWY_INLINE uint32_t amax_bits(const Bf16 *x) {
    VU largest = hn::Zero(U());
    for (int i = 0; i < 32; i += kN) largest = hn::Max(largest, hn::BitCast(U(), abs_lanes(load_bf16(&x[i].bits))));
    HWY_ALIGN uint32_t lanes[kN];
    hn::Store(largest, U(), lanes);
    uint32_t bits = 0;
    for (int i = 0; i < kN; ++i) bits = std::max(bits, lanes[i]);
    return bits;
}

// As quantise_fp8_block.
void fp8_scales(const Bf16 *x, int64_t n, uint8_t *scales) {
    for (int64_t b = 0; b < n / 32; ++b) {
        const uint32_t bits = amax_bits(x + 32 * b);
        scales[b] = bits >= kInfBits
                        ? kUe8m0Nan
                        : pow2_to_ue8m0(pow2_ceil(std::max(float_from_bits(bits), kFp8AmaxFloor) / kE4m3Max));
    }
}

// x / scale, an exact division, rounded to e4m3: to 4 significant bits, or to a multiple of 2^-9 below 2^-6. Adding and
// taking away a power of two 20 binades up does that, to nearest even.
void widen_fp8(const Bf16 *x, int n, const uint8_t *scales, int exponent, float *out) {
    const F f;
    const U u;
    for (int i = 0; i < n; i += kN) {
        const int code = scales[i / 32];
        if (code == kUe8m0Nan) {
            hn::Store(hn::Set(f, nan()), f, out + i);
            continue;
        }
        // Scales of activations lie between 2^-22 and 2^120: their inverse is a number.
        const VF inverse = hn::Set(f, float_from_bits(static_cast<uint32_t>(254 - code) << 23));
        const VF value = hn::Mul(load_bf16(&x[i].bits), inverse);
        const VF magnitude = abs_lanes(value);
        const VU binade = hn::Max(hn::And(hn::BitCast(u, magnitude), hn::Set(u, kInfBits)), hn::Set(u, 121u << 23));
        const VF raised = hn::BitCast(f, hn::Add(binade, hn::Set(u, 20u << 23)));
        const VF rounded = hn::Min(hn::Sub(hn::Add(magnitude, raised), raised), hn::Set(f, kE4m3Max));
        const VU sign = hn::And(hn::BitCast(u, value), hn::Set(u, kSignBit));
        const VF quantised = hn::BitCast(f, hn::Or(hn::BitCast(u, rounded), sign));
        hn::Store(hn::Mul(quantised, hn::Set(f, relative_scale(code, exponent + 127))), f, out + i);
    }
}

// As numeric/q8.h, unpacked; the scale has gone through fp16.
void quantise_q8(const Bf16 *x, int64_t n, int8_t *codes, float *d, float *sums) {
    const F f;
    const I i32;
    for (int64_t b = 0; b < n / 32; ++b) {
        const uint32_t bits = amax_bits(x + 32 * b);
        const bool finite = bits < kInfBits;
        const float step = float_from_bits(bits) / 127.0f;
        d[b] = finite ? f16_to_f32(f32_to_f16(step)) : nan();
        HWY_ALIGN int32_t block[32];
        if (finite && step > 0.0f) {
            for (int i = 0; i < 32; i += kN) {
                const VF v = hn::Div(load_bf16(&x[32 * b + i].bits), hn::Set(f, step));
                // Halves away from zero: the fraction of a number below 2^23 is exact.
                const VI whole = hn::ConvertTo(i32, v);
                const VF fraction = hn::Sub(v, hn::ConvertTo(f, whole));
                const VI up = hn::VecFromMask(i32, hn::RebindMask(i32, hn::Ge(fraction, hn::Set(f, 0.5f))));
                const VI down = hn::VecFromMask(i32, hn::RebindMask(i32, hn::Le(fraction, hn::Set(f, -0.5f))));
                hn::Store(hn::Add(hn::Sub(whole, up), down), i32, block + i);
            }
        } else {
            std::memset(block, 0, sizeof block);
        }
        for (int i = 0; i < 32; ++i) codes[32 * b + i] = static_cast<int8_t>(block[i]);
        for (int i = 0; i < 8; ++i)
            sums[8 * b + i] =
                d[b] * static_cast<float>(block[4 * i] + block[4 * i + 1] + block[4 * i + 2] + block[4 * i + 3]);
    }
}

constexpr DotKernels kTable = {dot_bf16, dot_f32, dot_fp8, dot_q2_k_plain, widen, widen_fp8, fp8_scales, quantise_q8};

} // namespace

} // namespace HWY_NAMESPACE
} // namespace ds41::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
DS41_CPU_TABLE(DotKernels, dot_kernels)
#endif
