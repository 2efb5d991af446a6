// Quantised copies of rows as kernels write them, against lib/numeric.
#pragma once

#include "common/quantised.h"
#include "numeric/q8.h"
#include "numeric/rows.h"
#include "paged_step.h"
#include "support/compare.h"

#include <string>

namespace ds41::test {

class QuantisedCopy {
public:
    QuantisedCopy(kernels::QuantisedForm form, int n, int width)
        : form_(form), width_(static_cast<std::size_t>(width)),
          values_(form == kernels::QuantisedForm::kFp8 ? static_cast<std::size_t>(n) * width_ : 0),
          codes_(form == kernels::QuantisedForm::kQ8 ? static_cast<std::size_t>(n) * width_ : 0),
          scales_(codes_.size() / kQ8Block) {
        std::fill_n(codes_.data(), codes_.size(), kNoCode);
    }

    kernels::QuantisedRows rows() const {
        return {form_, static_cast<std::int32_t>(width_), values_.data(), codes_.data(), scales_.data()};
    }

    void check(int i, const std::vector<Bf16> &row) const {
        REQUIRE(row.size() == width_);
        const auto width = static_cast<int>(width_);
        if (form_ == kernels::QuantisedForm::kFp8) {
            std::vector<Bf16> expected;
            for (int b = 0; b < width / kWindowBlock; ++b) {
                std::uint8_t codes[kWindowBlock];
                const std::uint8_t scale = quantise_fp8_block(row.data() + b * kWindowBlock, codes);
                for (const std::uint8_t code : codes)
                    expected.push_back(scale == kUe8m0Nan ? Bf16{0x7fc0}
                                                          : to_bf16(e4m3_to_f32(code) * ue8m0_to_f32(scale)));
            }
            CHECK(same_bits(values_.get(begin(i), width_), expected));
            return;
        }
        std::vector<Q8Block> blocks(width_ / kQ8Block);
        quantise_q8(row.data(), width, blocks.data());
        std::vector<std::int8_t> codes;
        std::vector<float> scales;
        for (const Q8Block &block : blocks) {
            codes.insert(codes.end(), std::begin(block.codes), std::end(block.codes));
            scales.push_back(f16_to_f32(block.d));
        }
        CHECK(codes_.get(begin(i), width_) == codes);
        CHECK(same_bits(scales_.get(begin(i) / kQ8Block, width_ / kQ8Block), scales));
    }

    void check_untouched(int i) const {
        const auto untouched = [&](const auto &array, std::size_t divisor, auto value) {
            const auto row = array.get(begin(i) / divisor, array.size() > 0 ? width_ / divisor : 0);
            CHECK(std::all_of(row.begin(), row.end(),
                              [&](auto v) { return std::memcmp(&v, &value, sizeof value) == 0; }));
        };
        untouched(values_, 1, Bf16{0xffff});
        untouched(codes_, 1, kNoCode);
        untouched(scales_, kQ8Block, float_from_bits(0xffffffffu));
    }

private:
    static constexpr std::int8_t kNoCode = -128;

    std::size_t begin(int i) const { return static_cast<std::size_t>(i) * width_; }

    kernels::QuantisedForm form_;
    std::size_t width_;
    Array<Bf16> values_;
    Array<std::int8_t> codes_;
    Array<float> scales_;
};

inline std::string name_of(kernels::QuantisedForm form) {
    return form == kernels::QuantisedForm::kFp8 ? "fp8" : form == kernels::QuantisedForm::kQ8 ? "q8" : "none";
}

} // namespace ds41::test
