// Order statistics by sorting: there are at most some thousand samples.
#include "statistics.h"

#include <algorithm>

namespace bench {

namespace {

/// Value at `share` of a sorted list that is not empty, between its neighbours in proportion.
double at_share(const std::vector<double> &sorted, double share) {
    const double place = share * static_cast<double>(sorted.size() - 1);
    const auto below = static_cast<size_t>(place);
    const size_t above = std::min(below + 1, sorted.size() - 1);
    return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

} // namespace

std::optional<Summary> summarize(std::vector<double> values) {
    if (values.empty()) return std::nullopt;
    std::sort(values.begin(), values.end());
    return Summary{at_share(values, 0.5), at_share(values, 0.25), at_share(values, 0.75), values.size()};
}

std::optional<Summary> summarize_ratios(const std::vector<std::optional<double>> &above,
                                        const std::vector<std::optional<double>> &below) {
    std::vector<double> ratios;
    for (size_t i = 0; i < above.size(); ++i)
        if (above[i] && below[i]) ratios.push_back(*above[i] / *below[i]);
    return summarize(std::move(ratios));
}

std::vector<double> present(const std::vector<std::optional<double>> &values) {
    std::vector<double> there;
    for (const std::optional<double> &value : values)
        if (value) there.push_back(*value);
    return there;
}

} // namespace bench
