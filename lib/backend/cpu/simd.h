// What the kernels share: eight or, with AVX-512, sixteen virtual lanes, whatever a register holds; sums over them in
// one fixed order; bf16 and exponentials; integer products in pairs. Compiled once per target, as Highway's own headers
// are.
//
// Every sum of f32 products in this backend is one running sum per lane: of eight lanes, lane i takes every eighth
// element from i on, in the order that the operands lie in. Each product is fused with its addition where the target
// can. Of sixteen, lane i + 8 is then added to lane i; of eight the sum is ((0+4) + (2+6)) + ((1+5) + (3+7)). It
// depends on nothing but its own operands: not on threads, neighbours, tiles. (Products of bf16 pairs have orders of
// their own, which hold the same: pairs.h.)
#if defined(DS41_CPU_SIMD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef DS41_CPU_SIMD_H
#undef DS41_CPU_SIMD_H
#else
#define DS41_CPU_SIMD_H
#endif

#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR // Highway defines it anew for the next target
#define HWY_TARGET_STR                                                                                                 \
    HWY_TARGET_STR_AVX3 ",vpclmulqdq,vaes,avx512vbmi,avx512vbmi2,avx512vnni,avx512bitalg,avx512vpopcntdq"
#endif

HWY_BEFORE_NAMESPACE();
namespace ds41::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Before a loop that the compiler must leave as it is: unrolled, GCC makes all products first and spills them.
#undef DS41_CPU_ROLLED
#ifdef __clang__
#define DS41_CPU_ROLLED _Pragma("clang loop unroll(disable)")
#else
#define DS41_CPU_ROLLED _Pragma("GCC unroll 1")
#endif

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif
static_assert(kLanes <= kMostLanes);

using F = hn::CappedTag<float, kLanes>;
using I = hn::RebindToSigned<F>;
using U = hn::RebindToUnsigned<F>;
using VF = hn::Vec<F>;
using VI = hn::Vec<I>;
using VU = hn::Vec<U>;

constexpr int kN = static_cast<int>(hn::MaxLanes(F())); // lanes of a register
constexpr int kParts = kLanes / kN;                     // registers for all lanes

// Bytes, and pairs of them, that belong to kN lanes of 32 bits.
using U8 = hn::CappedTag<uint8_t, 4 * kN>;
using I8 = hn::CappedTag<int8_t, 4 * kN>;
using I16 = hn::CappedTag<int16_t, 2 * kN>;
using U16 = hn::CappedTag<uint16_t, 2 * kN>;
using VU8 = hn::Vec<U8>;
using VI8 = hn::Vec<I8>;
using VI16 = hn::Vec<I16>;

// (0+4, 1+5, 2+6, 3+7) of eight lanes, after sixteen have become eight.
using F4 = hn::CappedTag<float, 4>;
using VF4 = hn::Vec<F4>;
template <class V> HWY_INLINE auto halves_added(V v) {
    const hn::Half<hn::DFromV<V>> half;
    return hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v));
}
template <int kRegisters> HWY_INLINE VF4 fold(const VF (&v)[kRegisters]) {
    if constexpr (kRegisters == 2)
        return hn::Add(v[0], v[1]);
    else if constexpr (kLanes == 16)
        return halves_added(halves_added(v[0]));
    else
        return halves_added(v[0]);
}

HWY_INLINE float sum_lanes(const VF (&v)[kParts]) {
    const VF4 s = fold(v);
    const VF4 t = hn::Add(s, hn::Shuffle1032(s));
    return hn::GetLane(hn::Add(t, hn::Shuffle2301(t)));
}

// Four sums at once, the same order.
HWY_INLINE VF4 sum_lanes_of_4(const VF (&a)[kParts], const VF (&b)[kParts], const VF (&c)[kParts],
                              const VF (&d)[kParts]) {
    const F4 f4;
    const VF4 sa = fold(a), sb = fold(b), sc = fold(c), sd = fold(d);
    // (0+2, 1+3) of each.
    const VF4 ab = hn::Add(hn::ConcatLowerLower(f4, sb, sa), hn::ConcatUpperUpper(f4, sb, sa));
    const VF4 cd = hn::Add(hn::ConcatLowerLower(f4, sd, sc), hn::ConcatUpperUpper(f4, sd, sc));
    return hn::Add(hn::ConcatEven(f4, cd, ab), hn::ConcatOdd(f4, cd, ab));
}

// To bf16 and back, nearest even. Not for a NaN with payload in its lower half: that could overflow.
HWY_INLINE VF round_bf16_lanes(VF v) {
    const U u;
    const VU bits = hn::BitCast(u, v);
    const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
    const VU rounded = hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7fff)));
    return hn::BitCast(F(), hn::And(rounded, hn::Set(u, 0xffff0000u)));
}

// bf16 in the upper halves, as to_bf16; the lower ones are not cleared.
HWY_INLINE VU bf16_bits(VF v) {
    const U u;
    const VU bits = hn::BitCast(u, v);
    const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
    const VU number = hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7fff)));
    const VU quiet = hn::Or(bits, hn::Set(u, 0x400000));
    return hn::IfThenElse(hn::RebindMask(u, hn::Eq(v, v)), number, quiet);
}

