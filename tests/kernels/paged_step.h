// What tests of kernels stand on that read a step: arrays that start as NaN and notice writes beyond their end, packed
// rows in pages, and tokens of several sequences.
#pragma once

#include "common/step.h"
#include "numeric/rows.h"
#include "simt.h"
#include "support/random.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <doctest/doctest.h>
#include <memory>
#include <string>
#include <vector>

namespace ds41::test {

// As aligned as device memory, and not one byte longer for AddressSanitizer; without it, a band behind the end is
// looked at. Nobody expects -1, which means "none" among indices, where nothing was written.
template <class T> class Array {
public:
    explicit Array(std::size_t n = 0) : n_(n), data_(allocate(n * sizeof(T) + kBandBytes), &std::free) {
        std::memset(data_.get(), std::is_same_v<T, std::int32_t> ? 0x5a : 0xff, n * sizeof(T) + kBandBytes);
        if (kBandBytes) std::memset(band(), 0x77, kBandBytes);
    }
    Array(const std::vector<T> &values) : Array(values.size()) { std::copy(values.begin(), values.end(), data()); }
    Array(Array &&) noexcept = default;
    Array &operator=(Array &&) noexcept = default;
    ~Array() {
        if (!data_) return;
        const unsigned char *const end = band();
        CHECK_MESSAGE(std::all_of(end, end + kBandBytes, [](unsigned char byte) { return byte == 0x77; }),
                      "a kernel wrote behind an array of ", n_, " elements");
    }

    T *data() const { return static_cast<T *>(data_.get()); }
    std::size_t size() const { return n_; }
    T &operator[](std::size_t i) const { return data()[i]; }
    std::vector<T> get() const { return std::vector<T>(data(), data() + n_); }
    std::vector<T> get(std::size_t at, std::size_t n) const { return std::vector<T>(data() + at, data() + at + n); }

private:
#if defined(__SANITIZE_ADDRESS__)
    static constexpr std::size_t kBandBytes = 0;
#else
    static constexpr std::size_t kBandBytes = 64;
#endif
    static void *allocate(std::size_t n_bytes) {
        void *data = nullptr;
        REQUIRE(posix_memalign(&data, 64, std::max<std::size_t>(n_bytes, 1)) == 0);
        return data;
    }
    unsigned char *band() const {
        return static_cast<unsigned char *>(data_.get()) + n_ * sizeof(T);
    }

    std::size_t n_;
    std::unique_ptr<void, decltype(&std::free)> data_;
};

// Packed rows that are NaN until they are set.
class Pages {
public:
    Pages(std::int64_t n_rows, std::size_t row_bytes)
        : row_bytes_(row_bytes),
          table_(static_cast<std::size_t>((n_rows + kernels::kRowsPerPage - 1) / kernels::kRowsPerPage)) {
        for (std::size_t page = 0; page < table_.size(); ++page) {
            // The last one is as small as what it holds.
            const std::int64_t left = n_rows - static_cast<std::int64_t>(page) * kernels::kRowsPerPage;
            pages_.emplace_back(static_cast<std::size_t>(std::min<std::int64_t>(left, kernels::kRowsPerPage)) *
                                row_bytes);
            table_[page] = pages_.back().data();
        }
    }

    std::uint8_t *row(std::int64_t i) const {
        return table_[static_cast<std::size_t>(i / kernels::kRowsPerPage)] +
               static_cast<std::size_t>(i % kernels::kRowsPerPage) * row_bytes_;
    }
    std::uint8_t *const *table() const { return table_.data(); }

private:
    std::size_t row_bytes_;
    std::vector<Array<std::uint8_t>> pages_;
    Array<std::uint8_t *> table_;
};

struct Span {
    std::int64_t start_pos;
    std::int32_t n_tokens;

    std::int64_t end_pos() const { return start_pos + n_tokens; }
};
using Spans = std::vector<Span>;

inline Array<kernels::Token> tokens_of(const Spans &spans) {
    std::vector<kernels::Token> tokens;
    for (std::size_t s = 0; s < spans.size(); ++s)
        for (std::int32_t i = 0; i < spans[s].n_tokens; ++i)
            tokens.push_back({static_cast<std::int32_t>(s), 0, spans[s].start_pos + i});
    return tokens;
}

// The same with places behind it that nobody has written.
template <class T> Array<T> extended(const Array<T> &values, std::size_t n_more) {
    Array<T> result(values.size() + n_more);
    std::copy_n(values.data(), values.size(), result.data());
    return result;
}

// Places without a token behind those that have one, as in a graph that was captured for more. Their positions say, to
// who looks, that a group is complete.
inline Array<kernels::Token> padded(const Array<kernels::Token> &tokens, int n_more) {
    auto result = extended(tokens, static_cast<std::size_t>(n_more));
    for (std::size_t i = tokens.size(); i < result.size(); ++i)
        result[i] = {kernels::kNoSpan, 0, i % 2 ? -1 : 5 * 7 * 24 - 1};
    return result;
}

// Spans without rows; tests point them at theirs.
inline Array<kernels::SpanRows> span_rows_of(const Spans &spans) {
    std::vector<kernels::SpanRows> rows;
    std::int32_t first = 0;
    for (const Span &span : spans) {
        rows.push_back({first, span.n_tokens, span.start_pos, nullptr, nullptr, nullptr, nullptr});
        first += span.n_tokens;
    }
    return rows;
}

inline int token_count(const Spans &spans) {
    int n = 0;
    for (const Span &span : spans) n += span.n_tokens;
    return n;
}

// A tile of all tokens, tiles of one, and an uneven pair.
inline std::vector<std::vector<int>> tilings(int n_tokens) {
    std::vector<std::vector<int>> result = {{n_tokens}};
    if (n_tokens > 1) result.emplace_back(static_cast<std::size_t>(n_tokens), 1);
    if (n_tokens > 3) result.push_back({3, n_tokens - 3});
    return result;
}

// Values whose magnitude differs from block to block by up to 2^spread.
inline std::vector<Bf16> uneven_row(Random &random, int n, int block, int spread) {
    std::vector<Bf16> row;
    for (int b = 0; b < n / block; ++b) {
        const auto values = random.bf16_row(block, std::ldexp(1.0, random.between(-spread, spread)));
        row.insert(row.end(), values.begin(), values.end());
    }
    return row;
}

// Runs a launch function and says what the simulator found.
#define REQUIRE_LAUNCHES(call) REQUIRE_MESSAGE((call) == 0, simt::last_failure())

} // namespace ds41::test
