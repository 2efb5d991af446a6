// Addresses of packed rows, and fields of a step, from device memory.
#pragma once

#include "common/step.h"
#include "simt.h"

namespace ds41::kernels {

__device__ __forceinline__ std::uint8_t *row_address(std::uint8_t *const *pages, std::int64_t row, int row_bytes) {
    return simt::load(pages + row / kRowsPerPage) + row % kRowsPerPage * row_bytes;
}

__device__ __forceinline__ Token load_token(const Token *tokens, int i) {
    return simt::load(tokens + i);
}
__device__ __forceinline__ bool is_padding(const Token &token) {
    return token.span == kNoSpan;
}

} // namespace ds41::kernels
