// Numbers in one shape for comparison: whatever dtype a tensor has, as floats.
#pragma once

#include <ds41/ds41.h>

#include <cstdint>
#include <string>
#include <vector>

namespace replay {

/// Row-major. Floats hold every BF16, F32 and U8 value, and every I32 below 2^24: row numbers stay far below that.
struct Array {
    std::vector<int64_t> shape;
    std::vector<float> values;

    int64_t n_rows() const { return shape.empty() ? 0 : shape[0]; }
    int64_t row_size() const;
    float *row(int64_t index) { return values.data() + index * row_size(); }
    const float *row(int64_t index) const { return values.data() + index * row_size(); }
    void keep_rows(int64_t begin, int64_t end);
};

/// All elements set to `value`.
Array filled(std::vector<int64_t> shape, float value);

/// Copy of F32, BF16, I32 or U8 host memory, aligned or not. Throws CannotRun for another dtype.
Array to_array(const ds41_tensor &tensor);

/// "[3, 64]"
std::string to_text(const std::vector<int64_t> &shape);

} // namespace replay
