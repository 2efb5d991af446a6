// The product of Q2_K rows with q8_1 activations: the arithmetic of numeric/q2_k.h bit for bit, without fused products.
// One 32-bit lane is one lane of ggml's decode kernel: four codes of a block's half against four of the activations, in
// integers, then scaled in f32, planes in ascending order. Sums of a lane over blocks, even and odd apart, lie in the
// order of that kernel's butterfly.
#include "backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/q2k.cc"
#include <hwy/foreach_target.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/simd.h"
#include "numeric/q2_k.h"

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace ds41::cpu {
namespace HWY_NAMESPACE {

namespace {

constexpr int kRows = 4; // rows that share the activations in the level 1 cache
constexpr int kMostTokens = 4;

// For plane i of half h: the byte of the 16 scales and mins that goes with each of 32 code bytes, for 16-bit lanes and
// for 32-bit lanes; 0x80 gives zero. A table look-up works within 16 bytes, which all hold the same.
struct Spread {
    alignas(32) uint8_t to16[8][32];
    alignas(32) uint8_t to32[8][32];
};

constexpr Spread make_spread() {
    Spread s{};
    for (int plane = 0; plane < 8; ++plane) {
        for (int byte = 0; byte < 32; ++byte) {
            const auto source = static_cast<uint8_t>(2 * plane + byte / 16);
            s.to16[plane][byte] = byte % 2 == 0 ? source : uint8_t{0x80};
            s.to32[plane][byte] = byte % 4 == 0 ? source : uint8_t{0x80};
        }
    }
    return s;
}

constexpr Spread kSpread = make_spread();

// One block of one row against kTokens tokens: adds to `sums`, [kTokens][2 parities][2 halves][8].
template <int kTokens>
HWY_INLINE void add_block(const uint8_t *block, const Q8View &x, int64_t k, int64_t b, float *sums) {
    const F f;
    const I i32;
    const U8 u8;
    const U16 u16;
    const hn::Rebind<int8_t, U8> i8;
    const Q2KScales scales = q2_k_scales(block);
    const VF d = hn::Set(f, scales.d), dmin = hn::Set(f, scales.dmin);
    const VU8 both = hn::LoadDup128(u8, block);
    const VU8 low = hn::And(both, hn::Set(u8, 15));
    const VU8 high = hn::And(hn::BitCast(u8, hn::ShiftRight<4>(hn::BitCast(u16, both))), hn::Set(u8, 15));
    for (int half = 0; half < 2; ++half) {
        for (int part = 0; part < kParts; ++part) {
            const auto bytes = hn::BitCast(u16, hn::LoadU(u8, block + 16 + 32 * half + 4 * kN * part));
            VF dots[kTokens], mins[kTokens];
            for (int t = 0; t < kTokens; ++t) dots[t] = mins[t] = hn::Zero(f);
            for (int plane = 0; plane < 4; ++plane) {
                const int table = 4 * half + plane;
                const VU8 codes = hn::And(hn::BitCast(u8, hn::ShiftRightSame(bytes, 2 * plane)), hn::Set(u8, 3));
                const auto scale =
                    hn::BitCast(I16(), hn::TableLookupBytesOr0(low, hn::Load(u8, kSpread.to16[table] + 4 * kN * part)));
                const VF min = hn::ConvertTo(
                    f,
                    hn::BitCast(i32, hn::TableLookupBytesOr0(high, hn::Load(u8, kSpread.to32[table] + 4 * kN * part))));
                for (int t = 0; t < kTokens; ++t) {
                    const int64_t at = t * k + 256 * b + 32 * table;
                    const VF d8 = hn::Set(f, x.d[at / 32]);
                    const VI dot = mul_pairs(mul_pairs(codes, hn::LoadU(i8, x.codes + at + 4 * kN * part)), scale);
                    dots[t] = hn::Add(dots[t], hn::Mul(d8, hn::ConvertTo(f, dot)));
                    const VF sum = hn::LoadU(f, x.sums + at / 4 + kN * part);
                    mins[t] = hn::Add(mins[t], hn::Mul(d8, hn::Mul(min, sum)));
                }
            }
            for (int t = 0; t < kTokens; ++t) {
                float *lanes = sums + ((t * 2 + b % 2) * 2 + half) * kLanes + kN * part;
                const VF value = hn::Sub(hn::Mul(d, dots[t]), hn::Mul(dmin, mins[t]));
                hn::Store(hn::Add(hn::Load(f, lanes), value), f, lanes);
            }
        }
    }
}

// The butterfly: parities, then halves, then lanes 4, 2 and 1 apart.
HWY_INLINE float add_lanes(const float *sums) {
    const F f;
    VF v[kParts];
    for (int part = 0; part < kParts; ++part) {
        const float *p = sums + kN * part;
        v[part] = hn::Add(hn::Add(hn::Load(f, p), hn::Load(f, p + 2 * kLanes)),
                          hn::Add(hn::Load(f, p + kLanes), hn::Load(f, p + 3 * kLanes)));
    }
    return sum_lanes(v);
}

template <int kTokens> void multiply_rows(const DotArgs &a, int token, int row) {
    HWY_ALIGN float sums[kRows][kTokens * 4 * kLanes] = {};
    const int n_rows = std::min(kRows, a.n_rows - row);
    const Q8View x = {a.q8.codes + token * a.k, a.q8.d + token * (a.k / 32), a.q8.sums + token * (a.k / 4)};
    const uint8_t *first = a.weights + static_cast<size_t>(row) * a.row_bytes;
    for (int64_t b = 0; b < a.k / kQ2KBlock; ++b) {
        for (int r = 0; r < n_rows; ++r) {
            const uint8_t *block = first + static_cast<size_t>(r) * a.row_bytes + b * kQ2KBytes;
            if (kTokens == 1) {
                // The rows after these, which follow in memory.
                __builtin_prefetch(block + kRows * a.row_bytes, 0, 2);
                __builtin_prefetch(block + kRows * a.row_bytes + 64, 0, 2);
            }
            add_block<kTokens>(block, x, a.k, b, sums[r]);
        }
    }
    for (int r = 0; r < n_rows; ++r)
        for (int t = 0; t < kTokens; ++t)
            a.out[(token + t) * kChunkRows + row + r] = add_lanes(sums[r] + t * 4 * kLanes);
}

void dot_q2_k(const DotArgs &a) {
    int t = 0;
    for (; t + kMostTokens <= a.n_tokens; t += kMostTokens)
        for (int r = 0; r < a.n_rows; r += kRows) multiply_rows<kMostTokens>(a, t, r);
    for (; t < a.n_tokens; ++t)
        for (int r = 0; r < a.n_rows; r += kRows) multiply_rows<1>(a, t, r);
}

constexpr Q2KKernels kTable = {dot_q2_k};

} // namespace

} // namespace HWY_NAMESPACE
} // namespace ds41::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
DS41_CPU_TABLE(Q2KKernels, q2_k_kernels)
#endif
