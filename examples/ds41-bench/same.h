// That contestants compute the same: a benchmark of something else would be worthless.
#pragma once

#include "numeric/bf16.h"

#include <span>
#include <string>
#include <vector>

namespace bench {

/// Largest difference, in units of the root of the mean square of the right values. Infinity for lists of different
/// lengths and where a value is no number; so for two lists of nothing but zeros.
double difference(std::span<const float> values, std::span<const float> right);

/// Throws a sentence when the difference is more than `most`.
void must_be_same(const std::string &what, std::span<const float> values, std::span<const float> right, double most);

std::vector<float> widened(std::span<const ds41::Bf16> values);

/// Of values that are rounded to bf16 after sums in another order: a unit in the last place of a value of four times
/// the root of the mean square is 2^-7 to 2^-6 of it, and the inputs of a second product have such errors, too.
constexpr double kMostOfBf16 = 0.05;

} // namespace bench
