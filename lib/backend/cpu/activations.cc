// Activations into the form that a weight format wants: floats in its order, or quantised as lib/numeric defines it,
// bit for bit.
#include "backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/activations.cc"
#include <hwy/foreach_target.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/orders.h"
#include "backend/cpu/simd.h"
#include "numeric/fp8_linear.h"

#include <algorithm>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace ds41::cpu {
namespace HWY_NAMESPACE {

namespace {

void widen_natural(const Bf16 *x, int n, float *out) {
    int i = 0;
    for (; i + kN <= n; i += kN) hn::Store(load_bf16(&x[i].bits), F(), out + i);
    for (; i < n; ++i) out[i] = to_f32(x[i]);
    pad(i, out);
}

constexpr bool kCodesStay = place(1) == 1;

void order_codes(const float (&group)[kE4m3Group], float *out) {
    for (int i = 0; i < kE4m3Group; ++i) out[i] = group[place(i)];
}

void widen(const Bf16 *x, int n, Order order, float *out) {
    if (order == Order::kPairs) return widen_pairs(reinterpret_cast<const uint8_t *>(x), n, out);
    if (order == Order::kNatural || kCodesStay) return widen_natural(x, n, out);
    HWY_ALIGN float group[kE4m3Group];
    static_assert(kCodesStay || kE4m3Group == padded_cols(1));
    for (int i = 0; i < n; i += kE4m3Group) {
        widen_natural(x + i, std::min(n - i, kE4m3Group), group);
        order_codes(group, out + i);
    }
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
void quantise_fp8(const Bf16 *x, int n, const uint8_t *scales, int exponent, float *out) {
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

// kCodes is the order that split_e4m3() gives weights.
void widen_fp8(const Bf16 *x, int n, const uint8_t *scales, int exponent, Order order, float *out) {
    if (kCodesStay || order == Order::kNatural) {
        quantise_fp8(x, n, scales, exponent, out);
        return pad(n, out);
    }
    HWY_ALIGN float group[kE4m3Group];
    for (int i = 0; i < n; i += kE4m3Group) {
        const int n_group = std::min(n - i, kE4m3Group);
        quantise_fp8(x + i, n_group, scales + i / 32, exponent, group);
        std::fill(group + n_group, group + kE4m3Group, 0.0f);
        order_codes(group, out + i);
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

// The upper halves of the lanes are the result.
HWY_INLINE VU rounded_bits(VF v) {
    const U u;
    const VU bits = hn::BitCast(u, v);
    const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
    const VU number = hn::Add(hn::Add(bits, hn::Set(u, 0x7fff)), odd);
    return hn::IfThenElse(hn::RebindMask(u, hn::Eq(v, v)), number, hn::Set(u, 0x7fc00000));
}

void round(const float *x, int64_t n, Bf16 *out) {
    const F f;
    const U16 u16;
    int64_t i = 0;
    for (; i + 2 * kN <= n; i += 2 * kN) {
        const VU low = rounded_bits(hn::LoadU(f, x + i)), high = rounded_bits(hn::LoadU(f, x + i + kN));
        hn::StoreU(hn::ConcatOdd(u16, hn::BitCast(u16, high), hn::BitCast(u16, low)), u16, &out[i].bits);
    }
    for (; i < n; ++i) out[i] = is_nan(x[i]) ? Bf16{0x7fc0} : to_bf16(x[i]);
}

constexpr ActivationKernels kTable = {widen, widen_fp8, fp8_scales, quantise_q8, round};

} // namespace

} // namespace HWY_NAMESPACE
} // namespace ds41::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
DS41_CPU_TABLE(ActivationKernels, activation_kernels)
#endif
