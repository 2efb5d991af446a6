// Judges one tensor against what the file expects.
#pragma once

#include "array.h"
#include "tolerance.h"

#include <string>
#include <vector>

namespace replay {

/// What came of comparing `got` with `expected`. Elements, unless it says rows.
struct Comparison {
    int64_t n = 0;              ///< Compared.
    int64_t left_out = 0;       ///< Not compared: the library does not deliver them, or the file leaves them undefined.
    int64_t differing = 0;      ///< Not equal.
    int64_t outside = 0;        ///< Outside the tolerance.
    double max_abs = 0;         ///< Largest |a - b|; infinite where only one side is finite.
    double max_rel = 0;         ///< Largest |a - b| / |b| where b is not 0.
    int64_t n_rows = 0;         ///< Rows compared.
    int64_t exception_rows = 0; ///< Rows that need an exception to the bound ...
    int64_t exception_count = 0; ///< ... and their elements outside it.
    std::string verdict;         ///< ok, exception, outside; absent and shape come from the caller.
    std::string note;            ///< Why, where the numbers do not tell.
};

/**
 * Compare. NaN and infinities must stand at the same places. A verdict of "exception" is for the caller to confirm once
 * all rows of the case are known.
 *
 * @param given  One per row, 0: leave the row out. Empty: compare all.
 */
Comparison compare(const Array &expected, const Array &got, const std::vector<char> &given, const Rule &rule);

} // namespace replay