HWY_INLINE void store_bf16(VF v, uint16_t *p) {
    const hn::Rebind<uint16_t, F> u16;
    hn::StoreU(hn::DemoteTo(u16, hn::BitCast(I(), hn::ShiftRight<16>(bf16_bits(v)))), u16, p);
}

// kN floats from bf16.
HWY_INLINE VF load_bf16(const uint16_t *p) {
    const hn::Rebind<uint16_t, F> u16;
    return hn::BitCast(F(), hn::ShiftLeft<16>(hn::PromoteTo(U(), hn::LoadU(u16, p))));
}

// e^x for x <= 0, NaN for NaN. x = n ln 2 + r with |r| <= ln 2 / 2 in two steps, e^r by its Taylor polynomial of degree
// 7 (the rest is below 2^-27), 2^n as two factors so that subnormal results come out. Within 1 unit in the last place:
// 0.996 was the largest error of a sweep in steps of 2^-12.
HWY_INLINE VF exp_lanes(VF x) {
    const F f;
    const I i;
    // Below -104 the result is zero; -inf and what would overflow the integer conversion end there too.
    const VF low = hn::Set(f, -104.0f);
    const VF clamped = hn::IfThenElse(hn::Lt(x, low), low, x);
    const VF n = hn::Round(hn::Mul(clamped, hn::Set(f, 1.44269504f)));
    VF r = hn::NegMulAdd(n, hn::Set(f, 0.693359375f), clamped); // 9 bits: exact for |n| < 2^15
    r = hn::NegMulAdd(n, hn::Set(f, -2.12194440e-4f), r);
    VF p = hn::Set(f, 1.0f / 5040.0f);
    p = hn::MulAdd(p, r, hn::Set(f, 1.0f / 720.0f));
    p = hn::MulAdd(p, r, hn::Set(f, 1.0f / 120.0f));
    p = hn::MulAdd(p, r, hn::Set(f, 1.0f / 24.0f));
    p = hn::MulAdd(p, r, hn::Set(f, 1.0f / 6.0f));
    p = hn::MulAdd(p, r, hn::Set(f, 0.5f));
    p = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), hn::Set(f, 1.0f));
    const VI exponent = hn::ConvertTo(i, n);
    const VI half = hn::ShiftRight<1>(exponent);
    const VI bias = hn::Set(i, 127);
    const VF factor1 = hn::BitCast(f, hn::ShiftLeft<23>(hn::Add(half, bias)));
    const VF factor2 = hn::BitCast(f, hn::ShiftLeft<23>(hn::Add(hn::Sub(exponent, half), bias)));
    const VF result = hn::Mul(hn::Mul(p, factor1), factor2);
    return hn::IfThenElse(hn::Eq(x, x), result, x);
}

// Products of unsigned bytes, 127 at most, and signed ones, added in pairs. No pair may leave 16 bits.
HWY_INLINE VI16 mul_pairs(VU8 a, VI8 b) {
#if HWY_TARGET < HWY_AVX2
    return VI16{_mm512_maddubs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
    return VI16{_mm256_maddubs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_SSE4
    return VI16{_mm_maddubs_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_NEON
    const int8x16_t a8 = vreinterpretq_s8_u8(a.raw);
    return VI16{vpaddq_s16(vmull_s8(vget_low_s8(a8), vget_low_s8(b.raw)), vmull_high_s8(a8, b.raw))};
#else
    const I16 d;
    const VI16 a16 = hn::BitCast(d, a), b16 = hn::BitCast(d, b);
    const VI16 even = hn::Mul(hn::And(a16, hn::Set(d, 0xff)), hn::ShiftRight<8>(hn::ShiftLeft<8>(b16)));
    const VI16 odd = hn::Mul(hn::BitCast(d, hn::ShiftRight<8>(hn::BitCast(U16(), a16))), hn::ShiftRight<8>(b16));
    return hn::Add(even, odd);
#endif
}

// Products of 16-bit numbers, added in pairs.
HWY_INLINE VI mul_pairs(VI16 a, VI16 b) {
#if HWY_TARGET < HWY_AVX2
    return VI{_mm512_madd_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX2
    return VI{_mm256_madd_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_SSE4
    return VI{_mm_madd_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_NEON
    return VI{vpaddq_s32(vmull_s16(vget_low_s16(a.raw), vget_low_s16(b.raw)), vmull_high_s16(a.raw, b.raw))};
#else
    const I d;
    const VI a32 = hn::BitCast(d, a), b32 = hn::BitCast(d, b);
    const VI even = hn::Mul(hn::ShiftRight<16>(hn::ShiftLeft<16>(a32)), hn::ShiftRight<16>(hn::ShiftLeft<16>(b32)));
    return hn::Add(even, hn::Mul(hn::ShiftRight<16>(a32), hn::ShiftRight<16>(b32)));
#endif
}

} // namespace HWY_NAMESPACE
} // namespace ds41::cpu
HWY_AFTER_NAMESPACE();

#endif // per-target include guard
