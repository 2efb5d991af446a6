// Attention of a token over its rows in chunks of kAttendChunkRows, each of which gives per head a maximum, a sum of
// weights and weighted sums of the rows' values, whatever the other chunks hold; chunks are then joined in ascending
// order. Either one thread block takes all chunks and joins them as it goes, or several leave theirs in a workspace and
// a second kernel joins them: the same operations, so the same bits.
// Numerics: rows are unpacked to the bf16 values that they stand for, exactly. All else is f32 with fused multiply-adds
// in a fixed order that only head_dim and the number of rows decide. o is rounded to bf16, rotated back, rounded again.
// Rows that are absent are not in a chunk: a weight of zero would still let their NaN through.
#pragma once

#include "attend/config.h"
#include "attend/params.h"
#include "attend/rows.cuh"
#include "common/exp.cuh"
#include "common/quantised.cuh"
#include "common/rows.cuh"
#include "rows/commit.cuh"

#include <cmath>

namespace ds41::kernels {

// ---- Joining.

__device__ __forceinline__ float minus_infinity() {
    return float_from_bits(kSignBit | kInfBits);
}

// x - max, where all may be -inf.
__device__ __forceinline__ float weight_of(float x, float max) {
    return exp_f32(x - (max == minus_infinity() ? 0.0f : max));
}

// What some rows of one head come to.
struct Softmax {
    float max, sum;
};

// By what the sums so far, and those that come, are multiplied.
struct Joint {
    float old_weight, new_weight;
};

__device__ __forceinline__ Joint join(Softmax &total, const Softmax &chunk, bool is_first) {
    if (is_first) {
        total = chunk;
        return {0.0f, 1.0f};
    }
    const float max = fmaxf(total.max, chunk.max);
    const Joint joint{weight_of(total.max, max), weight_of(chunk.max, max)};
    total = {max, fmaf(chunk.sum, joint.new_weight, total.sum * joint.old_weight)};
    return joint;
}

__device__ __forceinline__ float join_value(float total, float chunk, const Joint &joint) {
    return fmaf(chunk, joint.new_weight, total * joint.old_weight);
}

// What the weighted sums are multiplied by, and then divided by; zero means that o is zero. Without rows `total` is
// zeros, and so is the quotient. The sink has no value, only a weight: that of -inf is zero.
struct Division {
    float factor, denominator;
};

__device__ __forceinline__ Division divide_by(const Softmax &total, float sink) {
    if (!(sink < float_from_bits(kInfBits))) return {0.0f, 0.0f};
    const float max = fmaxf(total.max, sink);
    const float factor = exp_f32(total.max - max);
    return {factor, fmaf(total.sum, factor, exp_f32(sink - max))};
}

// Four columns of o of one head, before and after the rotation back, two to a word.
struct Finished {
    uint2 before, rotated;
};

// From weighted sums: rounded, rotated back, rounded again.
__device__ __forceinline__ Finished finish(const AttendParams &p, int i, int column, const float (&sums)[4],
                                           const Division &division) {
    std::uint32_t words[2];
    SIMT_UNROLL
    for (int pair = 0; pair < 2; ++pair) {
        float values[2];
        SIMT_UNROLL
        for (int c = 0; c < 2; ++c)
            values[c] =
                division.denominator != 0.0f ? sums[2 * pair + c] * division.factor / division.denominator : 0.0f;
        words[pair] = pack_bf16(values[0], values[1]);
    }
    Finished o;
    o.before = {words[0], words[1]};
    SIMT_UNROLL
    for (int pair = 0; pair < 2; ++pair) {
        const int rotated = column + 2 * pair - (p.head_dim - p.rope_dim);
        if (rotated < 0) continue;
        const std::int64_t angle = std::int64_t{p.first + i} * p.rope_dim + rotated;
        const auto turn = simt::load(reinterpret_cast<const float2 *>(p.rope + angle)); // cosine, sine
        const float re = low_bf16(words[pair]), im = high_bf16(words[pair]);
        words[pair] = pack_bf16(re * turn.x + im * turn.y, im * turn.x - re * turn.y);
    }
    o.rotated = {words[0], words[1]};
    return o;
}

__device__ __forceinline__ void store_o(const AttendParams &p, int i, int head, int column, const Finished &o) {
    const std::int64_t at = (std::int64_t{i} * p.n_heads + head) * p.head_dim + column;
    if (p.o_before) simt::store(reinterpret_cast<uint2 *>(p.o_before + at), o.before);
    if (p.o) simt::store(reinterpret_cast<uint2 *>(p.o + at), o.rotated);
}

// In all forms that are wanted. Lanes share a block to quantise: all of the warp come, with neighbouring columns, those
// too whose columns are not `there`.
__device__ __forceinline__ void write_o(const AttendParams &p, int i, int head, int column, const Finished &o,
                                        bool there) {
    if (there) store_o(p, i, head, column, o);
    if (p.quantised.form != QuantisedForm::kNone) {
        const float values[4] = {low_bf16(o.rotated.x), high_bf16(o.rotated.x), low_bf16(o.rotated.y),
                                 high_bf16(o.rotated.y)};
        quantise_lanes(p.quantised, i, head * p.head_dim + column, values, there);
    }
}

// Where a chunk's results stand in the workspace: sums [n, n_chunks, n_heads, head_dim], then maxima and sums of
// weights [n, n_chunks, n_heads, 2].
struct Workspace {
    float *sums;
    float *softmax;
};

__device__ __forceinline__ Workspace workspace_at(const AttendParams &p, int n_chunks, int i, int chunk, int head) {
    const std::int64_t row = (std::int64_t{i} * n_chunks + chunk) * p.n_heads + head;
    return {p.workspace + row * p.head_dim,
            p.workspace + std::int64_t{p.n} * n_chunks * p.n_heads * p.head_dim + 2 * row};
}

// ---- A token's rows.

struct RowList {
    std::int64_t pos, start_pos; // of the token; of its span in this step
    std::int64_t first_new;      // row of window_new that holds start_pos
    std::int32_t n_window;
    std::uint8_t *const *window;
    std::uint8_t *const *compressed;
    const std::int32_t *groups; // [n_group_slots] or null
};

__device__ __forceinline__ RowList row_list(const AttendParams &p, int i, const Token &token) {
    const SpanRows *const span = p.spans + token.span;
    RowList list;
    list.pos = token.pos;
    list.start_pos = simt::load(&span->start_pos);
    list.first_new = simt::load(&span->first_token);
    list.n_window = token.pos + 1 < p.window_size ? static_cast<std::int32_t>(token.pos) + 1 : p.window_size;
    list.window = simt::load(&span->window);
    list.compressed = simt::load(&span->compressed);
    list.groups = p.groups ? p.groups + std::int64_t{p.first + i} * p.n_group_slots : nullptr;
    return list;
}

__device__ __forceinline__ bool has_row(const AttendParams &p, const RowList &list, std::int64_t row) {
    if (row < list.n_window) return true;
    const std::int64_t slot = row - list.n_window;
    return list.groups && slot < p.n_group_slots && simt::load(list.groups + slot) >= 0;
}

// Null where there is none.
__device__ __forceinline__ const std::uint8_t *row_at(const AttendParams &p, const RowList &list, std::int64_t row) {
    const int window_bytes = p.head_dim + p.head_dim / kWindowBlock;
    if (row < list.n_window) {
        const std::int64_t pos = list.pos - list.n_window + 1 + row;
        // The ring still holds what was there before the step; the step's own rows stand beside it.
        return pos < list.start_pos ? row_address(list.window, pos % p.window_size, window_bytes)
                                    : p.window_new + (list.first_new + pos - list.start_pos) * window_bytes;
    }
    const std::int64_t slot = row - list.n_window;
    if (!list.groups || slot >= p.n_group_slots) return nullptr;
    const std::int32_t group = simt::load(list.groups + slot);
    if (group < 0) return nullptr;
    return row_address(list.compressed, group, p.head_dim / 2 + p.head_dim / kCompressedBlock);
}

// How many come before the first lane without one.
__device__ __forceinline__ int count_leading(bool has_one) {
    const unsigned lacks = __ballot_sync(simt::kFullMask, !has_one);
    return lacks == 0 ? simt::kWarp : __ffs(static_cast<int>(lacks)) - 1;
}

// ---- Rows in shared memory, and what is made of them. A tile is kTileRows rows, or fewer at the end of a chunk; a
// piece is kAttendColumns columns of them, or what is left of head_dim.

struct Tile {
    simt::Shared<std::uint16_t> rows;    // [kTileRows][kTileStride], bf16
    simt::Shared<std::uint16_t> queries; // [kAttendHeads][kTileStride], bf16
    simt::Shared<float> scores;          // [kTileRows][kAttendHeads], then weights

