// Copies of bf16 rows in the form that a product with quantised weights takes, made by whoever makes the rows.
#pragma once

#include "numeric/bf16.h"

#include <cstdint>

namespace ds41::kernels {

enum class QuantisedForm : std::int32_t {
    kNone,
    kFp8, // what the fp8 quantiser leaves of each value, as bf16; blocks of 32 values
    kQ8,  // q8_1: codes, and the values of the scales' fp16 form; blocks of 32 values
};

// Rows of a multiple of 32 values, which lie behind each other.
struct QuantisedRows {
    QuantisedForm form;
    std::int32_t width; // values of a row
    Bf16 *values;       // kFp8: [n, width]
    std::int8_t *codes; // kQ8: [n, width]
    float *scales;      // kQ8: [n, width / 32]
};

} // namespace ds41::kernels
