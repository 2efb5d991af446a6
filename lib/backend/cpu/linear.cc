// Products: activations into the form that a weight format wants, weight rows in chunks to whichever thread is free.
#include "backend/cpu/stages.h"

#include "numeric/fp8_linear.h"
#include "numeric/q2_k.h"

#include <algorithm>
#include <cassert>

namespace ds41 {

using namespace cpu;

namespace {

// Items that a thread should have of a product, so that all end at about the same time.
constexpr std::int64_t kItemsOfThread = 4;

Order order_of(Form form) {
    if (form == Form::kPairs) return Order::kPairs;
    return form == Form::kCodes ? Order::kCodes : Order::kNatural;
}

std::int64_t floats_of_group(std::int64_t k, int n_tokens) {
    return n_col_blocks(k) * n_tokens * kBlockCols;
}

} // namespace

Form CpuStages::form_for(const Matrix &w) const {
    if (pairs_ && w.dtype == DS41_DTYPE_BF16) return Form::kBf16;
    if (pairs_ && w.dtype == DS41_DTYPE_FP8_E4M3) return w.quantise_activations ? Form::kBf16Fp8 : Form::kBf16;
    if (w.dtype == DS41_DTYPE_BF16) return Form::kPairs;
    if (w.dtype == DS41_DTYPE_FP8_E4M3) return w.quantise_activations ? Form::kFp8 : Form::kCodes;
    if (w.dtype == DS41_DTYPE_Q2_K && w.quantise_activations) return Form::kQ8;
    return Form::kNatural;
}

int CpuStages::fp8_scales(const Bf16 *source, std::int64_t k, std::uint8_t *scales) const {
    activations_.fp8_scales(source, k, scales);
    int largest = 0;
    for (std::int64_t b = 0; b < k / kFp8WeightBlock; ++b)
        if (scales[b] != kUe8m0Nan) largest = std::max<int>(largest, scales[b]);
    return largest - 127;
}

// A token's row, all columns.
void CpuStages::put_floats(const Activations &a, int slot, const Bf16 *source, std::int64_t row) const {
    const std::int64_t token = row % a.n_tokens, group = row / a.n_tokens;
    float *values = a.values + group * floats_of_group(a.k, a.n_tokens) + token * kBlockCols;
    std::uint8_t *scales = scratch(slot);
    const bool quantised = a.form == Form::kFp8;
    const int exponent = quantised ? fp8_scales(source, a.k, scales) : 0;
    a.exponents[row] = exponent;
    for (std::int64_t b = 0; b < n_col_blocks(a.k); ++b) {
        const int n = static_cast<int>(std::min<std::int64_t>(kBlockCols, a.k - b * kBlockCols));
        const Bf16 *x = source + b * kBlockCols;
        float *out = values + b * a.n_tokens * kBlockCols;
        if (quantised)
            activations_.widen_fp8(x, n, scales + b * (kBlockCols / kFp8WeightBlock), exponent, Order::kCodes, out);
        else
            activations_.widen(x, n, order_of(a.form), out);
    }
}

// Rows of up to kTileTokens tokens, all columns.
void CpuStages::put_pairs(const Activations &a, int slot, const Bf16 *source, std::int64_t stride,
                          std::int64_t first_row, int n_rows) const {
    Bf16 *out = a.pairs + pairs_of(a.k, first_row);
    std::fill_n(a.exponents + first_row, n_rows, 0);
    if (a.form == Form::kBf16) return pairs_->put(source, stride, n_rows, a.k, out);
    auto *const block = reinterpret_cast<float *>(scratch(slot));
    auto *const rows = reinterpret_cast<Bf16 *>(block + kBlockCols);
    auto *const scales = reinterpret_cast<std::uint8_t *>(rows + pairs_of(a.k, kTileTokens));
    const std::int64_t stride_rows = padded_cols(a.k);
    for (int i = 0; i < n_rows; ++i) {
        const Bf16 *row = source + i * stride;
        const int exponent = fp8_scales(row, a.k, scales);
        a.exponents[first_row + i] = exponent;
        for (std::int64_t at = 0; at < a.k; at += kBlockCols) {
            const int n = static_cast<int>(std::min<std::int64_t>(kBlockCols, a.k - at));
            activations_.widen_fp8(row + at, n, scales + at / kFp8WeightBlock, exponent, Order::kNatural, block);
            activations_.round(block, n, rows + i * stride_rows + at); // exact: codes times powers of two
        }
    }
    pairs_->put(rows, stride_rows, n_rows, a.k, out);
}

Activations CpuStages::take_activations(Buffer buffer, const Matrix &matrix, const Bf16 *x, std::int64_t stride,
                                        int n_tokens, int n_groups) {
    const std::int64_t k = matrix.cols;
    Activations a{form_for(matrix), k, n_tokens, get<float>(buffer), get<int>(kExponents), get<Bf16>(buffer), {}};
    if (buffer == kX1) a.exponents += blocks_[kExponents].n_bytes() / sizeof(int) / 2;
    const std::int64_t n_rows = std::int64_t{n_groups} * n_tokens;

    if (a.form == Form::kQ8) {
        auto *const codes = get<std::int8_t>(buffer);
        auto *const d = reinterpret_cast<float *>(codes + n_rows * k);
        float *const sums = d + n_rows * (k / kQ8Block);
        a.q8 = {codes, d, sums};
        pool_.run(n_rows, k * 4, [&](int, std::int64_t row) {
            const Bf16 *source = x + row % n_tokens * stride + row / n_tokens * k;
            activations_.quantise_q8(source, k, codes + row * k, d + row * (k / kQ8Block), sums + row * (k / 4));
        });
    } else if (a.form == Form::kBf16 || a.form == Form::kBf16Fp8) {
        const std::int64_t n_tiles = (n_tokens + kTileTokens - 1) / kTileTokens;
        const std::int64_t cost = (a.form == Form::kBf16 ? k / 4 : k * 4) * std::min(n_tokens, kTileTokens);
        pool_.run(n_groups * n_tiles, cost, [&](int slot, std::int64_t item) {
            const std::int64_t first = item % n_tiles * kTileTokens, group = item / n_tiles;
            const int n = static_cast<int>(std::min<std::int64_t>(kTileTokens, n_tokens - first));
            put_pairs(a, slot, x + first * stride + group * k, stride, group * n_tokens + first, n);
        });
    } else {
        pool_.run(n_rows, k * 4, [&](int slot, std::int64_t row) {
            put_floats(a, slot, x + row % n_tokens * stride + row / n_tokens * k, row);
        });
    }
    return a;
}

// Rows [at, at + n_rows), of all tokens.
void CpuStages::multiply_rows(const Product &p, std::int64_t at, int n_rows, int slot) const {
    const Matrix &w = *p.matrix;
    const Activations &x = *p.x;
    assert(x.form == form_for(w) && x.k == w.cols);
    const std::int64_t stride = (n_rows + kChunkRows - 1) / kChunkRows * kChunkRows;
    auto *const memory = reinterpret_cast<float *>(scratch(slot));
    DotArgs a{};
    a.row_bytes = weight_row_bytes(w.dtype, w.cols);
    a.first_row = p.first_row + at;
    a.weights = w.data + static_cast<std::size_t>(a.first_row) * a.row_bytes;
    a.scales = w.scales;
    a.k = w.cols;
    a.n_rows = n_rows;
    a.n_tokens = x.n_tokens;
    if (x.form == Form::kQ8) {
        const std::int64_t rows = p.group * x.n_tokens;
        a.q8 = {x.q8.codes + rows * x.k, x.q8.d + rows * (x.k / kQ8Block), x.q8.sums + rows * (x.k / 4)};
    } else {
        a.x = x.values + p.group * floats_of_group(x.k, x.n_tokens);
        a.pairs = x.pairs + pairs_of(x.k, p.group * x.n_tokens);
        a.exponents = x.exponents + p.group * x.n_tokens;
    }
    a.out = memory;
    a.panel = a.out + x.n_tokens * stride;
    a.sums = a.panel + kPanelFloats;
    a.factors = a.sums + kChunkRows * x.n_tokens * kMostLanes;
    a.scaled = a.factors + padded_cols(x.k) / 64 * kMostLanes;
    switch (w.dtype) {
    case DS41_DTYPE_BF16:
        (pairs_ ? pairs_->bf16 : dot_.bf16)(a);
        break;
    case DS41_DTYPE_F32:
        dot_.f32(a);
        break;
    case DS41_DTYPE_FP8_E4M3:
        (pairs_ ? pairs_->fp8 : dot_.fp8)(a);
        break;
    default:
        assert(w.dtype == DS41_DTYPE_Q2_K);
        (x.form == Form::kQ8 ? q2_k_.q2_k : dot_.q2_k_plain)(a);
        break;
    }
    for (int t = 0; t < x.n_tokens; ++t) {
        const float *sums = a.out + t * stride;
        const std::int64_t target = t * p.stride_out + at;
        if (p.out)
            activations_.round(sums, a.n_rows, p.out + target);
        else
            std::copy_n(sums, a.n_rows, p.out_f32 + target);
    }
}

int CpuStages::most_rows(const Product &p) const {
    const bool more = p.x->form == Form::kBf16 && p.matrix->dtype == DS41_DTYPE_BF16 && p.x->n_tokens > kFewTokens;
    return more ? pairs_->most_bf16_rows : kChunkRows;
}

void CpuStages::multiply(const Product *products, int n_products) {
    std::int64_t n_rows = 0, n_values = 0;
    for (int i = 0; i < n_products; ++i) {
        n_rows += products[i].n_rows;
        n_values += products[i].n_rows * products[i].x->k;
    }
    // An item is a chunk, or as many as a kernel takes while each thread has some items.
    const std::int64_t fair = n_rows / (kChunkRows * kItemsOfThread * pool_.n_slots());
    const auto rows_of = [&](const Product &p) {
        return kChunkRows * std::clamp<std::int64_t>(fair, 1, most_rows(p) / kChunkRows);
    };
    const auto items_of = [&](const Product &p) { return (p.n_rows + rows_of(p) - 1) / rows_of(p); };
    std::int64_t n_items = 0;
    for (int i = 0; i < n_products; ++i) n_items += items_of(products[i]);
    const std::int64_t cost = n_values * (1 + products[0].x->n_tokens) / 2 / n_items;
    pool_.run(n_items, cost, [&](int slot, std::int64_t item) {
        const Product *p = products;
        for (; item >= items_of(*p); ++p) item -= items_of(*p);
        const std::int64_t at = item * rows_of(*p);
        multiply_rows(*p, at, static_cast<int>(std::min(rows_of(*p), p->n_rows - at)), slot);
    });
}

} // namespace ds41