    int n_rows;
};

__device__ __forceinline__ int piece_columns(const AttendParams &p, int piece) {
    const int left = p.head_dim - piece * kAttendColumns;
    return left < kAttendColumns ? left : kAttendColumns;
}

// Queries of heads beyond the last are zeros.
__device__ __forceinline__ void stage_queries(const AttendParams &p, const Tile &tile, int i, int head0, int piece) {
    constexpr int kVector = 8;
    const int vectors = piece_columns(p, piece) / kVector;
    for (int at = static_cast<int>(threadIdx.x); at < kAttendHeads * vectors; at += kAttendThreads) {
        const int h = at / vectors, column = at % vectors * kVector;
        uint4 v{};
        if (head0 + h < p.n_heads) {
            const std::int64_t head = std::int64_t{i} * p.n_heads + head0 + h;
            v = simt::load(reinterpret_cast<const uint4 *>(p.q + head * p.head_dim + piece * kAttendColumns + column));
        }
        tile.queries.store(h * kTileStride + column, v);
    }
}

// `row` is the lane's own of the tile; all warps have the same. `first_row` is the first one's place in the token's
// list.
__device__ __forceinline__ void stage_rows(const AttendParams &p, const RowList &list, const Tile &tile,
                                           const std::uint8_t *row, int first_row, int piece) {
    const int lane = static_cast<int>(threadIdx.x) % simt::kWarp, warp = static_cast<int>(threadIdx.x) / simt::kWarp;
    const bool has_unit = lane < piece_columns(p, piece) / kUnit;
    const int unit = piece * (kAttendColumns / kUnit) + lane;
    constexpr int kBatch = 4; // rows of a warp whose loads are in flight together
    SIMT_UNROLL
    for (int first = 0; first < kTileRows / kAttendWarps; first += kBatch) {
        PackedUnit packed[kBatch];
        SIMT_UNROLL
        for (int b = 0; b < kBatch; ++b) {
            const int r = warp + (first + b) * kAttendWarps;
            const auto *const source = reinterpret_cast<const std::uint8_t *>(
                __shfl_sync(simt::kFullMask, reinterpret_cast<std::uintptr_t>(row), r));
            packed[b] = {};
            if (r < tile.n_rows && has_unit)
                packed[b] = first_row + r < list.n_window ? load_window_unit(source, p.head_dim, unit)
                                                          : load_compressed_unit(source, p.head_dim, unit);
        }
        SIMT_UNROLL
        for (int b = 0; b < kBatch; ++b) {
            const int r = warp + (first + b) * kAttendWarps;
            if (r >= tile.n_rows || !has_unit) continue;
            const Unit v = unpack_unit(packed[b], first_row + r < list.n_window);
            const int at = r * kTileStride + lane * kUnit;
            tile.rows.store(at, uint4{v.words[0], v.words[1], v.words[2], v.words[3]});
            tile.rows.store(at + kUnit / 2, uint4{v.words[4], v.words[5], v.words[6], v.words[7]});
        }
    }
}

__device__ __forceinline__ void unpack_vector(const uint4 &v, float (&values)[8]) {
    values[0] = low_bf16(v.x), values[1] = high_bf16(v.x), values[2] = low_bf16(v.y), values[3] = high_bf16(v.y);
    values[4] = low_bf16(v.z), values[5] = high_bf16(v.z), values[6] = low_bf16(v.w), values[7] = high_bf16(v.w);
}

// Products of all heads with the tile's rows over one piece's columns, set for the first piece and added for others. A
// warp takes 4 rows at a time, its lanes 8 columns each; then every lane ends with the sum of one row and head.
__device__ __forceinline__ void multiply_queries(const AttendParams &p, const Tile &tile, int piece) {
    const int lane = static_cast<int>(threadIdx.x) % simt::kWarp, warp = static_cast<int>(threadIdx.x) / simt::kWarp;
    const int vectors = piece_columns(p, piece) / 8;
    for (int first = warp * kWarpRows; first < tile.n_rows; first += kAttendWarps * kWarpRows) {
        float sums[kWarpRows * kAttendHeads] = {};
        for (int v = lane; v < vectors; v += simt::kWarp) {
            float x[kWarpRows][8];
            SIMT_UNROLL
            for (int r = 0; r < kWarpRows; ++r) {
                const int row = first + r < tile.n_rows ? first + r : tile.n_rows - 1;
                unpack_vector(tile.rows.load<uint4>(row * kTileStride + 8 * v), x[r]);
            }
            SIMT_UNROLL
            for (int h = 0; h < kAttendHeads; ++h) {
                float q[8];
                unpack_vector(tile.queries.load<uint4>(h * kTileStride + 8 * v), q);
                SIMT_UNROLL
                for (int r = 0; r < kWarpRows; ++r) {
                    SIMT_UNROLL
                    for (int e = 0; e < 8; ++e)
                        sums[r * kAttendHeads + h] = fmaf(q[e], x[r][e], sums[r * kAttendHeads + h]);
                }
            }
        }
        // Each step leaves a lane half of the sums, those that its number has in common with it.
        SIMT_UNROLL
        for (int step = 0; step < 5; ++step) {
            const int half = simt::kWarp / 2 >> step;
            const bool upper = lane & half;
            SIMT_UNROLL
            for (int s = 0; s < simt::kWarp / 2; ++s) {
                if (s >= half) continue;
                const float kept = upper ? sums[s + half] : sums[s], given = upper ? sums[s] : sums[s + half];
                sums[s] = kept + __shfl_xor_sync(simt::kFullMask, given, half);
            }
        }
        // Of rows behind the last as well, which nobody reads.
        const int at = first * kAttendHeads + lane;
        if (piece == 0)
            tile.scores[at] = sums[0];
        else
            tile.scores[at] += sums[0];
    }
}

__device__ __forceinline__ float sum_of_warp(float value) {
    SIMT_UNROLL
    for (int d = simt::kWarp / 2; d > 0; d /= 2) value += __shfl_xor_sync(simt::kFullMask, value, d);
    return value;
}
__device__ __forceinline__ float max_of_warp(float value) {
    SIMT_UNROLL
    for (int d = simt::kWarp / 2; d > 0; d /= 2) value = fmaxf(value, __shfl_xor_sync(simt::kFullMask, value, d));
    return value;
}

// Scores of the warp's own heads to weights; `chunk` goes on by this tile. Returns by what former sums shrink.
__device__ __forceinline__ float weigh_rows(const Tile &tile, int h, float scale, Softmax &chunk, bool is_first) {
    const int lane = static_cast<int>(threadIdx.x) % simt::kWarp;
    const bool has_row = lane < tile.n_rows;
    const int at = lane * kAttendHeads + h;
    const float score = has_row ? tile.scores[at] * scale : minus_infinity();
    const float tile_max = max_of_warp(score); // of a NaN and a number the number: the sum is NaN anyway
    const float max = is_first ? tile_max : fmaxf(chunk.max, tile_max);
    const float weight = weight_of(score, max); // zero where there is no row
    const float sum = sum_of_warp(weight);
    if (has_row) tile.scores[at] = weight;
    const float shrink = is_first ? 0.0f : weight_of(chunk.max, max);
    chunk = {max, is_first ? sum : fmaf(chunk.sum, shrink, sum)};
    return shrink;
}

using Sums = float[kAttendHeads][kThreadColumns];

// sums[h] += weight * row, row by row.
__device__ __forceinline__ void add_rows(const Tile &tile, Sums &sums) {
    const int column = static_cast<int>(threadIdx.x) * kThreadColumns;
    for (int r = 0; r < tile.n_rows; ++r) {
        const uint2 packed = tile.rows.load<uint2>(r * kTileStride + column);
        const float x[kThreadColumns] = {low_bf16(packed.x), high_bf16(packed.x), low_bf16(packed.y),
                                         high_bf16(packed.y)};
        SIMT_UNROLL
        for (int h = 0; h < kAttendHeads; h += 4) {
            const float4 four = tile.scores.load<float4>(r * kAttendHeads + h);
            const float weights[4] = {four.x, four.y, four.z, four.w};
            SIMT_UNROLL
            for (int k = 0; k < 4; ++k) {
                SIMT_UNROLL
                for (int c = 0; c < kThreadColumns; ++c) sums[h + k][c] = fmaf(weights[k], x[c], sums[h + k][c]);
            }
        }
    }
}

// Of a token that is not there.
__device__ __forceinline__ void write_zeros(const AttendParams &p, int i, int head0, int column, bool there) {
    for (int h = 0; h < kAttendHeads && head0 + h < p.n_heads; ++h) write_o(p, i, head0 + h, column, {}, there);
}

// All chunks of a token (kWhole), or those of one split.
template <bool kWhole>
__global__ void __launch_bounds__(kAttendThreads, kWhole ? 2 : 3) attend_rows(const __grid_constant__ AttendParams p) {
    // grid (token, split, heads and piece), block 128
    const int thread = static_cast<int>(threadIdx.x), lane = thread % simt::kWarp, warp = thread / simt::kWarp;
    const int i = static_cast<int>(blockIdx.x), split = static_cast<int>(blockIdx.y);
    const int n_pieces = (p.head_dim + kAttendColumns - 1) / kAttendColumns;
    const int head0 = static_cast<int>(blockIdx.z) / n_pieces * kAttendHeads;
    const int own_piece = static_cast<int>(blockIdx.z) % n_pieces; // whose columns of o are this block's
    const int n_chunks = attend_chunks(p), per_split = attend_chunks_per_split(p);

    SIMT_SHARED(std::uint16_t, rows, kTileRows * kTileStride);
    SIMT_SHARED(std::uint16_t, queries, kAttendHeads * kTileStride);
    SIMT_SHARED(float, scores, kTileRows *kAttendHeads);
    // Per head, what the threads multiply their sums by: of the warp that has the head, for all.
    SIMT_SHARED(float, factors, 2 * kAttendHeads);
    Tile tile{rows, queries, scores, 0};

    const int column = thread * kThreadColumns; // of the piece
    const bool has_columns = column < piece_columns(p, own_piece);
    const Token token = load_token(p.tokens, p.first + i);
    if (is_padding(token)) {
        if constexpr (kWhole) write_zeros(p, i, head0, own_piece * kAttendColumns + column, has_columns);
        return;
    }
    const RowList list = row_list(p, i, token);
    if (n_pieces == 1) stage_queries(p, tile, i, head0, 0);

    Sums total = {};
    Softmax totals[kWarpHeads] = {}; // of the warp's heads, in all its lanes
    const int first_chunk = split * per_split;
    for (int chunk = first_chunk; chunk < first_chunk + per_split; ++chunk) {
        Sums sums = {};
        Softmax softmax[kWarpHeads] = {};
        bool is_first = true; // tile of the chunk
        for (int first_row = chunk * kAttendChunkRows; first_row < (chunk + 1) * kAttendChunkRows;
             first_row += kTileRows) {
            const std::uint8_t *const row = row_at(p, list, first_row + lane);
            tile.n_rows = count_leading(row != nullptr);
            if (tile.n_rows == 0) break; // for all warps alike
            for (int piece = 0; piece < n_pieces; ++piece) {
                if (n_pieces > 1) {
                    if (piece > 0) __syncthreads(); // the former piece has been multiplied
                    stage_queries(p, tile, i, head0, piece);
                }
                stage_rows(p, list, tile, row, first_row, piece);
                __syncthreads();
                multiply_queries(p, tile, piece);
            }
            __syncthreads(); // scores are there
            SIMT_UNROLL
            for (int k = 0; k < kWarpHeads; ++k) {
                const int h = warp * kWarpHeads + k;
                const float shrink = weigh_rows(tile, h, p.scale, softmax[k], is_first);
                if (lane == 0) factors[h] = shrink;
            }
            if (own_piece != n_pieces - 1) stage_rows(p, list, tile, row, first_row, own_piece);
            __syncthreads(); // weights are there, and the rows' own piece
            if (has_columns) {
                if (!is_first) {
                    SIMT_UNROLL
                    for (int h = 0; h < kAttendHeads; ++h) {
                        const float shrink = factors[h];
                        SIMT_UNROLL
                        for (int c = 0; c < kThreadColumns; ++c) sums[h][c] *= shrink;
                    }
                }
                add_rows(tile, sums);
            }
            is_first = false;
            __syncthreads(); // rows and weights may be overwritten
            if (tile.n_rows < kTileRows) break;
        }
        if (is_first) break; // no row of the chunk, nor of any after it

        if constexpr (kWhole) {
            SIMT_UNROLL
            for (int k = 0; k < kWarpHeads; ++k) {
                const int h = warp * kWarpHeads + k;
                const Joint joint = join(totals[k], softmax[k], chunk == 0);
                if (lane == 0) factors[2 * h] = joint.old_weight;
                if (lane == 0) factors[2 * h + 1] = joint.new_weight;
            }
            __syncthreads();
            SIMT_UNROLL
            for (int h = 0; h < kAttendHeads; ++h) {
                const Joint joint{factors[2 * h], factors[2 * h + 1]};
                SIMT_UNROLL
                for (int c = 0; c < kThreadColumns; ++c) total[h][c] = join_value(total[h][c], sums[h][c], joint);
            }
            // Factors are written again behind the barriers of the next tile.
        } else {
            SIMT_UNROLL
            for (int h = 0; h < kAttendHeads; ++h) {
                if (head0 + h >= p.n_heads || !has_columns) continue;
                const Workspace to = workspace_at(p, n_chunks, i, chunk, head0 + h);
                float *const values = to.sums + own_piece * kAttendColumns + column;
                SIMT_UNROLL
                for (int c = 0; c < kThreadColumns; c += 2)
                    simt::store(reinterpret_cast<float2 *>(values + c), float2{sums[h][c], sums[h][c + 1]});
            }
            SIMT_UNROLL
            for (int k = 0; k < kWarpHeads; ++k) {
                const int head = head0 + warp * kWarpHeads + k;
                if (head >= p.n_heads || own_piece != 0 || lane != 0) continue;
                const Workspace to = workspace_at(p, n_chunks, i, chunk, head);
                simt::store(reinterpret_cast<float2 *>(to.softmax), float2{softmax[k].max, softmax[k].sum});
            }
        }
    }

    if constexpr (kWhole) {
        __syncthreads(); // the last factors have been read
        SIMT_UNROLL
        for (int k = 0; k < kWarpHeads; ++k) {
            const int h = warp * kWarpHeads + k;
            if (lane != 0 || head0 + h >= p.n_heads) continue;
            const Division division = divide_by(totals[k], simt::load(p.sink + head0 + h));
            factors[2 * h] = division.factor;
            factors[2 * h + 1] = division.denominator;
        }
        __syncthreads();
        SIMT_UNROLL
        for (int h = 0; h < kAttendHeads; ++h) {
            if (head0 + h >= p.n_heads) continue;
            const int at = own_piece * kAttendColumns + column;
            Finished o{};
            if (has_columns) o = finish(p, i, at, total[h], {factors[2 * h], factors[2 * h + 1]});
            write_o(p, i, head0 + h, at, o, has_columns);
        }
    }
}

// The chunks of one token and head, in ascending order. The first block of a token puts its row into the ring: that has
// been read.
__global__ void __launch_bounds__(kAttendThreads) attend_join(const __grid_constant__ AttendParams p) {
    // grid (token, head, piece), block 128
    const int thread = static_cast<int>(threadIdx.x), lane = thread % simt::kWarp;
    const int i = static_cast<int>(blockIdx.x), head = static_cast<int>(blockIdx.y);
    const int column = static_cast<int>(blockIdx.z) * kAttendColumns + thread * kThreadColumns;
    const bool has_columns = column < p.head_dim;
    const int n_chunks = attend_chunks(p);
    const Token token = load_token(p.tokens, p.first + i);
    if (is_padding(token)) {
        write_o(p, i, head, column, {}, has_columns);
        return;
    }
    if (p.commit && head == 0 && blockIdx.z == 0)
        commit_row<kAttendThreads>(p.window_new, p.first + i, token, p.spans, p.window_size,
                                   static_cast<int>(window_row_bytes(p.head_dim)));

    const RowList list = row_list(p, i, token);
    int n_there = 0;
    for (int first = 0; first < n_chunks; first += simt::kWarp) {
        const std::int64_t first_row = std::int64_t{first + lane} * kAttendChunkRows;
        const int n = count_leading(has_row(p, list, first_row));
        n_there += n;
        if (n < simt::kWarp) break;
    }
    if (!has_columns) n_there = 0;

    float total[kThreadColumns] = {};
    Softmax totals = {};
    constexpr int kBatch = 4; // chunks whose loads are in flight together
    for (int first = 0; first < n_there; first += kBatch) {
        float2 values[kBatch][2], softmax[kBatch];
        SIMT_UNROLL
        for (int b = 0; b < kBatch; ++b) {
            const int chunk = first + b < n_there ? first + b : first;
            const Workspace from = workspace_at(p, n_chunks, i, chunk, head);
            softmax[b] = simt::load(reinterpret_cast<const float2 *>(from.softmax));
            values[b][0] = simt::load(reinterpret_cast<const float2 *>(from.sums + column));
            values[b][1] = simt::load(reinterpret_cast<const float2 *>(from.sums + column + 2));
        }
        SIMT_UNROLL
        for (int b = 0; b < kBatch; ++b) {
            if (first + b >= n_there) continue;
            const Joint joint = join(totals, {softmax[b].x, softmax[b].y}, first + b == 0);
            SIMT_UNROLL
            for (int c = 0; c < kThreadColumns; ++c)
                total[c] = join_value(total[c], c % 2 == 0 ? values[b][c / 2].x : values[b][c / 2].y, joint);
        }
    }
    Finished o{};
    if (has_columns) o = finish(p, i, column, total, divide_by(totals, simt::load(p.sink + head)));
    write_o(p, i, head, column, o, has_columns);
}

} // namespace ds41::kernels
