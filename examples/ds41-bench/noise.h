// Made-up numbers: bits without a pattern, with what keeps them numbers of a harmless size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bench {

class Noise {
public:
    explicit Noise(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
    uint64_t next() {
        state_ ^= state_ << 13;
        state_ ^= state_ >> 7;
        state_ ^= state_ << 17;
        return state_;
    }
    /// Bits of `keep` are noise, those of `set` are set.
    template <class Word> void fill(void *data, size_t n_words, Word keep, Word set) {
        auto *bytes = static_cast<std::byte *>(data);
        for (size_t i = 0; i < n_words; ++i, bytes += sizeof(Word)) {
            const auto word = static_cast<Word>((static_cast<Word>(next() >> 16) & keep) | set);
            std::memcpy(bytes, &word, sizeof(word));
        }
    }

private:
    uint64_t state_;
};

constexpr uint8_t kE4m3Keep = 0x9f, kE4m3Set = 0x20;            // 2^-3 to 2
constexpr uint32_t kF32Keep = 0x807fffff, kF32Set = 0x3c000000; // 2^-7
constexpr uint16_t kBf16Keep = 0x807f, kBf16Set = 0x3f00;       // 2^-1 to 1

constexpr uint8_t kUe8m0One = 127, kE4m3One = 0x38;

/// Packed rows: codes of which the bits of `keep` are noise and those of `set` are set, and behind them scales.
inline void fill_rows(Noise &noise, void *rows, size_t n_rows, size_t row_bytes, size_t n_codes, uint8_t keep,
                      uint8_t set, uint8_t scale) {
    auto *row = static_cast<uint8_t *>(rows);
    for (size_t i = 0; i < n_rows; ++i, row += row_bytes) {
        noise.fill<uint8_t>(row, n_codes, keep, set);
        std::memset(row + n_codes, scale, row_bytes - n_codes);
    }
}

} // namespace bench
