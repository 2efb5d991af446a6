#include "same.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>

namespace bench {

double difference(std::span<const float> values, std::span<const float> right) {
    if (values.size() != right.size()) return std::numeric_limits<double>::infinity();
    double squares = 0, largest = 0;
    for (size_t i = 0; i < values.size(); ++i) {
        squares += double{right[i]} * double{right[i]};
        const double apart = std::abs(double{values[i]} - double{right[i]});
        if (!(apart < std::numeric_limits<double>::infinity())) return std::numeric_limits<double>::infinity();
        largest = std::max(largest, apart);
    }
    if (!(squares > 0)) return std::numeric_limits<double>::infinity();
    return largest / std::sqrt(squares / static_cast<double>(values.size()));
}

void must_be_same(const std::string &what, std::span<const float> values, std::span<const float> right, double most) {
    const double found = difference(values, right);
    if (found <= most) return;
    char text[120];
    std::snprintf(text, sizeof(text), " is wrong: off by %.3g of the values' root mean square, need %.3g at most",
                  found, most);
    throw std::runtime_error(what + text);
}

std::vector<float> widened(std::span<const ds41::Bf16> values) {
    std::vector<float> result;
    result.reserve(values.size());
    for (const ds41::Bf16 value : values) result.push_back(to_f32(value));
    return result;
}

} // namespace bench
