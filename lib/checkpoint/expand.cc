#include "checkpoint/expand.h"

#include "numeric/bf16.h"
#include "numeric/fp8_linear.h"

#include <cassert>
#include <cstring>

namespace ds41 {

namespace {

bool is_infinite(float value) {
    return (float_bits(value) & ~kSignBit) == kInfBits;
}

} // namespace

std::uint64_t file_row_bytes(const GgufType &type, std::int64_t cols) {
    return static_cast<std::uint64_t>(cols) / type.block_values * type.block_bytes;
}

RowExpander::RowExpander(const GgufType &type, std::int64_t cols, const std::uint8_t *scales, ds41_dtype target)
    : type_(type), cols_(cols), scales_(scales), target_(target) {
    assert(target == DS41_DTYPE_F32 || target == DS41_DTYPE_BF16);
    assert((&type == &kFp8Type) == (scales != nullptr));
}

std::uint64_t RowExpander::expand(std::int64_t first_row, std::int64_t n_rows, const std::uint8_t *source,
                                  std::uint8_t *target, std::vector<float> &values) const {
    const auto n = static_cast<std::size_t>(cols_);
    values.resize(n);
    float decoded[256]; // of e4m3 codes: looked up, the definition costs five times as much as all the rest
    if (scales_)
        for (int code = 0; code < 256; ++code) decoded[code] = e4m3_to_f32(static_cast<std::uint8_t>(code));
    const std::uint64_t source_bytes = file_row_bytes(type_, cols_);
    std::uint64_t n_rounded = 0;
    for (std::int64_t row = first_row; row < first_row + n_rows; ++row, source += source_bytes) {
        if (scales_) {
            const std::uint8_t *scales = scales_ + row / kFp8WeightBlock * (cols_ / kFp8WeightBlock);
            for (std::size_t i = 0; i < n; i += kFp8WeightBlock) {
                const float scale = ue8m0_to_f32(scales[i / kFp8WeightBlock]);
                for (std::size_t j = i; j < i + kFp8WeightBlock; ++j) values[j] = decoded[source[j]] * scale;
            }
        } else {
            type_.expand(source, cols_ / type_.block_values, values.data());
        }
        if (target_ == DS41_DTYPE_F32) {
            std::memcpy(target, values.data(), n * sizeof(float));
            target += n * sizeof(float);
            continue;
        }
        for (std::size_t i = 0; i < n; ++i, target += sizeof(Bf16)) {
            const Bf16 rounded = to_bf16(values[i]);
            // fp8 has no infinity: one that is there has overflown already, at the top of the range.
            n_rounded += (to_f32(rounded) != values[i] && !is_nan(values[i])) || (scales_ && is_infinite(values[i]));
            std::memcpy(target, &rounded, sizeof rounded);
        }
    }
    return n_rounded;
}

} // namespace ds41
