// What happens to single rows between products: pooling, norm, rotation, packing. One launch for all that is due.
#pragma once

#include "common/quantised.h"
#include "common/step.h"
#include "numeric/bf16.h"

#include <cstdint>

namespace ds41::kernels {

enum class RowSource : std::int32_t {
    kRow,  // bf16
    kPool, // the group that the token completes: softmax of its gates weighs its kv products; ratio > 1
    // No row: the products of tokens whose group stays incomplete within the tile go to their sequence's group state.
    // Of the job `products`, `width` and `ratio` count. Not in one launch with kPool, which reads the states.
    kState,
};

enum class RowPacking : std::int32_t {
    kNone,
    kWindow,     // e4m3 with ue8m0 scales
    kCompressed, // e2m1 with e4m3 scales
    kIndexKey,   // e2m1 with ue8m0 scales
};

// Source, then norm, then rotation, then `out`, `quantised` and `packed`; each may be left out.
struct RowJob {
    RowSource source;
    RowPacking packing;
    const Bf16 *rows;        // kRow: [n, stride_rows], rows_per_token rows of `width` each
    const float *products;   // kPool, kState: [n, 2, width]: kv and gate products of the tile's tokens
    const float *norm;       // [width]; may be null
    const float *angles;     // [n, n_pairs, 2]; may be null
    Bf16 *out;               // [n, stride_out] in the layout of rows; may be null, may be rows
    std::uint8_t *packed;    // kWindow, kIndexKey: [n, rows_per_token, row bytes]; null: into the sequence's pages
    QuantisedRows quantised; // of n rows of `width` values, a multiple of 32; rows_per_token is 1
    std::int64_t stride_rows;
    std::int64_t stride_out;
    std::int32_t rows_per_token;
    std::int32_t width;
    std::int32_t n_pairs;
    std::int32_t ratio; // 0: every token; else only tokens that complete a group, and pages are written at its number
    float eps;
    std::int32_t reserved;
};

constexpr int kMaxRowJobs = 4;

struct RowsParams {
    RowJob jobs[kMaxRowJobs];
    const Token *tokens;   // [first + n], of the step
    const SpanRows *spans; // of the layer
    std::int32_t n_jobs;
    std::int32_t first; // of the tile's n tokens
    std::int32_t n;
    std::int32_t reserved;
};

// The window rows of a step into the rings: the last window_size of each span.
struct CommitWindowParams {
    const std::uint8_t *window_new; // [n_tokens, row_bytes]
    const Token *tokens;
    const SpanRows *spans;
    std::int32_t n_tokens;
    std::int32_t window_size;
    std::int32_t row_bytes;
    std::int32_t reserved;
};

} // namespace ds41::kernels
