// Scores of index keys: bf16( sum_h bf16( relu(bf16(q_h . k)) * w_h ) ), heads in ascending order in f32.
// Numerics: twice an e2m1 value is a small integer, so a block of 32 products is summed in integers, exactly; blocks
// are scaled by powers of two and added in ascending order, which f32 does exactly but for extreme scales. Keys are
// taken 12 up to be unsigned, as the byte product wants them; what that adds is known beforehand and taken away. Keys
// stand in the lanes, so nothing is summed across them.
#include "backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/score.cc"
#include <hwy/foreach_target.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/simd.h"
#include "numeric/rows.h"

#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace ds41::cpu {
namespace HWY_NAMESPACE {

namespace {

constexpr int kOffset = 12;
constexpr int kQuads =
    kIndexKeyBlock / 4; // of a block; a packed word of 8 codes gives its even ones, then its odd ones
constexpr int kWords = kIndexKeyBlock / 8;
constexpr int kVectors = kKeyTile / kN;  // of kKeyTile lanes
constexpr int kHeads = kN == 16 ? 8 : 2; // that share each load of a key

alignas(16) constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
alignas(16) constexpr uint8_t kTwiceUp[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

void unpack_query(const uint8_t *row, int n, int8_t *codes, int32_t *bias, float *scales) {
    for (int b = 0; b < n / kIndexKeyBlock; ++b) {
        int32_t sum = 0;
        for (int word = 0; word < kWords; ++word) {
            const uint8_t *packed = row + b * (kIndexKeyBlock / 2) + 4 * word;
            int8_t *quads = codes + b * kIndexKeyBlock + 8 * word;
            for (int i = 0; i < 4; ++i) {
                quads[i] = kTwice[packed[i] & 15];
                quads[4 + i] = kTwice[packed[i] >> 4];
                sum += quads[i] + quads[4 + i];
            }
        }
        bias[b] = kOffset * sum;
        scales[b] = 0.25f * ue8m0_to_f32(row[n / 2 + b]);
    }
}

// Four words at `at` of every fourth row, one after the other.
template <class D> HWY_INLINE hn::Vec<D> load_words(D d, const uint8_t *const *rows, int at) {
    if constexpr (hn::MaxLanes(D()) == 4) {
        return hn::BitCast(d, hn::LoadU(hn::CappedTag<uint8_t, 16>(), rows[0] + at));
    } else {
        const hn::Half<D> half;
        return hn::Combine(d, load_words(half, rows + hn::MaxLanes(half), at), load_words(half, rows, at));
    }
}

// A word of every key: its even codes, then its odd ones, as bytes.
HWY_INLINE void split_word(VU word, uint8_t *even) {
    const U8 u8;
    const auto table = hn::LoadDup128(u8, kTwiceUp);
    const VU8 packed = hn::BitCast(u8, word);
    const VU8 low = hn::And(packed, hn::Set(u8, 15));
    const VU8 high = hn::And(hn::BitCast(u8, hn::ShiftRight<4>(hn::BitCast(U16(), packed))), hn::Set(u8, 15));
    hn::Store(hn::TableLookupBytes(table, low), u8, even);
    hn::Store(hn::TableLookupBytes(table, high), u8, even + 4 * kKeyTile);
}

// As ue8m0_to_f32: the exponent, but for the least, a subnormal number, and for NaN.
HWY_INLINE VF scale_of(const uint8_t *codes) {
    const U u;
    const VU code = hn::PromoteTo(u, hn::LoadU(hn::Rebind<uint8_t, U>(), codes));
    const VU bits = hn::IfThenElse(hn::Eq(code, hn::Zero(u)), hn::Set(u, 0x400000), hn::ShiftLeft<23>(code));
    return hn::BitCast(F(), hn::IfThenElse(hn::Eq(code, hn::Set(u, kUe8m0Nan)), hn::Set(u, 0x7fc00000u), bits));
}

void unpack_keys(const uint8_t *const *rows, int n, uint8_t *tile, float *scales) {
    const U u;
    const hn::RepartitionToWide<U> u64;
    for (int word = 0; word < n / 8; word += 4) {
        for (int v = 0; v < kVectors; ++v) {
            const uint8_t *const *keys = rows + kN * v;
            const VU a = load_words(u, keys, 4 * word), b = load_words(u, keys + 1, 4 * word);
            const VU c = load_words(u, keys + 2, 4 * word), d = load_words(u, keys + 3, 4 * word);
            const auto ab01 = hn::BitCast(u64, hn::InterleaveLower(u, a, b));
            const auto ab23 = hn::BitCast(u64, hn::InterleaveUpper(u, a, b));
            const auto cd01 = hn::BitCast(u64, hn::InterleaveLower(u, c, d));
            const auto cd23 = hn::BitCast(u64, hn::InterleaveUpper(u, c, d));
            uint8_t *even = tile + 2 * word * (4 * kKeyTile) + 4 * kN * v;
            constexpr int kNext = 2 * 4 * kKeyTile;
            split_word(hn::BitCast(u, hn::InterleaveLower(u64, ab01, cd01)), even);
            split_word(hn::BitCast(u, hn::InterleaveUpper(u64, ab01, cd01)), even + kNext);
            split_word(hn::BitCast(u, hn::InterleaveLower(u64, ab23, cd23)), even + 2 * kNext);
            split_word(hn::BitCast(u, hn::InterleaveUpper(u64, ab23, cd23)), even + 3 * kNext);
        }
    }
    for (int b = 0; b < n / kIndexKeyBlock; ++b) {
        uint8_t codes[kKeyTile];
        for (int key = 0; key < kKeyTile; ++key) codes[key] = rows[key][n / 2 + b];
        for (int v = 0; v < kVectors; ++v) hn::Store(scale_of(codes + kN * v), F(), scales + b * kKeyTile + kN * v);
    }
}

// Running sums of products of four bytes, for each lane.
#if HWY_TARGET == HWY_AVX3_DL
using QuadsTag = I;
using Quads = VI;
HWY_INLINE Quads add_quads(Quads sum, VU8 k, VI8 q) {
    return VI{_mm512_dpbusd_epi32(sum.raw, k.raw, q.raw)};
}
HWY_INLINE VI sum_quads(Quads sum) {
    return sum;
}
#else
using QuadsTag = I16;
using Quads = VI16;
HWY_INLINE Quads add_quads(Quads sum, VU8 k, VI8 q) {
    return hn::Add(sum, mul_pairs(k, q)); // a pair is at most 2 * 24 * 12, and eight of them 4608
}
HWY_INLINE VI sum_quads(Quads sum) {
    return mul_pairs(sum, hn::Set(I16(), 1));
}
#endif

// kAtOnce heads against all vectors of the tile: q . k of each.
template <int kAtOnce>
HWY_INLINE void multiply(const IndexQuery &query, int h, int n, const uint8_t *tile, const float *scales,
                         VF (&dots)[kAtOnce][kVectors]) {
    const F f;
    const I i32;
    const U8 u8;
    const I8 i8;
    const int n_blocks = n / kIndexKeyBlock;
    for (int head = 0; head < kAtOnce; ++head)
        for (int v = 0; v < kVectors; ++v) dots[head][v] = hn::Zero(f);
    for (int b = 0; b < n_blocks; ++b) {
        Quads quads[kAtOnce][kVectors];
        for (int head = 0; head < kAtOnce; ++head)
            for (int v = 0; v < kVectors; ++v) quads[head][v] = hn::Zero(QuadsTag());
        DS41_CPU_ROLLED
        for (int quad = 0; quad < kQuads; ++quad) {
            VI8 q[kAtOnce];
            for (int head = 0; head < kAtOnce; ++head) {
                int32_t four;
                std::memcpy(&four, query.codes + (h + head) * n + b * kIndexKeyBlock + 4 * quad, 4);
                q[head] = hn::BitCast(i8, hn::Set(i32, four));
            }
            for (int v = 0; v < kVectors; ++v) {
                const VU8 k = hn::Load(u8, tile + ((b * kQuads + quad) * kKeyTile + kN * v) * 4);
                for (int head = 0; head < kAtOnce; ++head) quads[head][v] = add_quads(quads[head][v], k, q[head]);
            }
        }
        for (int head = 0; head < kAtOnce; ++head) {
            const int at = (h + head) * n_blocks + b;
            const VI bias = hn::Set(i32, query.bias[at]);
            const VF scale = hn::Set(f, query.scales[at]);
            for (int v = 0; v < kVectors; ++v) {
                const VI sum = hn::Sub(sum_quads(quads[head][v]), bias);
                const VF scaled = hn::Mul(hn::ConvertTo(f, sum), scale);
                dots[head][v] = hn::MulAdd(scaled, hn::Load(f, scales + b * kKeyTile + kN * v), dots[head][v]);
            }
        }
    }
}

// NaN here has nothing in its lower half: it comes from scales and weights.
HWY_INLINE VF add_head(VF sum, VF dot, float weight) {
    const F f;
    const VF rounded = round_bf16_lanes(dot);
    const VF positive = hn::IfThenZeroElse(hn::Lt(rounded, hn::Zero(f)), rounded); // a NaN stays
    return hn::Add(sum, round_bf16_lanes(hn::Mul(positive, hn::Set(f, weight))));
}

void score(const IndexQuery &query, int n_heads, int n, const uint8_t *tile, const float *scales, uint16_t *out) {
    const F f;
    const U u;
    VF sums[kVectors];
    for (int v = 0; v < kVectors; ++v) sums[v] = hn::Zero(f);
    int h = 0;
    for (; h + kHeads <= n_heads; h += kHeads) {
        VF dots[kHeads][kVectors];
        multiply<kHeads>(query, h, n, tile, scales, dots);
        for (int head = 0; head < kHeads; ++head)
            for (int v = 0; v < kVectors; ++v) sums[v] = add_head(sums[v], dots[head][v], query.weights[h + head]);
    }
    for (; h < n_heads; ++h) {
        VF dots[1][kVectors];
        multiply<1>(query, h, n, tile, scales, dots);
        for (int v = 0; v < kVectors; ++v) sums[v] = add_head(sums[v], dots[0][v], query.weights[h]);
    }
    for (int v = 0; v < kVectors; ++v) {
        const VU bits = hn::BitCast(u, round_bf16_lanes(sums[v]));
        const VU marked = hn::Or(bits, hn::Set(u, kSignBit));
        const VU result = hn::IfThenElse(hn::RebindMask(u, hn::Eq(sums[v], sums[v])), bits, marked);
        HWY_ALIGN uint32_t lanes[kN];
        hn::Store(result, u, lanes);
        for (int i = 0; i < kN; ++i) out[kN * v + i] = static_cast<uint16_t>(lanes[i] >> 16);
    }
}

constexpr ScoreKernels kTable = {unpack_query, unpack_keys, score};

} // namespace

} // namespace HWY_NAMESPACE
} // namespace ds41::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
DS41_CPU_TABLE(ScoreKernels, score_kernels)
#endif
