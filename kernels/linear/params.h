// Products of up to 16 activation rows with weight matrices: one launch for all matrices of a format that are due.
#pragma once

#include "common/quantised.h"
#include "numeric/bf16.h"

#include <cstdint>

namespace ds41::kernels {

enum class LinearFormat : std::int32_t {
    kBf16,
    kF32,
    kFp8,      // e4m3 codes with one ue8m0 scale per 32 x 32 values
    kQ2K,      // against q8_1 rows
    kQ2KPlain, // the weights' exact values against bf16
};

enum class LinearOutput : std::int32_t {
    kBf16,    // bf16(v)
    kRotated, // bf16(v), then the last values of each head turned by the token's angles
    kScaled,  // bf16(bf16(v) * scale)
    kF32,     // v
};

// One matrix, or several of a shape behind each other (slices) that read consecutive parts of x. A product with rows
// that somebody has quantised has the bits of one that quantises them: of kFp8, x is the form's values and `quantise`
// 0.
struct LinearSegment {
    const std::uint8_t *weights; // [n_slices * rows, k]; kFp8: aligned to 8 bytes
    const std::uint8_t *scales;  // kFp8: ue8m0 [ceil(n_slices * rows / 32), k / 32]; else null
    const Bf16 *x;               // [n, stride_x]; slice s reads k values from s * k on. Not of kQ2K, which reads
    const std::int8_t *codes;    // [n, n_slices * k] and
    const float *code_scales;    // [n, n_slices * k / 32]
    void *out;                   // [n, stride_out], bf16 or f32; slice s writes `rows` values from s * rows on
    const float *angles;         // kRotated: [n, n_pairs, 2] cosines and sines; else null
    std::int64_t stride_x;
    std::int64_t stride_out;
    std::int32_t rows; // of a slice
    std::int32_t k;
    std::int32_t n_slices;
    std::int32_t first_block; // of the grid; set by the launch
    LinearOutput output;
    float scale;           // kScaled
    std::int32_t head_dim; // kRotated
    std::int32_t n_pairs;
    std::int32_t quantise; // kFp8: x goes through the fp8 quantiser first, in each thread block anew
    std::int32_t reserved;
    // kBf16 with `rows` a multiple of 32: the rows that `out` gets, quantised; `out` may be null then. Rows of
    // `quantised.width` values, n_slices * rows at least, of which slice s writes those from s * rows on. A launch
    // takes 32 rows a thread block as soon as one segment has it.
    QuantisedRows quantised;
};

constexpr int kMaxLinearSegments = 6;
constexpr int kMaxLinearRows = 16;

struct LinearParams {
    LinearSegment segments[kMaxLinearSegments];
    std::int32_t n_segments;
    std::int32_t n; // activation rows, 1 to kMaxLinearRows
    LinearFormat format;
    std::int32_t reserved;
};

static_assert(sizeof(LinearParams) <= 4096, "CUDA passes no more to a kernel");

struct QuantiseParams {
    const Bf16 *x; // [n, stride_x]
    std::int64_t stride_x;
    std::int32_t n;
    std::int32_t reserved;
    QuantisedRows out; // [n, width]
};

} // namespace ds41::kernels
