// Index scores of a tile's tokens over packed fp4 keys.
#pragma once

#include "common/step.h"
#include "numeric/bf16.h"

namespace ds41::kernels {

struct ScoreParams {
    const Token *tokens;   // [n_step_tokens]
    const SpanRows *spans; // [n_spans]
    std::int32_t first, n; // the tile: tokens [first, first + n) of the step
    std::int32_t ratio;    // the token at position p sees (p + 1) / ratio groups
    std::int32_t index_n_heads, index_head_dim;
    const std::uint8_t *iq; // [n, index_n_heads, index_key_row_bytes]
    const Bf16 *weights;    // [n, index_n_heads]

    // Null: column v is group v, as far as the token sees. Otherwise column v is group
    // blocks[v / block_size] * block_size + v % block_size, up to the first block that is -1.
    const std::int32_t *blocks; // [n_step_tokens, n_block_slots], ascending, then -1
    std::int32_t n_block_slots, block_size;

    // No token has more columns. Only the grid depends on it, so a bound serves every step of a captured graph.
    std::int64_t n_columns_max;

    // Sort keys (key.cuh). Columns that the token does not have are not written.
    std::uint16_t *keys; // [n, stride_keys]
    std::int64_t stride_keys;

    // By group, also in layers that use candidates; -inf where there is no score. All stride_tap values of a row are
    // written, of padding too.
    float *tap; // [n, stride_tap], may be null
    std::int64_t stride_tap;
};

} // namespace ds41::kernels
