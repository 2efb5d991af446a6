// The loops of plain_loops.h, once for each instruction set that their file is compiled for.
#pragma once

#include <cstdint>

namespace bench {

constexpr int kPlainKeys = 16; ///< Scored side by side.

struct PlainKernels {
    void (*q2_k)(const uint8_t *rows, int64_t n_rows, int64_t n_blocks, const int8_t *codes, const float *d,
                 const int32_t *sums, float *out);
    void (*attend)(const float *q, const float *rows, int64_t n_rows, int64_t n, float scale, float sink,
                   float *weights, float *out);
    /// `columns` is scratch for n * kPlainKeys.
    void (*scores)(const float *queries, const float *weights, int64_t n_heads, const uint16_t *keys, int64_t n_keys,
                   int64_t n, float *scores, float *columns);
};

namespace portable {
extern const PlainKernels kKernels;
}
#if defined(__x86_64__)
namespace v3 { // with AVX2
extern const PlainKernels kKernels;
}
namespace v4 { // with AVX-512
extern const PlainKernels kKernels;
}
#endif

} // namespace bench
