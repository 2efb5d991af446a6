// The weights of one layer, checked, in the backend's memory.
#pragma once

#include "backend/memory.h"
#include "model/config.h"
#include "numeric/fp8_linear.h"

#include <array>
#include <memory>

namespace ds41 {

// A projection [rows, cols]. Each format has one arithmetic, chosen when the layer is set:
//   F32, BF16      f32 products and sums
//   FP8_E4M3       fp8_linear.h, or with plain activations the exact values of the weights
//   Q2_K           q2_k.h, likewise
struct Matrix {
    const std::uint8_t *data = nullptr;
    const std::uint8_t *scales = nullptr; // FP8_E4M3: [ceil(rows / 32), cols / 32]
    std::int64_t rows = 0;
    std::int64_t cols = 0;
    ds41_dtype dtype = DS41_DTYPE_NONE;
    bool quantise_activations = false; // FP8_E4M3 and Q2_K

    std::int64_t scale_cols() const { return cols / kFp8WeightBlock; }
};

// Bytes of `cols` values of a row in a weight's dtype.
std::size_t weight_row_bytes(ds41_dtype dtype, std::int64_t cols);

struct LayerWeights {
    Matrix wq_a, wq_b, wkv, wo_a, wo_b;
    const float *q_norm = nullptr, *kv_norm = nullptr, *attn_sink = nullptr;

    Matrix compressor_wkv, compressor_wgate; // kv sources; wgate for ratio > 1
    const float *compressor_norm = nullptr;
    Matrix indexer_wk; // kv sources that are index sources
    const float *indexer_k_norm = nullptr;
    Matrix indexer_wq_b, indexer_weights_proj; // index sources

    static constexpr std::size_t kMaxBlocks = 25; // 10 matrices, their scales, 5 vectors
    std::array<Block, kMaxBlocks> blocks;         // what is not borrowed
    std::size_t n_blocks = 0;
    std::shared_ptr<const void> lender; // keeps borrowed memory alive; null where the caller does

    std::size_t n_bytes() const;
    std::uint8_t *adopt(Block &&block);
};

// Where the data of matrices stands when weights are taken over.
enum class WeightSource {
    kCopy,    // host memory; copied
    kBorrow,  // host memory; read where it stands if the backend can, otherwise copied
    kInPlace, // the backend's memory, for as long as the model lives; scales and vectors are host memory and copied
};

// Check `weights` against the layer's role and take them over; their `ownership` is not looked at.
LayerWeights take_weights(const Config &config, int layer, const ds41_layer_weights &weights, WeightSource source,
                          const Memory &memory);

} // namespace ds41
