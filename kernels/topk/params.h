// The best columns of each token, and the candidate blocks that it keeps, by the sort keys of their scores.
#pragma once

#include "common/step.h"

namespace ds41::kernels {

struct TopkParams {
    const Token *tokens;   // [n_step_tokens]
    std::int32_t first, n; // the tile: tokens [first, first + n) of the step
    std::int32_t ratio;    // the token at position p sees (p + 1) / ratio groups

    // As score/params.h writes them; rows are aligned to 16 bytes: stride_keys is a multiple of 8.
    const std::uint16_t *keys; // [n, stride_keys]
    std::int64_t stride_keys;

    // Kept candidate blocks, of which each has block_size columns; null: column v is group v.
    const std::int32_t *blocks; // [n_step_tokens, n_block_slots], ascending, then -1
    std::int32_t n_block_slots, block_size;

    std::int32_t index_topk;
    std::int32_t *groups; // [n_step_tokens, n_group_slots]: selected groups, ascending, then -1. All are written
    std::int32_t n_group_slots;
};

struct KeepBlocksParams {
    const Token *tokens; // as above
    std::int32_t first, n;
    std::int32_t ratio;
    const std::uint16_t *keys; // [n, stride_keys], by group
    std::int64_t stride_keys;

    std::int32_t candidate_topk_blocks, candidate_block_size;
    std::int32_t *blocks; // [n_step_tokens, n_block_slots]: kept blocks, ascending, then -1. All are written
    std::int32_t n_block_slots;
};

} // namespace ds41::kernels
