// What the library is compared with where no other library does the same: plain loops, no instruction of which is
// chosen by hand. Their file is compiled for several instruction sets, with vector pragmas and fused products, which
// the library does not allow itself. On a thread each; callers share the work.
#pragma once

#include "numeric/bf16.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace bench {

/// Activations as q8_1, for products with Q2_K: by blocks of 32 a scale, by halves of a block the sum of the codes.
struct Q8Row {
    std::vector<int8_t> codes;
    std::vector<float> d;
    std::vector<int32_t> sums;
};

Q8Row q8_row(const ds41::Bf16 *x, int64_t n);

/// out[i] = row i of a Q2_K matrix times x, one row at a time.
void plain_q2_k(const std::byte *rows, int64_t n_rows, const Q8Row &x, float *out);

/// Cache rows to f32, codes and scales by table.
void plain_unpack_window(const uint8_t *row, int64_t n, float *values);
void plain_unpack_compressed(const uint8_t *row, int64_t n, float *values);

/// One head's attention over rows [n_rows, n], with the sink in the denominator. `weights` is scratch for n_rows.
void plain_attend(const float *q, const float *rows, int64_t n_rows, int64_t n, float scale, float sink, float *weights,
                  float *out);

/// Index scores of keys [n_keys, n] in bf16: of each head's product what is positive, weighed and summed, in f32.
/// Queries are [n_heads, n]. n_heads is a multiple of 8, n of 2.
void plain_scores(const float *queries, const float *weights, int64_t n_heads, const ds41::Bf16 *keys, int64_t n_keys,
                  int64_t n, float *scores);

} // namespace bench
