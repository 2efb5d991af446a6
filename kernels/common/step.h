// A step and its sequences as kernels see them, in device memory. Positions and lengths are read when a kernel runs.
#pragma once

#include "numeric/rows.h"

#include <cstdint>

namespace ds41::kernels {

// A graph that was captured for more tokens than a step has finds places without one behind the last: their span is
// kNoSpan and nothing else of them counts. No kernel reads or writes anything for them, but that attention gives zeros;
// the tables of sequences may hold anything where no token is of them.
constexpr std::int32_t kNoSpan = -1;

struct Token {
    std::int32_t span; // of `spans`, or kNoSpan
    std::int32_t reserved;
    std::int64_t pos;
};

// One sequence in one layer. Tables are of page addresses, in device memory; pages hold kPageRows packed rows.
struct SpanRows {
    std::int32_t first_token; // of the step
    std::int32_t n_tokens;
    std::int64_t start_pos;
    std::uint8_t *const *window;     // ring of positions before start_pos, slot pos % window_size
    std::uint8_t *const *compressed; // rows of the kv source that the layer reads
    std::uint8_t *const *index_keys; // keys of the kv source
    float *group_state;              // [2][ratio][head_dim], kv sources of ratio > 1
};
static_assert(sizeof(Token) == 16 && sizeof(SpanRows) == 48);

constexpr int kRowsPerPage = 64; // kPageRows of sequence/rows_view.h

} // namespace ds41::kernels
