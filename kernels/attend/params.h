// Sparse attention of a tile's tokens over packed rows: window rows by position, then selected compressed rows.
#pragma once

#include "common/quantised.h"
#include "common/step.h"
#include "numeric/bf16.h"

#include <cstddef>

namespace ds41::kernels {

struct AttendParams {
    const Token *tokens;   // [n_step_tokens]
    const SpanRows *spans; // [n_spans]
    std::int32_t first, n; // the tile: tokens [first, first + n) of the step
    std::int32_t window_size, n_heads, head_dim, rope_dim;

    const Bf16 *q;                  // [n, n_heads, head_dim], rotated
    const std::uint8_t *window_new; // [n_step_tokens, window_row_bytes]: rows of the step's own tokens
    const std::int32_t *groups;     // [n_step_tokens, n_group_slots], ascending, then -1; may be null
    std::int32_t n_group_slots;
    const float *sink; // [n_heads]
    float scale;
    const float *rope; // [n_step_tokens, rope_dim / 2, 2]: cosine and sine of each token's position

    std::int32_t n_splits;   // thread blocks that share a token's rows; 0: as many as fill a GPU. The same bits for any
    float *workspace;        // attend_workspace_bytes(); may be null where that is 0
    Bf16 *o_before;          // [n, n_heads, head_dim], before the inverse rotation, for a tap; may be null
    Bf16 *o;                 // [n, n_heads, head_dim], rotated back; may be null
    QuantisedRows quantised; // of n rows of n_heads * head_dim values of o; not of launch_attend_tensor

    // Not 0: window_new's rows then go to the rings, as launch_commit_window does. The tile is the whole step: first
    // is 0, and no other launch reads the rings for it.
    std::int32_t commit;
};

// Rows that are attended to independently of all others, and the heads that share a block.
constexpr int kAttendChunkRows = 64;
constexpr int kAttendHeads = 8;
constexpr int kAttendColumns = 512; // of a head, of one block

// The most chunks that a token of these sizes has.
DS41_HD inline int attend_chunks(const AttendParams &p) {
    const std::int64_t n_rows = std::int64_t{p.window_size} + (p.groups ? p.n_group_slots : 0);
    return static_cast<int>((n_rows + kAttendChunkRows - 1) / kAttendChunkRows);
}

// Chunks of each thread block, by n_splits.
DS41_HD inline int attend_chunks_per_split(const AttendParams &p) {
    const int n_chunks = attend_chunks(p);
    std::int64_t n_splits = p.n_splits;
    if (n_splits <= 0) {
        const std::int64_t n_blocks = std::int64_t{p.n} * ((p.n_heads + kAttendHeads - 1) / kAttendHeads) *
                                      ((p.head_dim + kAttendColumns - 1) / kAttendColumns);
        constexpr std::int64_t kWanted = 2 * 132; // an H200's multiprocessors, twice
        n_splits = n_blocks > 0 ? (kWanted + n_blocks - 1) / n_blocks : 1;
        if (n_splits > 8) n_splits = 8;
    }
    return static_cast<int>((n_chunks + n_splits - 1) / n_splits);
}

// Whether the tensor cores' kernel takes these sizes.
inline bool attend_on_tensor_cores(const AttendParams &p) {
    return p.head_dim % 128 == 0 && p.head_dim <= kAttendColumns;
}

// Only `n` to `n_group_slots`, `groups` (null or not) and n_splits are looked at. 0 where no rows are shared.
inline std::size_t attend_workspace_bytes(const AttendParams &p) {
    const int n_chunks = attend_chunks(p);
    if (attend_chunks_per_split(p) >= n_chunks) return 0;
    return static_cast<std::size_t>(p.n) * static_cast<std::size_t>(n_chunks) * static_cast<std::size_t>(p.n_heads) *
           static_cast<std::size_t>(p.head_dim + 2) * sizeof(float);
}

} // namespace ds41::kernels
