// Attention's inner loops: packed rows to floats, scores of four heads against a few rows, softmax, weighted sums.
// Numerics: all f32. A score is one sum as simd.h orders it; exponentials are simd.h's; a denominator is summed in
// eight lanes; a weighted sum goes over rows one by one.
#include "backend/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attend_rows.cc"
#include <hwy/foreach_target.h>

#include "backend/cpu/kernels.h"
#include "backend/cpu/simd.h"
#include "numeric/rows.h"

#include <algorithm>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace ds41::cpu {
namespace HWY_NAMESPACE {

namespace {

constexpr int kHeads = 4;                        // heads that share each load of a row
constexpr int kScoreRows = kLanes == 16 ? 4 : 3; // rows that share each load of a query: sums fill the registers

// e4m3 codes as f16 bits are the values times 2^-8. A code of NaN comes with a scale of NaN.
void unpack_window(const uint8_t *row, int n, float *out) {
    const F f;
    const U16 u16;
    const hn::RebindToSigned<U16> i16;
    const hn::Half<U16> h16;
    const hn::Rebind<uint8_t, U16> u8;
    const hn::Rebind<hwy::float16_t, F> f16;
    const VF up = hn::Set(f, 256.0f);
    const uint8_t *scales = row + n;
    for (int b = 0; b < n / kWindowBlock; ++b) {
        const VF scale = hn::Set(f, ue8m0_to_f32(scales[b]));
        for (int i = b * kWindowBlock; i < (b + 1) * kWindowBlock; i += 2 * kN) {
            const auto code = hn::PromoteTo(u16, hn::LoadU(u8, row + i));
            const auto shifted = hn::ShiftRight<1>(hn::BitCast(i16, hn::ShiftLeft<8>(code)));
            const auto half = hn::And(hn::BitCast(u16, shifted), hn::Set(u16, 0xbf80));
            const VF low = hn::PromoteTo(f, hn::BitCast(f16, hn::LowerHalf(h16, half)));
            const VF high = hn::PromoteTo(f, hn::BitCast(f16, hn::UpperHalf(h16, half)));
            hn::Store(hn::Mul(hn::Mul(low, up), scale), f, out + i);
            hn::Store(hn::Mul(hn::Mul(high, up), scale), f, out + i + kN);
        }
    }
}

// Twice the e2m1 value of each code.
alignas(16) constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void unpack_compressed(const uint8_t *row, int n, float *out) {
    const F f;
    const hn::CappedTag<uint8_t, 16> u8;
    const hn::CappedTag<uint8_t, 8> u8_half;
    const hn::CappedTag<int8_t, 16> i8;
    const hn::Rebind<int8_t, F> i8_lanes;
    const I i32;
    const auto table = hn::BitCast(u8, hn::Load(i8, kTwice));
    const uint8_t *scales = row + n / 2;
    for (int b = 0; b < n / kCompressedBlock; ++b) {
        const VF scale = hn::Set(f, 0.5f * e4m3_to_f32(scales[b]));
        const auto packed = hn::ZeroExtendVector(u8, hn::LoadU(u8_half, row + 8 * b));
        const auto low = hn::And(packed, hn::Set(u8, 15));
        const hn::CappedTag<uint16_t, 8> u16;
        const auto high = hn::And(hn::BitCast(u8, hn::ShiftRight<4>(hn::BitCast(u16, packed))), hn::Set(u8, 15));
        const auto codes = hn::TableLookupBytes(table, hn::InterleaveLower(u8, low, high));
        HWY_ALIGN int8_t values[16];
        hn::Store(hn::BitCast(i8, codes), i8, values);
        for (int i = 0; i < 16; i += kN) {
            const VI wide = hn::PromoteTo(i32, hn::Load(i8_lanes, values + i));
            hn::Store(hn::Mul(hn::ConvertTo(f, wide), scale), f, out + 16 * b + i);
        }
    }
}

template <int kRows>
HWY_INLINE void scores_of(const float *q, const float *rows, int64_t stride_rows, int n, float *scores,
                          int64_t stride_scores) {
    const F f;
    VF acc[kRows][kHeads][kParts];
    for (int r = 0; r < kRows; ++r)
        for (int h = 0; h < kHeads; ++h)
            for (int part = 0; part < kParts; ++part) acc[r][h][part] = hn::Zero(f);
    for (int part = 0; part < kParts; ++part) {
        for (int i = kN * part; i < n; i += kLanes) {
            VF x[kRows];
            for (int r = 0; r < kRows; ++r) x[r] = hn::LoadU(f, rows + r * stride_rows + i);
            for (int h = 0; h < kHeads; ++h) {
                const VF qs = hn::LoadU(f, q + h * n + i);
                for (int r = 0; r < kRows; ++r) acc[r][h][part] = hn::MulAdd(qs, x[r], acc[r][h][part]);
            }
        }
    }
    for (int r = 0; r < kRows; ++r) {
        HWY_ALIGN float four[4];
        hn::Store(sum_lanes_of_4(acc[r][0], acc[r][1], acc[r][2], acc[r][3]), F4(), four);
        for (int h = 0; h < kHeads; ++h) scores[h * stride_scores + r] = four[h];
    }
}

void scores(const float *q, const float *rows, int64_t stride_rows, int n_rows, int head_dim, float *out,
            int64_t stride_scores) {
    int r = 0;
    for (; r + kScoreRows <= n_rows; r += kScoreRows)
        scores_of<kScoreRows>(q, rows + r * stride_rows, stride_rows, head_dim, out + r, stride_scores);
    for (; r < n_rows; ++r) scores_of<1>(q, rows + r * stride_rows, stride_rows, head_dim, out + r, stride_scores);
}

float softmax(float *scores, int n, float scale, float sink) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const F f;
    if (n == 0 || !(sink < kInfinity)) {
        std::fill(scores, scores + n, 0.0f);
        return 0.0f;
    }
    const int padded = (n + kLanes - 1) / kLanes * kLanes;
    for (int i = n; i < padded; ++i) scores[i] = -kInfinity;
    VF largest = hn::Set(f, sink);
    for (int i = 0; i < padded; i += kN) {
        // The scale is positive: padding stays at -inf.
        const VF score = hn::Mul(hn::LoadU(f, scores + i), hn::Set(f, scale));
        hn::StoreU(score, f, scores + i);
        largest = hn::Max(largest, score); // which of a NaN and a number it is does not matter: the sum is NaN
    }
    HWY_ALIGN float lanes[kN];
    hn::Store(largest, f, lanes);
    const float max = *std::max_element(lanes, lanes + kN);
    VF total[kParts];
    for (int part = 0; part < kParts; ++part) total[part] = hn::Zero(f);
    for (int i = 0; i < padded; i += kLanes) {
        for (int part = 0; part < kParts; ++part) {
            float *at = scores + i + kN * part;
            const VF weight = exp_lanes(hn::Sub(hn::LoadU(f, at), hn::Set(f, max)));
            hn::StoreU(weight, f, at);
            total[part] = hn::Add(total[part], weight);
        }
    }
    const float of_sink = hn::GetLane(exp_lanes(hn::Set(f, sink - max)));
    return (sink > -kInfinity ? of_sink : 0.0f) + sum_lanes(total);
}

template <int kVectors>
HWY_INLINE void weigh_columns(const float *weights, int64_t stride_weights, const float *rows, int64_t stride_rows,
                              int n_rows, int head_dim, float *sums) {
    const F f;
    VF acc[kHeads][kVectors];
    for (int h = 0; h < kHeads; ++h)
        for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::LoadU(f, sums + h * head_dim + v * kN);
    for (int r = 0; r < n_rows; ++r) {
        VF row[kVectors];
        for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(f, rows + r * stride_rows + v * kN);
        for (int h = 0; h < kHeads; ++h) {
            const VF weight = hn::Set(f, weights[h * stride_weights + r]);
            for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::MulAdd(weight, row[v], acc[h][v]);
        }
    }
    for (int h = 0; h < kHeads; ++h)
        for (int v = 0; v < kVectors; ++v) hn::StoreU(acc[h][v], f, sums + h * head_dim + v * kN);
}

void weigh(const float *weights, int64_t stride_weights, const float *rows, int64_t stride_rows, int n_rows,
           int head_dim, float *sums) {
    for (int e = 0; e < head_dim; e += 2 * kN) // head_dim is a multiple of 32
        weigh_columns<2>(weights, stride_weights, rows + e, stride_rows, n_rows, head_dim, sums + e);
}

void finish(const float *sums, float denominator, int head_dim, Bf16 *o) {
    const VF d = hn::Set(F(), denominator);
    const VF zero = hn::Zero(F());
    for (int e = 0; e < head_dim; e += kN)
        store_bf16(denominator != 0.0f ? hn::Div(hn::LoadU(F(), sums + e), d) : zero, &o[e].bits);
}

void rotate(Bf16 *pairs, int n_pairs, const float *cosines, const float *sines) {
    const F f;
    const U u;
    const VU upper = hn::Set(u, 0xffff0000u);
    int k = 0;
    for (; k + kN <= n_pairs; k += kN) {
        const auto bytes = reinterpret_cast<uint8_t *>(pairs + 2 * k);
        const VU both = hn::BitCast(u, hn::LoadU(U8(), bytes));
        const VF re = hn::BitCast(f, hn::ShiftLeft<16>(both)), im = hn::BitCast(f, hn::And(both, upper));
        const VF cosine = hn::LoadU(f, cosines + k), sine = hn::LoadU(f, sines + k);
        const VF re_turned = hn::Sub(hn::Mul(re, cosine), hn::Mul(im, sine));
        const VF im_turned = hn::Add(hn::Mul(re, sine), hn::Mul(im, cosine));
        const VU low = hn::ShiftRight<16>(bf16_bits(re_turned));
        hn::StoreU(hn::BitCast(U8(), hn::Or(low, hn::And(bf16_bits(im_turned), upper))), U8(), bytes);
    }
    for (; k < n_pairs; ++k) {
        const float re = to_f32(pairs[2 * k]), im = to_f32(pairs[2 * k + 1]);
        pairs[2 * k] = to_bf16(re * cosines[k] - im * sines[k]);
        pairs[2 * k + 1] = to_bf16(re * sines[k] + im * cosines[k]);
    }
}

void exp(const float *x, int n, float *out) {
    for (int i = 0; i < n; i += kN) hn::StoreU(exp_lanes(hn::LoadU(F(), x + i)), F(), out + i);
}

constexpr AttendKernels kTable = {unpack_window, unpack_compressed, scores, softmax, weigh, finish, rotate, exp};

} // namespace

} // namespace HWY_NAMESPACE
} // namespace ds41::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
DS41_CPU_TABLE(AttendKernels, attend_kernels)
#endif
