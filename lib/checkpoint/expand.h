// Rows of a file's tensor, decoded to the floats of a model.
#pragma once

#include "checkpoint/inventory.h"

#include <cstdint>
#include <vector>

namespace ds41 {

class RowExpander {
public:
    // `scales` are the bytes of an F8_E4M3 tensor's blocks, [ceil(rows / 32), cols / 32]; else null. Borrowed.
    RowExpander(const GgufType &type, std::int64_t cols, const std::uint8_t *scales, ds41_dtype target);

    // Rows [first_row, first_row + n_rows), whose bytes in the file are `source`, to `target`. Returns how many values
    // the target's type could not hold and were rounded. Several threads may expand different rows at once, each with
    // `values` of its own.
    std::uint64_t expand(std::int64_t first_row, std::int64_t n_rows, const std::uint8_t *source, std::uint8_t *target,
                         std::vector<float> &values) const;

private:
    const GgufType &type_;
    std::int64_t cols_;
    const std::uint8_t *scales_;
    ds41_dtype target_;
};

// Bytes of a row in a file.
std::uint64_t file_row_bytes(const GgufType &type, std::int64_t cols);

} // namespace ds41
