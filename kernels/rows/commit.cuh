// A row of a step into its sequence's ring, by all threads of a block.
#pragma once

#include "common/rows.cuh"

namespace ds41::kernels {

// Token i of the step.
template <int kThreads>
__device__ __forceinline__ void commit_row(const std::uint8_t *window_new, int i, const Token &token,
                                           const SpanRows *spans, int window_size, int row_bytes) {
    const SpanRows span = simt::load(spans + token.span);
    // Of a span longer than the ring only the last rows stay.
    if (i < span.first_token + span.n_tokens - window_size) return;
    // Rows are as aligned as their size: 33 bytes for every 32 values.
    std::uint8_t *target = row_address(span.window, token.pos % window_size, row_bytes);
    const std::uint8_t *source = window_new + static_cast<std::int64_t>(i) * row_bytes;
    if (row_bytes % 4 == 0) {
        for (int b = 4 * static_cast<int>(threadIdx.x); b < row_bytes; b += 4 * kThreads)
            simt::store(reinterpret_cast<std::uint32_t *>(target + b),
                        simt::load(reinterpret_cast<const std::uint32_t *>(source + b)));
    } else {
        for (int b = static_cast<int>(threadIdx.x); b < row_bytes; b += kThreads)
            simt::store(target + b, simt::load(source + b));
    }
}

} // namespace ds41::kernels
