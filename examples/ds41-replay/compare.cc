// Sums nothing and rounds nothing: every difference is taken in double from values that are exact floats.
#include "compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace replay {

namespace {

double largest_finite(const Array &array) {
    double largest = 0;
    for (float value : array.values)
        if (std::isfinite(value)) largest = std::max(largest, std::fabs(static_cast<double>(value)));
    return largest;
}

bool same(float a, float b) {
    return a == b || (std::isnan(a) && std::isnan(b));
}

} // namespace

Comparison compare(const Array &expected, const Array &got, const std::vector<char> &given, const Rule &rule) {
    Comparison result;
    if (expected.shape != got.shape) {
        result.verdict = "shape";
        result.n = result.outside = static_cast<int64_t>(expected.values.size());
        result.note = "got " + to_text(got.shape) + ", expected " + to_text(expected.shape);
        return result;
    }
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double maximum = largest_finite(expected);
    const int64_t row_size = expected.row_size();
    for (int64_t row = 0; row < expected.n_rows(); ++row) {
        if (!given.empty() && !given[static_cast<size_t>(row)]) {
            result.left_out += row_size;
            continue;
        }
        result.n += row_size;
        ++result.n_rows;
        int64_t excused = 0;
        for (int64_t i = 0; i < row_size; ++i) {
            const float a = got.row(row)[i], b = expected.row(row)[i];
            if (same(a, b)) continue;
            ++result.differing;
            const bool finite = std::isfinite(a) && std::isfinite(b);
            const double size = std::isfinite(b) ? std::fabs(static_cast<double>(b)) : 0;
            const double error = finite ? std::fabs(static_cast<double>(a) - b) : kInfinity;
            result.max_abs = std::max(result.max_abs, error);
            if (size > 0) result.max_rel = std::max(result.max_rel, error / size);
            if (rule.group == Group::exact)
                ++result.outside;
            else if (rule.group == Group::quantised)
                result.outside += error > rule.atol_of_max * maximum;
            else if (error > rule.atol_of_max * maximum + rule.rtol * size) {
                const bool excusable = rule.exception_fraction > 0 && error <= rule.exception_atol_of_max * maximum;
                ++(excusable ? excused : result.outside);
            }
        }
        result.exception_rows += excused > 0;
        result.exception_count += excused;
    }
    if (rule.group == Group::quantised) {
        const double allowed = std::max(1.0, rule.fraction * static_cast<double>(result.n));
        if (static_cast<double>(result.differing) > allowed) result.outside = result.differing;
    }
    result.verdict = result.outside ? "outside" : result.exception_rows ? "exception" : "ok";
    return result;
}

} // namespace replay
