// Rotary frequencies. A model has two tables: one for layers of ratio 0 (rope_theta, no YaRN) and one for all others
// (compress_rope_theta with YaRN), which serves q, window rows, latents, index keys and index queries alike.
// Cosines are not stored: 1M positions would take 256 MB.
#pragma once

#include "model/config.h"

#include <vector>

namespace ds41 {

class RopeTable {
public:
    // rope_dim / 2 frequencies, base^(-2k / rope_dim) in f32.
    static RopeTable plain(int rope_dim, float theta);
    // The same, interpolated by YaRN; plain where original_seq_len is 0.
    static RopeTable yarn(int rope_dim, float theta, std::int64_t original_seq_len, float factor, float beta_fast,
                          float beta_slow);

    // A model's table of each kind.
    static RopeTable plain_of(const ds41_config &config);
    static RopeTable compressed_of(const ds41_config &config);

    // Whether every angle up to position max_seq_len is a number.
    bool finite_up_to(std::int64_t max_seq_len) const;

    int n_pairs() const { return static_cast<int>(frequencies_.size()); }
    const std::vector<float> &frequencies() const { return frequencies_; }

    // Cosine and sine of f32 angle float(pos) * frequency, each rounded once from f64: the same bits on every machine.
    void angle(std::int64_t pos, int pair, float &cosine, float &sine) const;

private:
    std::vector<float> frequencies_;
};

} // namespace ds41
