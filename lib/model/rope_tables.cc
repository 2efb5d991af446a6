// Source: precompute_freqs_cis of the reference's model.py.
#include "model/rope_tables.h"

#include "numeric/bits.h"

#include <algorithm>
#include <cmath>

namespace ds41 {

RopeTable RopeTable::plain(int rope_dim, float theta) {
    RopeTable table;
    table.frequencies_.resize(static_cast<std::size_t>(rope_dim / 2));
    for (std::size_t k = 0; k < table.frequencies_.size(); ++k) {
        const float exponent = static_cast<float>(2 * k) / static_cast<float>(rope_dim);
        table.frequencies_[k] = 1.0f / static_cast<float>(std::pow(double{theta}, double{exponent}));
    }
    return table;
}

RopeTable RopeTable::yarn(int rope_dim, float theta, std::int64_t original_seq_len, float factor, float beta_fast,
                          float beta_slow) {
    RopeTable table = plain(rope_dim, theta);
    if (original_seq_len == 0) return table;

    // The dimension at which a frequency makes `rotations` turns over the original length.
    const auto correction = [&](float rotations) {
        return rope_dim * std::log(static_cast<double>(original_seq_len) / (double{rotations} * 2.0 * M_PI)) /
               (2.0 * std::log(double{theta}));
    };
    // The upper bound is rope_dim - 1, not half of it, although only half as many frequencies exist.
    const float low = static_cast<float>(std::max(std::floor(correction(beta_fast)), 0.0));
    const float high =
        static_cast<float>(std::min(std::ceil(correction(beta_slow)), static_cast<double>(rope_dim - 1)));
    const float width = std::max(high - low, 0.001f); // no division by zero
    for (std::size_t k = 0; k < table.frequencies_.size(); ++k) {
        const float ramp = std::clamp((static_cast<float>(k) - low) / width, 0.0f, 1.0f);
        const float smooth = 1.0f - ramp;
        float &frequency = table.frequencies_[k];
        frequency = frequency / factor * (1.0f - smooth) + frequency * smooth;
    }
    return table;
}

bool RopeTable::finite_up_to(std::int64_t max_seq_len) const {
    return std::all_of(frequencies_.begin(), frequencies_.end(),
                       [&](float frequency) { return is_finite(static_cast<float>(max_seq_len) * frequency); });
}

RopeTable RopeTable::plain_of(const ds41_config &c) {
    return plain(c.rope_head_dim, c.rope_theta);
}

RopeTable RopeTable::compressed_of(const ds41_config &c) {
    return yarn(c.rope_head_dim, c.compress_rope_theta, c.original_seq_len, c.rope_factor, c.beta_fast, c.beta_slow);
}

void RopeTable::angle(std::int64_t pos, int pair, float &cosine, float &sine) const {
    const float angle = static_cast<float>(pos) * frequencies_[static_cast<std::size_t>(pair)];
    cosine = static_cast<float>(std::cos(double{angle}));
    sine = static_cast<float>(std::sin(double{angle}));
}

} // namespace ds41
