// Products: activations into the form that a weight format wants, weight rows in chunks to whichever thread is free.
#include "backend/cpu/stages.h"

#include "numeric/fp8_linear.h"
#include "numeric/q2_k.h"

#include <algorithm>
#include <cassert>

namespace ds41 {

using namespace cpu;

namespace {

Form form_for(const Matrix &w) {
    if (w.dtype == DS41_DTYPE_BF16) return Form::kPairs;
    if (w.dtype == DS41_DTYPE_FP8_E4M3) return w.quantise_activations ? Form::kFp8 : Form::kCodes;
    if (w.dtype == DS41_DTYPE_Q2_K && w.quantise_activations) return Form::kQ8;
    return Form::kNatural;
}

Order order_of(Form form) {
    if (form == Form::kPairs) return Order::kPairs;
    return form == Form::kCodes ? Order::kCodes : Order::kNatural;
}

std::int64_t floats_of_group(std::int64_t k, int n_tokens) {
    return n_col_blocks(k) * n_tokens * kBlockCols;
}

// One bit pattern for all NaN, whichever operand an instruction took it from.
Bf16 rounded(float value) {
    return is_nan(value) ? Bf16{0x7fc0} : to_bf16(value);
}

} // namespace

bool same_form(const Matrix &a, const Matrix &b) {
    return form_for(a) == form_for(b);
}

Activations CpuStages::take_activations(Buffer buffer, const Matrix &matrix, const Bf16 *x, std::int64_t stride,
                                        int n_tokens, int n_groups) {
    const std::int64_t k = matrix.cols;
    Activations a{form_for(matrix), k, n_tokens, get<float>(buffer), get<int>(kExponents), {}};
    if (buffer == kX1) a.exponents += blocks_[kExponents].n_bytes() / sizeof(int) / 2;

    if (a.form == Form::kQ8) {
        auto *const codes = get<std::int8_t>(buffer);
        auto *const d = reinterpret_cast<float *>(codes + n_groups * n_tokens * k);
        float *const sums = d + n_groups * n_tokens * (k / kQ8Block);
        a.q8 = {codes, d, sums};
        pool_.run(std::int64_t{n_groups} * n_tokens, k * 4, [&](int, std::int64_t row) {
            const Bf16 *source = x + row % n_tokens * stride + row / n_tokens * k;
            activations_.quantise_q8(source, k, codes + row * k, d + row * (k / kQ8Block), sums + row * (k / 4));
        });
        return a;
    }
    pool_.run(std::int64_t{n_groups} * n_tokens, k * 4, [&](int slot, std::int64_t row) {
        const std::int64_t token = row % n_tokens, group = row / n_tokens;
        const Bf16 *source = x + token * stride + group * k;
        float *values = a.values + group * floats_of_group(k, n_tokens) + token * kBlockCols;
        std::uint8_t *scales = nullptr;
        int exponent = 0;
        if (a.form == Form::kFp8) {
            scales = scratch(slot);
            activations_.fp8_scales(source, k, scales);
            int largest = 0;
            for (std::int64_t b = 0; b < k / kFp8WeightBlock; ++b)
                if (scales[b] != kUe8m0Nan) largest = std::max<int>(largest, scales[b]);
            exponent = largest - 127;
        }
        a.exponents[row] = exponent;
        for (std::int64_t b = 0; b < n_col_blocks(k); ++b) {
            const int n = static_cast<int>(std::min<std::int64_t>(kBlockCols, k - b * kBlockCols));
            float *out = values + b * n_tokens * kBlockCols;
            if (a.form == Form::kFp8)
                activations_.widen_fp8(source + b * kBlockCols, n, scales + b * (kBlockCols / kFp8WeightBlock),
                                       exponent, out);
            else
                activations_.widen(source + b * kBlockCols, n, order_of(a.form), out);
        }
    });
    return a;
}

void CpuStages::multiply_chunk(const Product &p, std::int64_t chunk, int slot) const {
    const Matrix &w = *p.matrix;
    const Activations &x = *p.x;
    assert(x.form == form_for(w) && x.k == w.cols);
    const std::int64_t at = chunk * kChunkRows;
    auto *const memory = reinterpret_cast<float *>(scratch(slot));
    DotArgs a{};
    a.row_bytes = weight_row_bytes(w.dtype, w.cols);
    a.first_row = p.first_row + at;
    a.weights = w.data + static_cast<std::size_t>(a.first_row) * a.row_bytes;
    a.scales = w.scales;
    a.k = w.cols;
    a.n_rows = static_cast<int>(std::min<std::int64_t>(kChunkRows, p.n_rows - at));
    a.n_tokens = x.n_tokens;
    if (x.form == Form::kQ8) {
        const std::int64_t rows = p.group * x.n_tokens;
        a.q8 = {x.q8.codes + rows * x.k, x.q8.d + rows * (x.k / kQ8Block), x.q8.sums + rows * (x.k / 4)};
    } else {
        a.x = x.values + p.group * floats_of_group(x.k, x.n_tokens);
        a.exponents = x.exponents + p.group * x.n_tokens;
    }
    a.out = memory;
    a.panel = a.out + x.n_tokens * kChunkRows;
    a.sums = a.panel + kMostPanelRows * kBlockCols;
    a.factors = a.sums + kChunkRows * x.n_tokens * kMostLanes;
    a.scaled = a.factors + padded_cols(x.k) / 64 * kMostLanes;
    switch (w.dtype) {
    case DS41_DTYPE_BF16:
        dot_.bf16(a);
        break;
    case DS41_DTYPE_F32:
        dot_.f32(a);
        break;
    case DS41_DTYPE_FP8_E4M3:
        dot_.fp8(a);
        break;
    default:
        assert(w.dtype == DS41_DTYPE_Q2_K);
        (x.form == Form::kQ8 ? q2_k_.q2_k : dot_.q2_k_plain)(a);
        break;
    }
    for (int t = 0; t < x.n_tokens; ++t) {
        const float *sums = a.out + t * kChunkRows;
        const std::int64_t target = t * p.stride_out + at;
        for (int r = 0; r < a.n_rows; ++r) {
            if (p.out)
                p.out[target + r] = rounded(sums[r]);
            else
                p.out_f32[target + r] = sums[r];
        }
    }
}

void CpuStages::multiply(const Product *products, int n_products) {
    const auto chunks_of = [](const Product &p) { return (p.n_rows + kChunkRows - 1) / kChunkRows; };
    std::int64_t n_chunks = 0, n_values = 0;
    for (int i = 0; i < n_products; ++i) {
        n_chunks += chunks_of(products[i]);
        n_values += products[i].n_rows * products[i].x->k;
    }
    const std::int64_t cost = n_values * (1 + products[0].x->n_tokens) / 2 / n_chunks;
    pool_.run(n_chunks, cost, [&](int slot, std::int64_t chunk) {
        const Product *p = products;
        for (; chunk >= chunks_of(*p); ++p) chunk -= chunks_of(*p);
        multiply_chunk(*p, chunk, slot);
    });
}

} // namespace ds41
