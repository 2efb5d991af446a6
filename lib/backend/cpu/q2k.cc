// The product of Q2_K rows with q8_1 activations: the arithmetic of numeric/q2_k.h bit for bit; products are fused only
// where they are exact. One 32-bit lane is one lane of ggml's decode kernel: four codes of a block's half against four
// of the activations, in integers, then scaled in f32, planes in ascending order. Sums of a lane over blocks, even and
// odd apart, lie in the order of that kernel's butterfly.
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

// For plane i of half h and each of 32 code bytes: the byte of the 16 scales that goes with it, for 16-bit lanes; and
// of the half's 8 mins, as bf16, those two that make an f32 lane. 0x80 gives zero. A table look-up works within 16
// bytes, which all hold the same.
struct Spread {
    alignas(32) uint8_t scale[8][32];
    alignas(32) uint8_t min[8][32];
};

constexpr Spread make_spread() {
    Spread s{};
    for (int plane = 0; plane < 8; ++plane) {
        for (int byte = 0; byte < 32; ++byte) {
            const int t = 2 * plane + byte / 16;
            s.scale[plane][byte] = byte % 2 == 0 ? static_cast<uint8_t>(t) : uint8_t{0x80};
            s.min[plane][byte] = byte % 4 >= 2 ? static_cast<uint8_t>(2 * (t % 8) + byte % 2) : uint8_t{0x80};
        }
    }
    return s;
}

// The two bytes of 0 to 15 as bf16.
alignas(16) constexpr uint8_t kBf16Low[16] = {0x00, 0x80, 0x00, 0x40, 0x80, 0xa0, 0xc0, 0xe0,
                                              0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70};
alignas(16) constexpr uint8_t kBf16High[16] = {0x00, 0x3f, 0x40, 0x40, 0x40, 0x40, 0x40, 0x40,
                                               0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41, 0x41};

constexpr Spread kSpread = make_spread();

// One block of one row against kTokens tokens: adds to `sums`, [kTokens][2 parities][2 halves][8].
template <int kTokens>
HWY_INLINE void add_block(const uint8_t *block, const Q8View &x, int64_t k, int64_t b, float *sums) {
    const F f;
    const U8 u8;
    const U16 u16;
    const hn::Rebind<int8_t, U8> i8;
    // d and dmin end the block: they are the last two of four f16 numbers.
    HWY_ALIGN float last[4];
    const hn::Rebind<hwy::float16_t, F4> f16;
    const auto halves =
        hn::LoadU(hn::Rebind<uint16_t, F4>(), reinterpret_cast<const uint16_t *>(block + kQ2KBytes - 8));
    hn::Store(hn::PromoteTo(F4(), hn::BitCast(f16, halves)), F4(), last);
    const VF d = hn::Set(f, last[2]), dmin = hn::Set(f, last[3]);
    const VU8 both = hn::LoadDup128(u8, block);
    const VU8 low = hn::And(both, hn::Set(u8, 15));
    const VU8 high = hn::And(hn::BitCast(u8, hn::ShiftRight<4>(hn::BitCast(u16, both))), hn::Set(u8, 15));
    const VU8 min_low = hn::TableLookupBytes(hn::LoadDup128(u8, kBf16Low), high);
    const VU8 min_high = hn::TableLookupBytes(hn::LoadDup128(u8, kBf16High), high);
    const VU8 half_mins[2] = {hn::InterleaveLower(u8, min_low, min_high), hn::InterleaveUpper(u8, min_low, min_high)};
    for (int half = 0; half < 2; ++half) {
        for (int part = 0; part < kParts; ++part) {
            const auto bytes = hn::BitCast(u16, hn::LoadU(u8, block + 16 + 32 * half + 4 * kN * part));
            VF dots[kTokens], mins[kTokens];
            for (int t = 0; t < kTokens; ++t) dots[t] = mins[t] = hn::Zero(f);
            for (int plane = 0; plane < 4; ++plane) {
                const int table = 4 * half + plane;
                const VU8 codes = hn::And(hn::BitCast(u8, hn::ShiftRightSame(bytes, 2 * plane)), hn::Set(u8, 3));
                const auto scale = hn::BitCast(
                    I16(), hn::TableLookupBytesOr0(low, hn::Load(u8, kSpread.scale[table] + 4 * kN * part)));
                const VF min = hn::BitCast(
                    f, hn::TableLookupBytesOr0(half_mins[half], hn::Load(u8, kSpread.min[table] + 4 * kN * part)));
                for (int t = 0; t < kTokens; ++t) {
                    const int64_t at = t * k + 256 * b + 32 * table;
                    const VI dot = mul_pairs(mul_pairs(codes, hn::LoadU(i8, x.codes + at + 4 * kN * part)), scale);
                    dots[t] = hn::Add(dots[t], hn::Mul(hn::Set(f, x.d[at / 32]), hn::ConvertTo(f, dot)));
                    // d8 * (min * sum) has at most 24 bits: the product is exact in any order, fused or not.
                    mins[t] = hn::MulAdd(min, hn::LoadU(f, x.sums + at / 4 + kN * part), mins[t]);
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
