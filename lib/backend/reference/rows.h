// What the reference stages do to single rows: products, norms, rotations, exponentials.
#pragma once

#include "backend/reference/stages.h"

#include <algorithm>
#include <cmath>

namespace ds41::reference {

// out[i] = bf16(W[first_row + i] . x) for n_rows rows, by the arithmetic of W's format. x has W.cols values.
void linear(const Matrix &w, std::int64_t first_row, std::int64_t n_rows, const Bf16 *x, Bf16 *out,
            LinearScratch &scratch);

// The same product of one row in f32 without the rounding; F32 and BF16 weights only.
float dot_float(const Matrix &w, std::int64_t row, const Bf16 *x);

// bf16(w * (x * rsqrt(mean(x^2) + eps))), in f32 but for the sum; in place. eps stands inside the root.
// The squares are summed in f64, where they are exact, and the mean is rounded once: in f32 a sum of 512 squares in
// index order is off by enough units in the last place to flip a selected group now and then, and every order is off by
// others.
inline void rms_norm(Bf16 *x, std::int64_t n, const float *w, float eps) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < n; ++i) sum += double{to_f32(x[i])} * double{to_f32(x[i])};
    const float scale = 1.0f / std::sqrt(static_cast<float>(sum / static_cast<double>(n)) + eps);
    for (std::int64_t i = 0; i < n; ++i) x[i] = to_bf16(w[i] * (to_f32(x[i]) * scale));
}

enum class Turn { kForward, kInverse };

// Rotate the last values of a row of n: adjacent pairs are complex numbers.
inline void rotate(Bf16 *row, std::int64_t n, const RopeTable &rope, std::int64_t pos, Turn turn) {
    Bf16 *tail = row + n - 2 * rope.n_pairs();
    for (int k = 0; k < rope.n_pairs(); ++k) {
        float cosine, sine;
        rope.angle(pos, k, cosine, sine);
        if (turn == Turn::kInverse) sine = -sine;
        const float re = to_f32(tail[2 * k]), im = to_f32(tail[2 * k + 1]);
        tail[2 * k] = to_bf16(re * cosine - im * sine);
        tail[2 * k + 1] = to_bf16(re * sine + im * cosine);
    }
}

// Rounded once from f64, so that the C library's version does not show.
inline float exp_f32(float x) {
    return static_cast<float>(std::exp(double{x}));
}

// Per value, softmax of the gates over the group weighs the kv products. Gate and kv are [ratio][n].
inline void pool_group(const float *kv, const float *gate, int ratio, int n, Bf16 *latent) {
    for (int e = 0; e < n; ++e) {
        float max = gate[e];
        for (int r = 1; r < ratio; ++r) max = std::max(max, gate[std::int64_t{r} * n + e]);
        float sum = 0.0f;
        for (int r = 0; r < ratio; ++r) sum += exp_f32(gate[std::int64_t{r} * n + e] - max);
        float pooled = 0.0f;
        for (int r = 0; r < ratio; ++r)
            pooled += kv[std::int64_t{r} * n + e] * (exp_f32(gate[std::int64_t{r} * n + e] - max) / sum);
        latent[e] = to_bf16(pooled);
    }
}

} // namespace ds41::reference
