// Attention of many tokens on tensor cores: one block takes all rows of a token for 32 heads. Beside the kernel of
// kernel.cuh, whose bits it does not give: sums over columns and rows go in the hardware's order.
// Numerics: queries and rows are bf16, their products exact, sums f32. Weights are split into two bf16 values, so that
// weighted sums have 17 bits of each. Softmax goes on from tile to tile in f32; o is finished as in kernel.cuh.
// For prefill only: every token is there, and nothing is quantised.
//
// A tile of 32 rows lies in shared memory once, as words that hold two neighbouring rows' values of a column:
//
//   pairs[r][c] = row 2r, column c in the lower half, row 2r + 1 in the upper
//
// For weighted sums, which go over rows, that is an operand as it is. For products with queries, which go over columns,
// two words of neighbouring columns give one of an even row and one of an odd row.
#pragma once

#include "attend/kernel.cuh"

namespace ds41::kernels {

constexpr int kTensorHeads = 32;
constexpr int kTensorParts = 8; // of head_dim; each warp has one, and 16 of the heads
constexpr int kTensorWarps = kTensorHeads / 16 * kTensorParts;
constexpr int kTensorThreads = kTensorWarps * simt::kWarp;       // 512; 32 registers of sums and 16 of queries each
constexpr int kTensorSteps = kAttendColumns / kTensorParts / 16; // of 16 columns, in a part
constexpr int kTensorRows = 32;
constexpr int kPairStride = kAttendColumns + 8; // words; 8 lanes by 4 words lie in different banks, both ways
constexpr int kWeightStride = kTensorRows + 8;  // halves; fragments' words lie in different banks
static_assert(kTensorRows / 2 == kTensorWarps, "a warp stages a pair of rows");

constexpr std::size_t kTensorShared = simt::shared_bytes<std::uint32_t>(kTensorRows / 2 * kPairStride) +
                                      simt::shared_bytes<float>(kTensorParts * kTensorHeads * kTensorRows) +
                                      2 * simt::shared_bytes<std::uint16_t>(kTensorHeads * kWeightStride) +
                                      2 * simt::shared_bytes<float>(2 * kTensorHeads);

// Units of two rows, one under the other, to words by column. A lane's four vectors go to their places in an order that
// differs among the lanes which store together: otherwise those would meet in the same banks.
__device__ __forceinline__ void store_pair(const simt::Shared<std::uint32_t> &pairs, int at,
                                           const PackedUnit (&packed)[2], const bool (&is_there)[2],
                                           const bool (&is_window)[2], int lane) {
    SIMT_UNROLL
    for (int turn = 0; turn < 4; ++turn) {
        const int k = (turn + lane / 2) % 4;
        // What is not there is zero, so that its weight of zero gives zero.
        const Quad even = is_there[0] ? unpack_quad(packed[0], is_window[0], k) : Quad{};
        const Quad odd = is_there[1] ? unpack_quad(packed[1], is_window[1], k) : Quad{};
        pairs.store(at + 4 * k, uint4{simt::byte_perm(even.words[0], odd.words[0], 0x5410u),
                                      simt::byte_perm(even.words[0], odd.words[0], 0x7632u),
                                      simt::byte_perm(even.words[1], odd.words[1], 0x5410u),
                                      simt::byte_perm(even.words[1], odd.words[1], 0x7632u)});
    }
}

__global__ void __launch_bounds__(kTensorThreads, 1) attend_tensor(const __grid_constant__ AttendParams p) {
    // grid (token, 32 heads), block 512 = 2 x 16 heads by 8 parts of the columns
    const int thread = static_cast<int>(threadIdx.x), lane = thread % simt::kWarp, warp = thread / simt::kWarp;
    const int i = static_cast<int>(blockIdx.x), head0 = static_cast<int>(blockIdx.y) * kTensorHeads;
    const int own_heads = warp / kTensorParts * 16, own_part = warp % kTensorParts;
    const int row_in_fragment = lane / 4, column_in_fragment = lane % 4;
    const int part_columns = p.head_dim / kTensorParts, n_steps = part_columns / 16;
    const int first_column = own_part * part_columns;

    SIMT_DYNAMIC_SHARED(pool);
    const auto pairs = pool.take<std::uint32_t>(kTensorRows / 2 * kPairStride);
    const auto products = pool.take<float>(kTensorParts * kTensorHeads * kTensorRows); // [part][head][row]
    const auto weights_high = pool.take<std::uint16_t>(kTensorHeads * kWeightStride);  // [head][row], bf16
    const auto weights_low = pool.take<std::uint16_t>(kTensorHeads * kWeightStride);
    const auto softmax = pool.take<float>(2 * kTensorHeads); // so far: maximum and sum of weights, by head
    const auto factors = pool.take<float>(2 * kTensorHeads);

    // The warp's queries stay in registers. Heads beyond the last are zeros.
    std::uint32_t queries[kTensorSteps][4];
    SIMT_UNROLL
    for (int s = 0; s < kTensorSteps; ++s) {
        SIMT_UNROLL
        for (int part = 0; part < 4; ++part) {
            const int head = head0 + own_heads + row_in_fragment + part % 2 * 8;
            const int column = first_column + 16 * s + part / 2 * 8 + 2 * column_in_fragment;
            queries[s][part] = 0;
            if (s < n_steps && head < p.n_heads)
                queries[s][part] = simt::load(reinterpret_cast<const std::uint32_t *>(
                    p.q + (std::int64_t{i} * p.n_heads + head) * p.head_dim + column));
        }
    }

    float sums[kTensorSteps][2][4] = {};                       // of 16 columns, even and odd ones apart
    constexpr int kSoftmaxHeads = kTensorHeads / kTensorWarps; // which are the warp's in this alone
    bool is_first = true;

    for (int first_row = 0;; first_row += kTensorRows) {
        // Read anew for each tile: in between, registers are dear.
        const RowList list = row_list(p, i, load_token(p.tokens, p.first + i));
        const std::uint8_t *const row = row_at(p, list, first_row + lane);
        const int n_rows = count_leading(row != nullptr);
        if (n_rows == 0) break; // for all warps alike

        {
            const bool has_unit = lane < p.head_dim / kUnit;
            PackedUnit packed[2] = {};
            bool is_there[2], is_window[2];
            SIMT_UNROLL
            for (int odd = 0; odd < 2; ++odd) {
                const int r = 2 * warp + odd;
                is_there[odd] = r < n_rows;
                is_window[odd] = first_row + r < list.n_window;
                const auto *const source = reinterpret_cast<const std::uint8_t *>(
                    __shfl_sync(simt::kFullMask, reinterpret_cast<std::uintptr_t>(row), r));
                if (is_there[odd] && has_unit)
                    packed[odd] = is_window[odd] ? load_window_unit(source, p.head_dim, lane)
                                                 : load_compressed_unit(source, p.head_dim, lane);
            }
            if (has_unit) store_pair(pairs, warp * kPairStride + lane * kUnit, packed, is_there, is_window, lane);
        }
        __syncthreads();

        // Products of 16 heads with 16 rows at a time, over the part's columns. Rows 2r of the 16 stand in one
        // fragment, rows 2r + 1 in another: a lane ends with four neighbouring rows.
        SIMT_UNROLL
        for (int half = 0; half < 2; ++half) {
            float even[4] = {}, odd[4] = {};
            SIMT_UNROLL
            for (int s = 0; s < kTensorSteps; ++s) {
                if (s >= n_steps) continue;
                const int at =
                    (8 * half + row_in_fragment) * kPairStride + first_column + 16 * s + 2 * column_in_fragment;
                const uint2 near = pairs.load<uint2>(at), far = pairs.load<uint2>(at + 8);
                const std::uint32_t b_even[2] = {simt::byte_perm(near.x, near.y, 0x5410u),
                                                 simt::byte_perm(far.x, far.y, 0x5410u)};
                const std::uint32_t b_odd[2] = {simt::byte_perm(near.x, near.y, 0x7632u),
                                                simt::byte_perm(far.x, far.y, 0x7632u)};
                simt::mma_m16n8k16_bf16(even, queries[s], b_even);
                simt::mma_m16n8k16_bf16(odd, queries[s], b_odd);
            }
            const int at = (own_part * kTensorHeads + own_heads + row_in_fragment) * kTensorRows + 16 * half +
                           4 * column_in_fragment;
            products.store(at, float4{even[0], odd[0], even[1], odd[1]});
            products.store(at + 8 * kTensorRows, float4{even[2], odd[2], even[3], odd[3]});
        }
        __syncthreads();

        // A lane has a row, for one head after the other.
        SIMT_UNROLL
        for (int k = 0; k < kSoftmaxHeads; ++k) {
            const int h = warp * kSoftmaxHeads + k;
            const bool has_row = lane < n_rows;
            float product = 0.0f;
            SIMT_UNROLL
            for (int part = 0; part < kTensorParts; ++part)
                product += products[(part * kTensorHeads + h) * kTensorRows + lane];
            const float score = has_row ? product * p.scale : minus_infinity();
            const float tile_max = max_of_warp(score);
            // The first lane writes them, so it reads them, for all.
            Softmax former{};
            if (!is_first && lane == 0) former = {softmax[2 * h], softmax[2 * h + 1]};
            former.max = __shfl_sync(simt::kFullMask, former.max, 0);
            const float max = is_first ? tile_max : fmaxf(former.max, tile_max);
            const float weight = weight_of(score, max); // zero where there is no row
            const float sum = sum_of_warp(weight);
            const float shrink = is_first ? 0.0f : weight_of(former.max, max);
            const Bf16 high = to_bf16(weight);
            weights_high[h * kWeightStride + lane] = high.bits;
            weights_low[h * kWeightStride + lane] = to_bf16(weight - to_f32(high)).bits;
            if (lane == 0) {
                softmax[2 * h] = max;
                softmax[2 * h + 1] = is_first ? sum : fmaf(former.sum, shrink, sum);
                factors[h] = shrink;
            }
        }
        __syncthreads();

        // Weighted sums of the part's columns for 16 heads. Columns 2c of 16 stand in one fragment, columns 2c + 1
        // in another: a lane has four neighbouring columns.
        if (!is_first) {
            const float upper = factors[own_heads + row_in_fragment], lower = factors[own_heads + row_in_fragment + 8];
            SIMT_UNROLL
            for (int s = 0; s < kTensorSteps; ++s) {
                SIMT_UNROLL
                for (int odd = 0; odd < 2; ++odd) {
                    sums[s][odd][0] *= upper, sums[s][odd][1] *= upper;
                    sums[s][odd][2] *= lower, sums[s][odd][3] *= lower;
                }
            }
        }
        SIMT_UNROLL
        for (int half = 0; half < 2; ++half) {
            std::uint32_t high[4], low[4];
            SIMT_UNROLL
            for (int part = 0; part < 4; ++part) {
                const int at = (own_heads + row_in_fragment + part % 2 * 8) * kWeightStride + 16 * half + part / 2 * 8 +
                               2 * column_in_fragment;
                high[part] = weights_high.load<std::uint32_t>(at);
                low[part] = weights_low.load<std::uint32_t>(at);
            }
            SIMT_UNROLL
            for (int s = 0; s < kTensorSteps; ++s) {
                if (s >= n_steps) continue;
                const int at =
                    (8 * half + column_in_fragment) * kPairStride + first_column + 16 * s + 2 * row_in_fragment;
                const uint2 near = pairs.load<uint2>(at), far = pairs.load<uint2>(at + 4 * kPairStride);
                const std::uint32_t even[2] = {near.x, far.x}, odd[2] = {near.y, far.y};
                simt::mma_m16n8k16_bf16(sums[s][0], high, even);
                simt::mma_m16n8k16_bf16(sums[s][1], high, odd);
                simt::mma_m16n8k16_bf16(sums[s][0], low, even);
                simt::mma_m16n8k16_bf16(sums[s][1], low, odd);
            }
        }
        is_first = false;
        __syncthreads(); // rows and weights may be overwritten
        if (n_rows < kTensorRows) break;
    }

    SIMT_UNROLL
    for (int k = 0; k < kSoftmaxHeads; ++k) {
        const int h = warp * kSoftmaxHeads + k;
        if (lane != 0 || head0 + h >= p.n_heads) continue;
        const Softmax total = is_first ? Softmax{} : Softmax{softmax[2 * h], softmax[2 * h + 1]};
        const Division division = divide_by(total, simt::load(p.sink + head0 + h));
        factors[2 * h] = division.factor;
        factors[2 * h + 1] = division.denominator;
    }
    __syncthreads();
    SIMT_UNROLL
    for (int lower = 0; lower < 2; ++lower) {
        const int h = own_heads + row_in_fragment + 8 * lower;
        if (head0 + h >= p.n_heads) continue;
        const Division division{factors[2 * h], factors[2 * h + 1]};
        SIMT_UNROLL
        for (int s = 0; s < kTensorSteps; ++s) {
            if (s >= n_steps) continue;
            const float values[4] = {sums[s][0][2 * lower], sums[s][1][2 * lower], sums[s][0][2 * lower + 1],
                                     sums[s][1][2 * lower + 1]};
            const int column = first_column + 16 * s + 4 * column_in_fragment;
            store_o(p, i, head0 + h, column, finish(p, i, column, values, division));
        }
    }
}

} // namespace ds41::kernels
