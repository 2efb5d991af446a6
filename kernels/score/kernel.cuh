// bf16( sum_h bf16( relu(bf16(q_h . k)) * w_h ) ) of packed fp4 queries and keys, one key a thread at a time.
// Numerics: twice an e2m1 value is a small integer, so a block of 32 products is summed in integers, exactly; blocks
// are scaled by powers of two and added in ascending order, which f32 does exactly but for extreme scales. Heads are
// added in ascending order in f32. A scale of NaN makes the dot product NaN, and the score one that is never taken.
#pragma once

#include "common/rows.cuh"
#include "score/config.h"
#include "score/key.cuh"
#include "score/params.h"

#include <cmath>

namespace ds41::kernels {

// 1.5 * 2^23: an integer added to its bits is an integer added to its value. Conversions have a quarter of the rate of
// additions.
constexpr int kIntegerBits = 0x4b400000;
constexpr float kIntegerZero = 0x1.8p+23f;

// Twice the values of four e2m1 codes, in the lower 16 bits, as signed bytes.
__device__ __forceinline__ int expand_codes(std::uint32_t codes) {
    const std::uint32_t magnitudes = codes & 0x7777u;
    const std::uint32_t positive = simt::byte_perm(0x03020100u, 0x0c080604u, magnitudes);
    const std::uint32_t negative = simt::byte_perm(0xfdfeff00u, 0xf4f8fafcu, magnitudes);
    const std::uint32_t signs = simt::byte_perm(0u, 0xffffffffu, codes >> 1 & 0x4444u);
    return static_cast<int>((positive & ~signs) | (negative & signs));
}

// Bytes [4 w, 4 w + 4) of a row, zeros beyond its end. Rows of a multiple of 4 bytes are aligned to that.
__device__ __forceinline__ std::uint32_t load_row_word(const std::uint8_t *row, int w, int row_bytes) {
    if (row_bytes % 4 == 0) return simt::load(reinterpret_cast<const std::uint32_t *>(row) + w);
    std::uint32_t word = 0;
    for (int i = 0; i < 4 && 4 * w + i < row_bytes; ++i)
        word |= static_cast<std::uint32_t>(simt::load(row + 4 * w + i)) << (8 * i);
    return word;
}

// The group of a token's column; -1 behind its last kept block.
__device__ __forceinline__ std::int64_t group_of_column(const std::int32_t *blocks, int block_size,
                                                        std::int64_t column) {
    if (!blocks) return column;
    const std::int64_t block = simt::load(blocks + column / block_size);
    return block < 0 ? -1 : block * block_size + column % block_size;
}

// What a token scores.
struct ScoreToken {
    std::int64_t n_visible;
    std::int64_t n_columns;     // at most
    std::uint8_t *const *pages; // of keys
    const std::int32_t *blocks; // [n_block_slots] or null
};

__device__ __forceinline__ ScoreToken score_token(const ScoreParams &p, int i, const Token &token) {
    ScoreToken t;
    t.n_visible = (token.pos + 1) / p.ratio;
    t.blocks = p.blocks ? p.blocks + std::int64_t{p.first + i} * p.n_block_slots : nullptr;
    t.n_columns = p.blocks ? std::int64_t{p.n_block_slots} * p.block_size : t.n_visible;
    t.pages = simt::load(&p.spans[token.span].index_keys);
    return t;
}

__device__ __forceinline__ void add_head(float &sum, float dot, float weight) {
    dot = round_bf16(dot);
    if (dot < 0.0f) dot = 0.0f; // a NaN stays
    sum += round_bf16(dot * weight);
}

__device__ __forceinline__ void write_score(const ScoreParams &p, int i, std::int64_t column, std::int64_t group,
                                            float sum) {
    const Bf16 score = to_bf16(sum);
    simt::store(p.keys + i * p.stride_keys + column, sort_key(score));
    if (p.tap) simt::store(p.tap + i * p.stride_tap + group, to_f32(score));
}

// Keys of at most kBlocks blocks. A tile's rows are copied to shared memory in the order in which they lie, and from
// there each thread takes its own, expanded, into registers; blocks that the rows lack count as zeros.
template <int kBlocks>
__global__ void __launch_bounds__(kScoreThreads, 3) score_keys(const __grid_constant__ ScoreParams p) {
    using Config = ScoreConfig<kBlocks>;
    constexpr int kKeys = Config::kKeys, kTile = Config::kTile, kRowWords = Config::kRowWords;
    constexpr int kCodeWords = Config::kCodeWords;

    // grid (token, columns), block 128
    const int i = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
    const Token own = load_token(p.tokens, p.first + i);
    if (is_padding(own)) return;
    const ScoreToken token = score_token(p, i, own);
    const int n_blocks = p.index_head_dim / kIndexKeyBlock;
    const int row_bytes = n_blocks * 17, row_words = (row_bytes + 3) / 4;
    const int n_staged_heads = p.index_n_heads < Config::kHeads ? p.index_n_heads : Config::kHeads;

    SIMT_DYNAMIC_SHARED(pool);
    const auto rows = pool.take<const std::uint8_t *>(kTile); // of the tile's columns; null: no score
    const auto words = pool.take<std::uint32_t>(kTile * kRowWords);
    const auto queries = pool.take<int>(static_cast<std::size_t>(n_staged_heads * kCodeWords));
    const auto query_scales = pool.take<float>(static_cast<std::size_t>(n_staged_heads * kBlocks)); // quartered
    const auto weights = pool.take<float>(static_cast<std::size_t>(n_staged_heads));

    const auto stage_queries = [&](int first_head) {
        const int left = p.index_n_heads - first_head, n = left < n_staged_heads ? left : n_staged_heads;
        const std::int64_t head = std::int64_t{i} * p.index_n_heads + first_head;
        const std::uint8_t *iq = p.iq + head * row_bytes;
        for (int at = thread; at < n * (kCodeWords / 2); at += kScoreThreads) {
            const int h = at / (kCodeWords / 2), w = at % (kCodeWords / 2);
            const std::uint32_t codes = w < 4 * n_blocks ? load_row_word(iq + h * row_bytes, w, row_bytes) : 0u;
            queries[2 * at] = expand_codes(codes);
            queries[2 * at + 1] = expand_codes(codes >> 16);
        }
        for (int at = thread; at < n * kBlocks; at += kScoreThreads) {
            const int h = at / kBlocks, b = at % kBlocks;
            query_scales[at] =
                b < n_blocks ? 0.25f * ue8m0_to_f32(simt::load(iq + h * row_bytes + 16 * n_blocks + b)) : 0.0f;
        }
        for (int h = thread; h < n; h += kScoreThreads) weights[h] = to_f32(simt::load(p.weights + head + h));
    };
    const bool stage_once = n_staged_heads == p.index_n_heads;
    if (stage_once) stage_queries(0);

    for (std::int64_t tile = std::int64_t{blockIdx.y} * kTile; tile < token.n_columns;
         tile += std::int64_t{gridDim.y} * kTile) {
        if (group_of_column(token.blocks, p.block_size, tile) < 0) break;

        std::int64_t groups[kKeys]; // -1: no such column
        SIMT_UNROLL
        for (int k = 0; k < kKeys; ++k) {
            const int column = k * kScoreThreads + thread;
            groups[k] =
                tile + column < token.n_columns ? group_of_column(token.blocks, p.block_size, tile + column) : -1;
            const bool seen = groups[k] >= 0 && groups[k] < token.n_visible;
            rows[column] = seen ? row_address(token.pages, groups[k], row_bytes) : nullptr;
        }
        __syncthreads();
        // Neighbouring threads copy neighbouring words, of one row and then of the next.
        int row = thread / row_words, word = thread % row_words;
        while (row < kTile) {
            const std::uint8_t *const source = rows[row];
            if (source) words[row * kRowWords + word] = load_row_word(source, word, row_bytes);
            row += kScoreThreads / row_words;
            word += kScoreThreads % row_words;
            if (word >= row_words) {
                word -= row_words;
                ++row;
            }
        }
        __syncthreads();

        int codes[kKeys][kCodeWords];
        float scales[kKeys][kBlocks];
        float sums[kKeys];
        SIMT_UNROLL
        for (int k = 0; k < kKeys; ++k) {
            sums[k] = 0.0f;
            const bool seen = groups[k] >= 0 && groups[k] < token.n_visible;
            const int at = (k * kScoreThreads + thread) * kRowWords;
            SIMT_UNROLL
            for (int b = 0; b < kBlocks; ++b) {
                const bool there = seen && b < n_blocks;
                SIMT_UNROLL
                for (int w = 0; w < 4; ++w) {
                    const std::uint32_t packed = there ? words[at + 4 * b + w] : 0u;
                    codes[k][8 * b + 2 * w] = expand_codes(packed);
                    codes[k][8 * b + 2 * w + 1] = expand_codes(packed >> 16);
                }
                const std::uint32_t packed = there ? words[at + 4 * n_blocks + b / 4] : 0u;
                scales[k][b] = there ? ue8m0_to_f32(static_cast<std::uint8_t>(packed >> (8 * (b % 4)))) : 0.0f;
            }
        }

        for (int first_head = 0; first_head < p.index_n_heads; first_head += n_staged_heads) {
            if (!stage_once) {
                __syncthreads(); // of the former heads nothing is needed any more
                stage_queries(first_head);
                __syncthreads();
            }
            const int left = p.index_n_heads - first_head, n = left < n_staged_heads ? left : n_staged_heads;
            for (int h = 0; h < n; ++h) {
                float dots[kKeys] = {};
                SIMT_UNROLL
                for (int b = 0; b < kBlocks; ++b) {
                    int dot[kKeys];
                    SIMT_UNROLL
                    for (int k = 0; k < kKeys; ++k) dot[k] = kIntegerBits;
                    SIMT_UNROLL
                    for (int w = 8 * b; w < 8 * b + 8; w += 4) {
                        const int4 q = queries.template load<int4>(h * kCodeWords + w);
                        SIMT_UNROLL
                        for (int k = 0; k < kKeys; ++k) {
                            dot[k] = simt::dot4(codes[k][w], q.x, dot[k]);
                            dot[k] = simt::dot4(codes[k][w + 1], q.y, dot[k]);
                            dot[k] = simt::dot4(codes[k][w + 2], q.z, dot[k]);
                            dot[k] = simt::dot4(codes[k][w + 3], q.w, dot[k]);
                        }
                    }
                    const float scale = query_scales[h * kBlocks + b];
                    SIMT_UNROLL
                    for (int k = 0; k < kKeys; ++k) {
                        const float sum = float_from_bits(static_cast<std::uint32_t>(dot[k])) - kIntegerZero;
                        dots[k] = fmaf(sum * scale, scales[k][b], dots[k]);
                    }
                }
                const float weight = weights[h];
                SIMT_UNROLL
                for (int k = 0; k < kKeys; ++k) add_head(sums[k], dots[k], weight);
            }
        }

        SIMT_UNROLL
        for (int k = 0; k < kKeys; ++k) {
            const std::int64_t column = tile + k * kScoreThreads + thread;
            if (groups[k] < 0) continue;
            if (groups[k] < token.n_visible)
                write_score(p, i, column, groups[k], sums[k]);
            else // the end of the last block
                simt::store(p.keys + i * p.stride_keys + column, kNeverTaken);
        }
        // The next tile's addresses are written while other threads still take rows: those are behind the barrier of
        // the copy, and words are written after the next one.
    }
}

// Keys of any size, with nothing staged: caches serve what is read again and again.
__global__ void __launch_bounds__(kScoreThreads, 8) score_long_keys(const __grid_constant__ ScoreParams p) {
    // grid (token, columns), block 128
    const int i = static_cast<int>(blockIdx.x);
    const Token own = load_token(p.tokens, p.first + i);
    if (is_padding(own)) return;
    const ScoreToken token = score_token(p, i, own);
    const int n_blocks = p.index_head_dim / kIndexKeyBlock, row_bytes = n_blocks * 17;
    for (std::int64_t column = std::int64_t{blockIdx.y} * kScoreThreads + threadIdx.x; column < token.n_columns;
         column += std::int64_t{gridDim.y} * kScoreThreads) {
        const std::int64_t group = group_of_column(token.blocks, p.block_size, column);
        if (group < 0) break;
        if (group >= token.n_visible) {
            simt::store(p.keys + i * p.stride_keys + column, kNeverTaken);
            continue;
        }
        const std::uint8_t *const key = row_address(token.pages, group, row_bytes);
        float sum = 0.0f;
        for (int h = 0; h < p.index_n_heads; ++h) {
            const std::int64_t head = std::int64_t{i} * p.index_n_heads + h;
            const std::uint8_t *const query = p.iq + head * row_bytes;
            float dot = 0.0f;
            for (int b = 0; b < n_blocks; ++b) {
                int products = kIntegerBits;
                for (int w = 4 * b; w < 4 * b + 4; ++w) {
                    const std::uint32_t k = load_row_word(key, w, row_bytes), q = load_row_word(query, w, row_bytes);
                    products = simt::dot4(expand_codes(k), expand_codes(q), products);
                    products = simt::dot4(expand_codes(k >> 16), expand_codes(q >> 16), products);
                }
                const float block = float_from_bits(static_cast<std::uint32_t>(products)) - kIntegerZero;
                const float query_scale = 0.25f * ue8m0_to_f32(simt::load(query + 16 * n_blocks + b));
                dot = fmaf(block * query_scale, ue8m0_to_f32(simt::load(key + 16 * n_blocks + b)), dot);
            }
            add_head(sum, dot, to_f32(simt::load(p.weights + head)));
        }
        write_score(p, i, column, group, sum);
    }
}

// Every value of the tap's rows to -inf, before scores come.
__global__ void __launch_bounds__(kScoreThreads) clear_tap(const __grid_constant__ ScoreParams p) {
    // grid (token, columns), block 128
    float *const row = p.tap + static_cast<std::int64_t>(blockIdx.x) * p.stride_tap;
    for (std::int64_t group = std::int64_t{blockIdx.y} * kScoreThreads + threadIdx.x; group < p.stride_tap;
         group += std::int64_t{gridDim.y} * kScoreThreads)
        simt::store(row + group, float_from_bits(kInfBits | kSignBit));
}

} // namespace ds41::kernels
