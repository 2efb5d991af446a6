// Rows of weights as floats, in registers, in the orders that activations follow (Order in kernels.h). Compiled once
// per target, as simd.h is.
#if defined(DS41_CPU_ORDERS_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DS41_CPU_ORDERS_H
#undef DS41_CPU_ORDERS_H
#else
#define DS41_CPU_ORDERS_H
#endif

#include "backend/cpu/kernels.h"
#include "backend/cpu/simd.h"
#include "numeric/fp8_linear.h"

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace ds41::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE float nan() {
    return float_from_bits(0x7fc00000u);
}

HWY_INLINE void pad(int n, float *out) {
    for (const int64_t end = padded_cols(n); n < end; ++n) out[n] = 0.0f;
}

// ---- BF16: Order::kPairs ----

constexpr int kPairs = 2 * kLanes; // bf16 values that are split together

// kPairs bf16 values as kLanes even and kLanes odd ones.
HWY_INLINE void split_pairs(const uint8_t *p, VF (&even)[kParts], VF (&odd)[kParts]) {
    const U u;
    for (int part = 0; part < kParts; ++part) {
        const VU pairs = hn::BitCast(u, hn::LoadU(U8(), p + 4 * kN * part));
        even[part] = hn::BitCast(F(), hn::ShiftLeft<16>(pairs));
        odd[part] = hn::BitCast(F(), hn::And(pairs, hn::Set(u, 0xffff0000u)));
    }
}

HWY_INLINE void widen_group(const uint8_t *row, float *out) {
    VF even[kParts], odd[kParts];
    split_pairs(row, even, odd);
    for (int part = 0; part < kParts; ++part) {
        hn::Store(even[part], F(), out + kN * part);
        hn::Store(odd[part], F(), out + kLanes + kN * part);
    }
}

HWY_INLINE void widen_pairs(const uint8_t *row, int n, float *out) {
    int i = 0;
    for (; i + kPairs <= n; i += kPairs) widen_group(row + 2 * i, out + i);
    if (i < n) {
        uint8_t tail[2 * kPairs] = {};
        std::memcpy(tail, row + 2 * i, static_cast<size_t>(2 * (n - i)));
        widen_group(tail, out + i);
        i += kPairs;
    }
    pad(i, out);
}

// ---- FP8: Order::kCodes ----

// kE4m3Vectors vectors of e4m3 codes as floats, some of the targets times a power of two that the factors of the blocks
// take back. place(i) is the column of the group that lies at i then. `largest` keeps the largest magnitude of all
// codes where the result of a NaN code is a number, so that the caller can tell.
#if HWY_TARGET == HWY_AVX3_DL
constexpr int kE4m3Vectors = 4;
constexpr float kE4m3Up = 1.0f;

// The upper and the lower byte of each magnitude as bf16. They are interleaved within 16 bytes, then split as pairs.
struct E4m3Table {
    alignas(64) uint8_t upper[128], lower[128];
};
constexpr E4m3Table make_e4m3_table() {
    E4m3Table table{};
    for (int code = 0; code < 128; ++code) {
        uint32_t bits = 0x7fc0; // NaN
        if (code < kE4m3Nan) {
            int exponent = code >> 3, mantissa = code & 7;
            if (exponent == 0)
                for (exponent = 1; mantissa != 0 && mantissa < 8; --exponent) mantissa *= 2;
            bits = mantissa == 0 && code < 8 ? 0u : static_cast<uint32_t>((exponent + 120) << 7 | (mantissa & 7) << 4);
        }
        table.upper[code] = static_cast<uint8_t>(bits >> 8);
        table.lower[code] = static_cast<uint8_t>(bits & 0xff);
    }
    return table;
}
constexpr E4m3Table kE4m3Table = make_e4m3_table();

constexpr int place(int i) {
    const int vector = i / kN, lane = i % kN;
    return lane / 4 * 16 + vector / 2 * 8 + lane % 4 * 2 + vector % 2;
}

HWY_INLINE VU8 look_up(const uint8_t *table, VU8 codes) {
    const U8 u8;
    return VU8{_mm512_permutex2var_epi8(hn::Load(u8, table).raw, codes.raw, hn::Load(u8, table + 64).raw)};
}

