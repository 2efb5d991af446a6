// What is told of many samples. Medians and quartiles, never means: one disturbed sample must not show.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace bench {

struct Summary {
    double median;
    double q1, q3; ///< Half of the values lie between them.
    size_t n;      ///< Values that were summarised.
};

/// Nothing for no values. A quartile between two values is interpolated.
std::optional<Summary> summarize(std::vector<double> values);

/// Summary of above[i] / below[i] over the rounds in which both are there. The lists have the same length.
std::optional<Summary> summarize_ratios(const std::vector<std::optional<double>> &above,
                                        const std::vector<std::optional<double>> &below);

/// The values that are there.
std::vector<double> present(const std::vector<std::optional<double>> &values);

} // namespace bench
