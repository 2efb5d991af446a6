// The quantisers of activations, bit for bit those of lib/numeric, whoever holds a block's values: one thread, or
// neighbouring lanes of a warp.
#pragma once

#include "common/formats.cuh"
#include "common/quantised.h"
#include "numeric/f16.h"

#include <cmath>

namespace ds41::kernels {

constexpr int kQuantisedBlock = 32;
static_assert(kQuantisedBlock == kWindowBlock);

// What a block's scale depends on.
struct BlockRange {
    float amax = 0.0f;
    int finite = 1; // whether all values are

    __device__ __forceinline__ void add(float value) {
        finite &= is_finite(value);
        amax = fmaxf(amax, fabsf(value));
    }
    // Of the block that kLanes neighbouring lanes have together. All lanes of the warp come.
    template <int kLanes> __device__ __forceinline__ void join_lanes() {
        SIMT_UNROLL
        for (int lanes = 1; lanes < kLanes; lanes *= 2) {
            amax = fmaxf(amax, __shfl_xor_sync(simt::kFullMask, amax, lanes));
            finite &= __shfl_xor_sync(simt::kFullMask, finite, lanes);
        }
    }
};

// What e4m3 codes with a power-of-two scale leave of a value. A block that holds a NaN or an infinity becomes NaN
// throughout.
class Fp8Quantiser {
public:
    __device__ __forceinline__ explicit Fp8Quantiser(const BlockRange &range)
        : scale_(pow2_ceil(fmaxf(range.amax, kFp8AmaxFloor) / kE4m3Max)), finite_(range.finite != 0) {}

    __device__ __forceinline__ Bf16 value(float x) const {
        return finite_ ? to_bf16(e4m3_to_f32(f32_to_e4m3(x / scale_)) * scale_) : Bf16{0x7fc0};
    }

private:
    float scale_;
    bool finite_;
};

// q8_1: codes are made with the unrounded scale, to nearest, halves away from zero. A block that holds a NaN or an
// infinity has the scale NaN.
class Q8Quantiser {
public:
    __device__ __forceinline__ explicit Q8Quantiser(const BlockRange &range)
        : d_(range.amax / 127.0f), finite_(range.finite != 0) {}

    __device__ __forceinline__ std::int8_t code(float x) const {
        return finite_ && d_ > 0.0f ? static_cast<std::int8_t>(roundf(x / d_)) : std::int8_t{0};
    }
    __device__ __forceinline__ float scale() const {
        return finite_ ? f16_to_f32(f32_to_f16(d_)) : float_from_bits(0x7fc00000u);
    }

private:
    float d_;
    bool finite_;
};

namespace detail {

// kValues values from `column` on of a row, at once. The first ones of a block bring its scale along.
template <int kValues, typename Value>
__device__ __forceinline__ void store_quantised(const QuantisedRows &to, std::int64_t row, int column, Value value,
                                                const BlockRange &range) {
    static_assert(kValues == 1 || kValues == 4 || kValues == 8);
    const std::int64_t at = row * to.width + column;
    if (to.form == QuantisedForm::kFp8) {
        const Fp8Quantiser quantiser(range);
        Bf16 *const out = to.values + at;
        if constexpr (kValues == 1) {
            simt::store(out, quantiser.value(value(0)));
        } else {
            std::uint32_t words[kValues / 2];
            SIMT_UNROLL
            for (int w = 0; w < kValues / 2; ++w)
                words[w] = quantiser.value(value(2 * w)).bits |
                           static_cast<std::uint32_t>(quantiser.value(value(2 * w + 1)).bits) << 16;
            if constexpr (kValues == 4)
                simt::store(reinterpret_cast<uint2 *>(out), uint2{words[0], words[1]});
            else
                simt::store(reinterpret_cast<uint4 *>(out), uint4{words[0], words[1], words[2], words[3]});
        }
    } else if (to.form == QuantisedForm::kQ8) {
        const Q8Quantiser quantiser(range);
        std::int8_t *const out = to.codes + at;
        if constexpr (kValues == 1) {
            simt::store(out, quantiser.code(value(0)));
        } else {
            std::uint32_t words[kValues / 4] = {};
            SIMT_UNROLL
            for (int i = 0; i < kValues; ++i)
                words[i / 4] |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(quantiser.code(value(i))))
                                << (i % 4 * 8);
            if constexpr (kValues == 4)
                simt::store(reinterpret_cast<std::uint32_t *>(out), words[0]);
            else
                simt::store(reinterpret_cast<uint2 *>(out), uint2{words[0], words[1]});
        }
        if (column % kQuantisedBlock == 0) simt::store(to.scales + at / kQuantisedBlock, quantiser.scale());
    }
}

} // namespace detail

// Block `block` of a row, by one thread: value(i) is the block's value i.
template <typename Value>
__device__ __forceinline__ void quantise_block(const QuantisedRows &to, std::int64_t row, int block, Value value) {
    BlockRange range;
    for (int i = 0; i < kQuantisedBlock; ++i) range.add(value(i));
    for (int first = 0; first < kQuantisedBlock; first += 8)
        detail::store_quantised<8>(
            to, row, block * kQuantisedBlock + first, [&](int i) { return value(first + i); }, range);
}

// Values from `column` on, a multiple of kValues: 32 / kValues neighbouring lanes have a block, in order. All lanes of
// the warp come, and those of a block are all `there` or not; the others write nothing.
template <int kValues>
__device__ __forceinline__ void quantise_lanes(const QuantisedRows &to, std::int64_t row, int column,
                                               const float (&values)[kValues], bool there) {
    BlockRange range;
    SIMT_UNROLL
    for (int i = 0; i < kValues; ++i) range.add(values[i]);
    range.join_lanes<kQuantisedBlock / kValues>();
    if (there)
        detail::store_quantised<kValues>(
            to, row, column, [&](int i) { return values[i]; }, range);
}

} // namespace ds41::kernels