HWY_INLINE void split_e4m3(const uint8_t *p, int n, VF (&out)[kE4m3Vectors], VU8 &) {
    const U8 u8;
    const U u;
    const VU8 codes = n >= 4 * kN ? hn::LoadU(u8, p) : hn::MaskedLoad(hn::FirstN(u8, static_cast<size_t>(n)), u8, p);
    const VU8 lower = look_up(kE4m3Table.lower, codes);
    const VU8 upper = hn::Or(look_up(kE4m3Table.upper, codes), hn::And(codes, hn::Set(u8, 0x80)));
    const VU pairs[2] = {hn::BitCast(u, hn::InterleaveLower(u8, lower, upper)),
                         hn::BitCast(u, hn::InterleaveUpper(u8, lower, upper))};
    for (int i = 0; i < 2; ++i) {
        out[2 * i] = hn::BitCast(F(), hn::ShiftLeft<16>(pairs[i]));
        out[2 * i + 1] = hn::BitCast(F(), hn::And(pairs[i], hn::Set(u, 0xffff0000u)));
    }
}

// In every vector the lower lanes are of the first block of 32 columns, the upper ones of the second.
HWY_INLINE VF factors_at(const float *factors, int64_t column) {
    return hn::Load(F(), factors + column / 64 * kN);
}
HWY_INLINE void put_factor(float *factors, int64_t block, float factor) {
    hn::Store(hn::Set(hn::Half<F>(), factor), hn::Half<F>(), factors + block * (kN / 2));
}
#else
constexpr int kE4m3Vectors = kN == 16 ? 2 : 4;
constexpr float kE4m3Up = 256.0f;

constexpr int place(int i) {
    return i;
}

// Shifted into place the codes are f16 numbers, subnormal ones too, but for the NaN codes, which look like 480.
HWY_INLINE void split_e4m3(const uint8_t *p, int, VF (&out)[kE4m3Vectors], VU8 &largest) {
    const F f;
    const U8 u8;
    const U16 u16;
    const hn::Half<U16> h16;
    const hn::RebindToSigned<U16> i16;
    const hn::Rebind<hwy::float16_t, F> f16;
    const auto mask = hn::Set(u16, 0xbf80);
#if HWY_TARGET == HWY_AVX3
    const hn::Half<U8> codes_tag;
    const auto codes = hn::LoadU(codes_tag, p);
    largest = hn::Max(largest, hn::ZeroExtendVector(u8, hn::And(codes, hn::Set(codes_tag, kE4m3Nan))));
    const auto raised = hn::BitCast(i16, hn::ShiftLeft<8>(hn::PromoteTo(u16, codes)));
    const auto a = hn::And(hn::BitCast(u16, hn::ShiftRight<1>(raised)), mask);
    out[0] = hn::PromoteTo(f, hn::BitCast(f16, hn::LowerHalf(h16, a)));
    out[1] = hn::PromoteTo(f, hn::BitCast(f16, hn::UpperHalf(h16, a)));
#else
    const VU8 codes = hn::LoadU(u8, p);
    largest = hn::Max(largest, hn::And(codes, hn::Set(u8, kE4m3Nan)));
    const VU8 zero = hn::Zero(u8);
    // Codes in the upper bytes; the arithmetic shift leaves the sign in place and a copy below, which the mask clears.
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
#endif
}

HWY_INLINE VF factors_at(const float *factors, int64_t column) {
    return hn::Set(F(), factors[column / 32]);
}
HWY_INLINE void put_factor(float *factors, int64_t block, float factor) {
    factors[block] = factor;
}
#endif
constexpr int kE4m3Group = kE4m3Vectors * kN;

HWY_INLINE bool has_nan(VU8 largest) {
    return !hn::AllFalse(U8(), hn::Eq(largest, hn::Set(U8(), kE4m3Nan)));
}

// 2^(code - largest), 0 where that is no normal number.
HWY_INLINE float relative_scale(int code, int largest) {
    const int exponent = code - largest + 127;
    return exponent > 0 ? float_from_bits(static_cast<uint32_t>(exponent) << 23) : 0.0f;
}

} // namespace HWY_NAMESPACE
} // namespace ds41::cpu
HWY_AFTER_NAMESPACE();

#endif // per-target include guard
