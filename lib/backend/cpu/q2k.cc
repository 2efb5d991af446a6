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
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace ds41::cpu {
namespace HWY_NAMESPACE {

namespace {

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

// Both halves of a block in one vector, the first one's eight lanes below. What a block needs of the activations is put
// into registers once for kRows rows. A product scale * dot is below 2^24 in float as well, so d8 times it is rounded
// as d8 times the integer; so are powers of four, which codes that are left in place bring in and d8 takes out.

constexpr int kRows = 8;       // rows that share the activations in registers
constexpr int kMostTokens = 4; // tokens that share the rows in the level 1 cache
static_assert(kN == 2 * 8);

// For each plane the scale of each lane.
struct ScaleOfLane {
    alignas(64) int32_t of[4][kN];
};
constexpr ScaleOfLane make_scale_of_lane() {
    ScaleOfLane s{};
    for (int plane = 0; plane < 4; ++plane)
        for (int lane = 0; lane < kN; ++lane) s.of[plane][lane] = lane / 8 * 8 + 2 * plane + lane % 8 / 4;
    return s;
}
constexpr ScaleOfLane kScaleOfLane = make_scale_of_lane();

template <class D, class T> HWY_INLINE hn::Vec<D> load_halves(D d, const T *first, const T *second) {
    const hn::Half<D> half;
    return hn::Combine(d, hn::LoadU(half, second), hn::LoadU(half, first));
}

// Four codes of a plane against four of the activations in each lane.
template <int kPlane> HWY_INLINE VI dot_codes(VU8 bytes, VI8 x) {
#if HWY_TARGET == HWY_AVX3_DL
    const VU8 codes = hn::And(bytes, hn::Set(U8(), static_cast<uint8_t>(3 << 2 * kPlane)));
    return VI{_mm512_dpbusd_epi32(_mm512_setzero_si512(), codes.raw, x.raw)};
#else
    const VU8 codes =
        hn::And(hn::BitCast(U8(), hn::ShiftRight<2 * kPlane>(hn::BitCast(U16(), bytes))), hn::Set(U8(), 3));
    return mul_pairs(mul_pairs(codes, x), hn::Set(I16(), 1));
#endif
}
constexpr float kPlaneUnit[4] = {1.0f, HWY_TARGET == HWY_AVX3_DL ? 1.0f / 4.0f : 1.0f,
                                 HWY_TARGET == HWY_AVX3_DL ? 1.0f / 16.0f : 1.0f,
                                 HWY_TARGET == HWY_AVX3_DL ? 1.0f / 64.0f : 1.0f};

// What block b of one token gives to every row.
struct Block {
    VI8 codes[4];
    VF d[4], sums[4];

    HWY_INLINE Block(const Q8View &x, int64_t b) {
        const F f;
        const hn::Half<F> half;
        for (int plane = 0; plane < 4; ++plane) {
            const int64_t first = 8 * b + plane, second = first + 4;
            codes[plane] = load_halves(I8(), x.codes + 32 * first, x.codes + 32 * second);
            sums[plane] = load_halves(f, x.sums + 8 * first, x.sums + 8 * second);
            d[plane] = hn::Combine(f, hn::Set(half, x.d[second] * kPlaneUnit[plane]),
                                   hn::Set(half, x.d[first] * kPlaneUnit[plane]));
        }
    }
};

template <int kPlane>
HWY_INLINE void add_plane(VU8 codes, VF scales, VF mins, const Block &x, VF &dots, VF &subtracted) {
    const F f;
    const auto lanes = hn::SetTableIndices(f, kScaleOfLane.of[kPlane]);
    const VF dot = hn::ConvertTo(f, dot_codes<kPlane>(codes, x.codes[kPlane]));
    const VF product = hn::Mul(x.d[kPlane], hn::Mul(dot, hn::TableLookupLanes(scales, lanes)));
    const VF min = hn::TableLookupLanes(mins, lanes);
    // d8 * (min * sum) has at most 24 bits: the product is exact in any order, fused or not.
    dots = kPlane == 0 ? product : hn::Add(dots, product);
    subtracted = kPlane == 0 ? hn::Mul(min, x.sums[kPlane]) : hn::MulAdd(min, x.sums[kPlane], subtracted);
}

// One block of one row: to be added to the running sums of its parity. d_dmin is its d, then its dmin.
HWY_INLINE VF multiply_block(const uint8_t *block, const float *d_dmin, const Block &x) {
    const F f;
    const I i32;
    const hn::FixedTag<uint8_t, 16> bytes_tag;
    const auto packed = hn::LoadU(bytes_tag, block);
    const auto low = hn::And(packed, hn::Set(bytes_tag, 15));
    const auto high =
        hn::And(hn::BitCast(bytes_tag, hn::ShiftRight<4>(hn::BitCast(hn::FixedTag<uint16_t, 8>(), packed))),
                hn::Set(bytes_tag, 15));
    const VF scales = hn::ConvertTo(f, hn::PromoteTo(i32, low)), mins = hn::ConvertTo(f, hn::PromoteTo(i32, high));
    const VU8 codes = hn::LoadU(U8(), block + 16);
    VF dots, subtracted;
    add_plane<0>(codes, scales, mins, x, dots, subtracted);
    add_plane<1>(codes, scales, mins, x, dots, subtracted);
    add_plane<2>(codes, scales, mins, x, dots, subtracted);
    add_plane<3>(codes, scales, mins, x, dots, subtracted);
    return hn::Sub(hn::Mul(hn::Set(f, d_dmin[0]), dots), hn::Mul(hn::Set(f, d_dmin[1]), subtracted));
}

constexpr int kScaleBlocks = 16; // whose d and dmin are converted together

// d and dmin, which end a block, of kNRows rows and n blocks, to [block][row][2] floats.
template <int kNRows>
HWY_INLINE void take_scales(const uint8_t *first, size_t row_bytes, int n, float (&out)[kScaleBlocks][kNRows][2]) {
    HWY_ALIGN uint16_t halves[kScaleBlocks * kNRows * 2];
    for (int i = 0; i < n; ++i)
        for (int r = 0; r < kNRows; ++r)
            std::memcpy(halves + (i * kNRows + r) * 2,
                        first + static_cast<size_t>(r) * row_bytes + i * kQ2KBytes + kQ2KBytes - 4, 4);
    const F f;
    const hn::Rebind<uint16_t, F> u16;
    const hn::Rebind<hwy::float16_t, F> f16;
    static_assert(kScaleBlocks * 2 % kN == 0);
    for (int i = 0; i < n * kNRows * 2; i += kN)
        hn::Store(hn::PromoteTo(f, hn::BitCast(f16, hn::Load(u16, halves + i))), f, &out[0][0][0] + i);
}

// The butterfly: parities, then halves, then lanes 4, 2 and 1 apart.
HWY_INLINE float add_lanes(const float *sums) {
    const F f;
    const VF parities[1] = {hn::Add(hn::Load(f, sums), hn::Load(f, sums + kN))};
    return sum_lanes(parities); // sixteen lanes become eight first: the halves
}

template <int kNRows> void multiply_rows(const DotArgs &a, int token, int n_tokens, int row) {
    const F f;
    HWY_ALIGN float sums[kMostTokens][kNRows][2][kN], scales[kScaleBlocks][kNRows][2];
    std::memset(sums, 0, sizeof sums[0] * static_cast<size_t>(n_tokens));
    const uint8_t *first = a.weights + static_cast<size_t>(row) * a.row_bytes;
    const int n_blocks = static_cast<int>(a.k / kQ2KBlock);
    for (int b = 0; b < n_blocks; ++b) {
        const uint8_t *blocks = first + b * kQ2KBytes;
        if (b % kScaleBlocks == 0)
            take_scales<kNRows>(blocks, a.row_bytes, std::min(kScaleBlocks, n_blocks - b), scales);
        for (int t = 0; t < n_tokens; ++t) {
            const Q8View of_token = {a.q8.codes + (token + t) * a.k, a.q8.d + (token + t) * (a.k / 32),
                                     a.q8.sums + (token + t) * (a.k / 4)};
            const Block x(of_token, b);
            for (int r = 0; r < kNRows; ++r) {
                const uint8_t *block = blocks + static_cast<size_t>(r) * a.row_bytes;
                if (t == 0) {
                    // The rows after these, which follow in memory.
                    __builtin_prefetch(block + kNRows * a.row_bytes, 0, 2);
                    __builtin_prefetch(block + kNRows * a.row_bytes + 64, 0, 2);
                }
                float *of_row = sums[t][r][b % 2];
                hn::Store(hn::Add(hn::Load(f, of_row), multiply_block(block, scales[b % kScaleBlocks][r], x)), f,
                          of_row);
            }
        }
    }
    for (int t = 0; t < n_tokens; ++t)
        for (int r = 0; r < kNRows; ++r) a.out[(token + t) * kChunkRows + row + r] = add_lanes(sums[t][r][0]);
}

void dot_q2_k(const DotArgs &a) {
    for (int t = 0; t < a.n_tokens; t += kMostTokens) {
        const int n_tokens = std::min(kMostTokens, a.n_tokens - t);
        int r = 0;
        for (; r + kRows <= a.n_rows; r += kRows) multiply_rows<kRows>(a, t, n_tokens, r);
        for (; r < a.n_rows; ++r) multiply_rows<1>(a, t, n_tokens, r);
    }
}

#else

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

#endif

constexpr Q2KKernels kTable = {dot_q2_k};

} // namespace

} // namespace HWY_NAMESPACE
} // namespace ds41::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
DS41_CPU_TABLE(Q2KKernels, q2_k_kernels)
#endif
