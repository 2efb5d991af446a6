// Comparison of tensors for tests: specials first (NaN, infinities must stand in the same places), then every element,
// exactly or within a tolerance. Use as CHECK(same_bits(actual, expected, {rows, cols})): a failure prints how many
// elements are wrong, and the coordinate and both values of the worst and of the first one.
#pragma once

#include "numeric/bf16.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ostream>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace ds41::test {

using Shape = std::vector<std::int64_t>;

// |actual - expected| <= of_maximum * max |expected| over the tensor + of_value * |expected|. Both zero: equal values.
struct Tolerance {
    double of_maximum = 0.0;
    double of_value = 0.0;
};

// What a comparison found. n_allowed elements may differ, none by more than allowed_error * max |expected|.
struct Comparison {
    std::size_t n = 0;
    std::size_t n_wrong = 0;
    std::size_t n_allowed = 0;
    bool shapes_agree = true;
    bool specials_agree = true;
    double worst_error = 0.0; // largest |actual - expected| among the wrong ones
    double maximum = 0.0;     // largest finite |expected|
    double allowed_error = 0.0;
    std::string text;

    explicit operator bool() const {
        return shapes_agree && specials_agree && n_wrong <= n_allowed &&
               (n_wrong == 0 || n_allowed == 0 || worst_error <= allowed_error * maximum);
    }
};

inline std::ostream &operator<<(std::ostream &stream, const Comparison &comparison) {
    return stream << comparison.text;
}

inline double as_double(Bf16 value) {
    return static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16));
}
template <class T> double as_double(T value) {
    static_assert(std::is_arithmetic_v<T>);
    return static_cast<double>(value);
}

inline std::string coordinate(std::size_t index, const Shape &shape) {
    if (shape.empty()) return "[" + std::to_string(index) + "]";
    std::string text;
    for (std::size_t d = shape.size(); d-- > 0;) {
        const std::size_t size = static_cast<std::size_t>(std::max<std::int64_t>(shape[d], 1));
        text = std::to_string(d == 0 ? index : index % size) + (text.empty() ? "" : ", ") + text;
        index /= size;
    }
    return "[" + text + "]";
}

// Value and bits: two NaNs, two zeros or two neighbours look alike otherwise.
template <class T> std::string describe(T value) {
    char text[64];
    if constexpr (std::is_integral_v<T>) {
        std::snprintf(text, sizeof text, "%lld", static_cast<long long>(value));
    } else {
        std::uint64_t bits = 0;
        std::memcpy(&bits, &value, sizeof value);
        std::snprintf(text, sizeof text, "%.9g (0x%0*llx)", as_double(value), static_cast<int>(2 * sizeof value),
                      static_cast<unsigned long long>(bits));
    }
    return text;
}

// The loop behind all comparisons; `is_wrong(actual, expected, maximum)` judges pairs of values that are not special.
template <class T, class IsWrong>
Comparison compare(std::span<const T> actual, std::span<const T> expected, const Shape &shape, IsWrong is_wrong) {
    Comparison result;
    result.n = expected.size();
    if (actual.size() != expected.size()) {
        result.shapes_agree = false;
        result.text = std::to_string(actual.size()) + " elements, expected " + std::to_string(expected.size());
        return result;
    }
    for (const T value : expected)
        if (std::isfinite(as_double(value))) result.maximum = std::max(result.maximum, std::fabs(as_double(value)));

    std::size_t first = 0, worst = 0, first_special = 0;
    std::size_t n_special = 0;
    for (std::size_t i = 0; i < result.n; ++i) {
        const double a = as_double(actual[i]), b = as_double(expected[i]);
        if (!std::isfinite(a) || !std::isfinite(b)) {
            if (!((std::isnan(a) && std::isnan(b)) || a == b) && n_special++ == 0) first_special = i;
            continue;
        }
        if (!is_wrong(actual[i], expected[i], result.maximum)) continue;
        const double error = std::fabs(a - b);
        if (result.n_wrong++ == 0) first = worst = i;
        if (error > result.worst_error) {
            result.worst_error = error;
            worst = i;
        }
    }
    const auto pair = [&](std::size_t i) {
        return coordinate(i, shape) + ": got " + describe(actual[i]) + ", expected " + describe(expected[i]);
    };
    if (n_special > 0) {
        result.specials_agree = false;
        result.text = std::to_string(n_special) + " of " + std::to_string(result.n) +
                      " differ in being NaN or infinite, the first at " + pair(first_special) + "; ";
    }
    if (result.n_wrong > 0) {
        result.text += std::to_string(result.n_wrong) + " of " + std::to_string(result.n) + " differ, worst at " +
                       pair(worst) + ", first at " + pair(first) + "; largest expected " + describe(result.maximum);
    }
    if (result.text.empty()) result.text = std::to_string(result.n) + " elements agree";
    return result;
}

// Bit for bit, -0 and 0 included; only the payload of a NaN is free.
template <class A, class B> Comparison same_bits(const A &actual, const B &expected, const Shape &shape = {}) {
    const std::span a(std::data(actual), std::size(actual));
    const std::span b(std::data(expected), std::size(expected));
    using T = std::remove_cv_t<typename decltype(b)::element_type>;
    return compare<T>(a, b, shape, [](T x, T y, double) { return std::memcmp(&x, &y, sizeof x) != 0; });
}

// Within a tolerance; without one, equal values (-0 equals 0).
template <class A, class B>
Comparison close(const A &actual, const B &expected, Tolerance tolerance, const Shape &shape = {}) {
    const std::span a(std::data(actual), std::size(actual));
    const std::span b(std::data(expected), std::size(expected));
    using T = std::remove_cv_t<typename decltype(b)::element_type>;
    return compare<T>(a, b, shape, [tolerance](T x, T y, double maximum) {
        const double bound = tolerance.of_maximum * maximum + tolerance.of_value * std::fabs(as_double(y));
        return std::fabs(as_double(x) - as_double(y)) > bound;
    });
}

// Equal values but for a few flips of a quantiser: at most max(1, share * n) elements, each by at most
// allowed_error * max |expected|.
template <class A, class B>
Comparison equal_but_for(const A &actual, const B &expected, double share, double allowed_error,
                         const Shape &shape = {}) {
    Comparison result = close(actual, expected, Tolerance{}, shape);
    result.n_allowed = std::max<std::size_t>(1, static_cast<std::size_t>(share * static_cast<double>(result.n)));
    result.allowed_error = allowed_error;
    return result;
}

// Counts disagreements of a scalar function over many inputs and keeps the first: one CHECK for a million values.
class Tally {
public:
    [[gnu::format(printf, 3, 4)]] void expect(bool agrees, const char *format, ...) {
        ++n_;
        if (agrees || n_wrong_++ > 0) return;
        char text[256];
        std::va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        first_ = text;
    }

    explicit operator bool() const { return n_ > 0 && n_wrong_ == 0; }
    friend std::ostream &operator<<(std::ostream &stream, const Tally &tally) {
        return stream << tally.n_wrong_ << " of " << tally.n_ << " are wrong, the first: " << tally.first_;
    }

private:
    std::size_t n_ = 0, n_wrong_ = 0;
    std::string first_;
};

} // namespace ds41::test
