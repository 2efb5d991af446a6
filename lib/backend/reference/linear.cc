// Products with one activation row, a weight row at a time, in every weight format.
#include "backend/reference/rows.h"
#include "numeric/fp8_linear.h"
#include "numeric/q2_k.h"

#include <cassert>

namespace ds41::reference {

namespace {

float dot(const float *a, const Bf16 *b, std::int64_t n) {
    float sum = 0.0f;
    for (std::int64_t i = 0; i < n; ++i) sum += to_f32(b[i]) * a[i];
    return sum;
}

const std::uint8_t *row_data(const Matrix &w, std::int64_t row) {
    return w.data + static_cast<std::size_t>(row) * weight_row_bytes(w.dtype, w.cols);
}

// The exact values of a quantised weight row.
void decode_row(const Matrix &w, std::int64_t row, float *values) {
    const std::uint8_t *data = row_data(w, row);
    if (w.dtype == DS41_DTYPE_Q2_K) {
        decode_q2_k_row(data, static_cast<int>(w.cols), values);
        return;
    }
    assert(w.dtype == DS41_DTYPE_FP8_E4M3);
    const std::uint8_t *scales = w.scales + row / kFp8WeightBlock * w.scale_cols();
    for (std::int64_t i = 0; i < w.cols; ++i)
        values[i] = e4m3_to_f32(data[i]) * ue8m0_to_f32(scales[i / kFp8WeightBlock]);
}

} // namespace

float dot_float(const Matrix &w, std::int64_t row, const Bf16 *x) {
    const std::uint8_t *data = row_data(w, row);
    if (w.dtype == DS41_DTYPE_F32) return dot(reinterpret_cast<const float *>(data), x, w.cols);
    assert(w.dtype == DS41_DTYPE_BF16);
    const auto *values = reinterpret_cast<const Bf16 *>(data);
    float sum = 0.0f;
    for (std::int64_t i = 0; i < w.cols; ++i) sum += to_f32(x[i]) * to_f32(values[i]);
    return sum;
}

void linear(const Matrix &w, std::int64_t first_row, std::int64_t n_rows, const Bf16 *x, Bf16 *out,
            LinearScratch &scratch) {
    const int k = static_cast<int>(w.cols);
    if (w.dtype == DS41_DTYPE_F32 || w.dtype == DS41_DTYPE_BF16) {
        for (std::int64_t i = 0; i < n_rows; ++i) out[i] = to_bf16(dot_float(w, first_row + i, x));
    } else if (!w.quantise_activations) {
        for (std::int64_t i = 0; i < n_rows; ++i) {
            decode_row(w, first_row + i, scratch.values.data());
            out[i] = to_bf16(dot(scratch.values.data(), x, w.cols));
        }
    } else if (w.dtype == DS41_DTYPE_FP8_E4M3) {
        quantise_fp8_activations(x, k, scratch.codes.data(), scratch.scales.data());
        for (std::int64_t i = 0; i < n_rows; ++i) {
            const std::int64_t row = first_row + i;
            const std::uint8_t *scales = w.scales + row / kFp8WeightBlock * w.scale_cols();
            out[i] = to_bf16(dot_fp8(row_data(w, row), scales, scratch.codes.data(), scratch.scales.data(), k));
        }
    } else {
        quantise_q8(x, k, scratch.q8.data());
        for (std::int64_t i = 0; i < n_rows; ++i)
            out[i] = to_bf16(dot_q2_k(row_data(w, first_row + i), scratch.q8.data(), k));
    }
}

} // namespace ds41::reference
