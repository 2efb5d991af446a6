// The best k of a row of 16-bit sort keys: higher first, then lower index. Exact, and the same in any order of blocks
// and threads: everything is counted, nothing is raced for.
//
// 1. The best key of each stretch of the row: the only pass over all of it. The k-th best of those, `low`, is no better
//    than the k-th best of the row, so that what lies below it, and stretches that do, are not looked at again.
// 2. Counts by the upper and then by the lower 8 bits of the keys that are left give the k-th best, `cut`.
// 3. What lies above the cut, and of what equals it the first ones, is written in ascending order of index.
#pragma once

#include "common/rows.cuh"
#include "score/key.cuh"
#include "topk/config.h"
#include "topk/params.h"

namespace ds41::kernels {

// Key i, 0 to 7, of a vector.
__device__ __forceinline__ int key_at(const uint4 &vector, int i) {
    const std::uint32_t word = i < 2 ? vector.x : i < 4 ? vector.y : i < 6 ? vector.z : vector.w;
    return static_cast<int>(i % 2 == 0 ? word & 0xffffu : word >> 16);
}

__device__ __forceinline__ int best_key(const uint4 &vector) {
    int best = 0;
    SIMT_UNROLL
    for (int i = 0; i < kVectorKeys; ++i) best = best > key_at(vector, i) ? best : key_at(vector, i);
    return best;
}

// ---- Where keys come from: n of them, in vectors; beyond the last there are zeros, which are never taken.

// Those of columns.
struct ColumnKeys {
    const std::uint16_t *row;
    std::int64_t n;
    const std::int32_t *blocks; // [..] of block_size columns, or null
    std::int32_t block_size;

    __device__ __forceinline__ uint4 load(std::int64_t vector) const {
        const std::int64_t first = vector * kVectorKeys;
        if (first + kVectorKeys <= n) return simt::load(reinterpret_cast<const uint4 *>(row + first));
        std::uint32_t words[kVectorKeys / 2] = {};
        SIMT_UNROLL
        for (int i = 0; i < kVectorKeys; ++i)
            if (first + i < n) words[i / 2] |= static_cast<std::uint32_t>(simt::load(row + first + i)) << (i % 2 * 16);
        return {words[0], words[1], words[2], words[3]};
    }
    __device__ __forceinline__ std::int32_t group(std::int64_t column) const {
        if (!blocks) return static_cast<std::int32_t>(column);
        const auto at = static_cast<std::int32_t>(column);
        return simt::load(blocks + at / block_size) * block_size + at % block_size;
    }
};

// Those of whole blocks of groups: the best of each.
struct BlockKeys {
    const std::uint16_t *row;
    std::int64_t n;
    std::int32_t block_size;

    __device__ __forceinline__ int key(std::int64_t block) const {
        const std::uint16_t *const keys = row + block * block_size;
        int best = 0;
        if (block_size % kVectorKeys == 0) {
            for (int i = 0; i < block_size; i += kVectorKeys) {
                const int key = best_key(simt::load(reinterpret_cast<const uint4 *>(keys + i)));
                best = best > key ? best : key;
            }
        } else {
            for (int i = 0; i < block_size; ++i) {
                const int key = simt::load(keys + i);
                best = best > key ? best : key;
            }
        }
        return best;
    }
    __device__ __forceinline__ uint4 load(std::int64_t vector) const {
        const std::int64_t first = vector * kVectorKeys;
        std::uint32_t words[kVectorKeys / 2] = {};
        SIMT_UNROLL
        for (int i = 0; i < kVectorKeys; ++i)
            if (first + i < n) words[i / 2] |= static_cast<std::uint32_t>(key(first + i)) << (i % 2 * 16);
        return {words[0], words[1], words[2], words[3]};
    }
    __device__ __forceinline__ std::int32_t group(std::int64_t block) const { return static_cast<std::int32_t>(block); }
};

// ---- The selection, by all threads of a block.

class Selector {
public:
    // What a row's winners are: all keys above `key`, and the first n_ties of those that equal it.
    struct Cut {
        int key;
        std::int64_t n_ties;
    };

    __device__ Selector(const simt::Shared<unsigned> &sums, const simt::Shared<unsigned> &bins,
                        const simt::Shared<int> &found, const simt::Shared<std::uint16_t> &best,
                        const simt::Shared<std::uint16_t> &stretches)
        : sums_(sums), bins_(bins), found_(found), best_(best), stretches_(stretches),
          thread_(static_cast<int>(threadIdx.x)), lane_(thread_ % simt::kWarp), warp_(thread_ / simt::kWarp) {}

    // Sum of `value` over the threads before this one, and over all.
    __device__ unsigned sum_before(unsigned value, unsigned &total) const {
        unsigned inclusive = value;
        SIMT_UNROLL
        for (int d = 1; d < simt::kWarp; d *= 2) {
            const unsigned other = __shfl_up_sync(simt::kFullMask, inclusive, d);
            if (lane_ >= d) inclusive += other;
        }
        if (lane_ == simt::kWarp - 1) sums_[warp_] = inclusive;
        __syncthreads();
        unsigned before = 0;
        total = 0;
        SIMT_UNROLL
        for (int w = 0; w < kTopkWarps; ++w) {
            const unsigned sum = sums_[w];
            if (w < warp_) before += sum;
            total += sum;
        }
        __syncthreads(); // the next sum may begin
        return before + inclusive - value;
    }

    // Write the best k to out, in ascending order; returns how many there are.
    template <typename Keys> __device__ int select(const Keys &keys, int k, std::int32_t *out) const {
        if (k <= 0 || keys.n <= 0) return 0;
        const std::int64_t n_vectors = (keys.n + kVectorKeys - 1) / kVectorKeys;
        int shift = 0; // a stretch is 2^shift vectors
        while ((n_vectors - 1) >> shift >= kMaxStretches) ++shift;
        const int n_stretches = static_cast<int>((n_vectors - 1) >> shift) + 1;

        find_best(keys, n_vectors, shift);
        __syncthreads();
        int low = kNeverTaken + 1;
        if (n_stretches > k) { // otherwise it would say little
            const Cut cut = find_cut(k, low, [&](auto &&count) {
                for (int s = thread_; s < n_stretches; s += kTopkThreads) count(int{best_[s]});
            });
            if (cut.key > low) low = cut.key;
        }
        const int n_left = list_stretches(n_stretches, low); // read behind the barriers of what follows
        const std::int64_t n_left_vectors = std::int64_t{n_left} << shift;
        const Cut cut = find_cut(k, low, [&](auto &&count) {
            for (std::int64_t at = thread_; at < n_left_vectors; at += std::int64_t{kTopkThreads} * kLoadBatch) {
                uint4 vectors[kLoadBatch];
                SIMT_UNROLL
                for (int b = 0; b < kLoadBatch; ++b)
                    vectors[b] = load_left(keys, shift, at + b * kTopkThreads, n_left_vectors);
                SIMT_UNROLL
                for (int b = 0; b < kLoadBatch; ++b) {
                    SIMT_UNROLL
                    for (int i = 0; i < kVectorKeys; ++i) count(key_at(vectors[b], i));
                }
            }
        });
        return write_winners(keys, shift, n_left_vectors, cut, k, out);
    }

private:
    // best_[s]: the best key of stretch s.
    template <typename Keys> __device__ void find_best(const Keys &keys, std::int64_t n_vectors, int shift) const {
        // Lanes side by side take a stretch, or a warp does in rounds.
        const int lanes = shift < 5 ? 1 << shift : simt::kWarp, rounds = shift < 5 ? 1 : 1 << (shift - 5);
        constexpr int kStep = kTopkWarps * simt::kWarp;
        if (rounds == 1) {
            for (std::int64_t first = warp_ * simt::kWarp; first < n_vectors; first += kStep * kLoadBatch) {
                uint4 vectors[kLoadBatch];
                SIMT_UNROLL
                for (int b = 0; b < kLoadBatch; ++b) vectors[b] = keys.load(first + b * kStep + lane_);
                SIMT_UNROLL
                for (int b = 0; b < kLoadBatch; ++b) {
                    const std::int64_t vector = first + b * kStep + lane_;
                    const int best = best_of_lanes(best_key(vectors[b]), lanes);
                    if (lane_ % lanes == 0) best_[static_cast<int>(vector >> shift)] = static_cast<std::uint16_t>(best);
                }
            }
            return;
        }
        for (std::int64_t stretch = warp_; stretch << shift < n_vectors; stretch += kTopkWarps) {
            int best = 0;
            for (int round = 0; round < rounds; ++round) {
                const std::int64_t vector = (stretch << shift) + round * simt::kWarp + lane_;
                const int key = best_key(keys.load(vector));
                best = best > key ? best : key;
            }
            best = best_of_lanes(best, simt::kWarp);
            if (lane_ == 0) best_[static_cast<int>(stretch)] = static_cast<std::uint16_t>(best);
        }
    }

    __device__ int best_of_lanes(int best, int n) const {
        for (int d = 1; d < n; d *= 2) {
            const int other = __shfl_xor_sync(simt::kFullMask, best, d);
            best = best > other ? best : other;
        }
        return best;
    }

    // The k-th best of the keys from `low` on that each(count) passes to count; all of them where there are fewer.
    // Between barriers of its own, each thread counts its share.
    template <typename Each> __device__ Cut find_cut(std::int64_t k, int low, Each each) const {
        clear_bins();
        each([&](int key) {
            if (key >= low) simt::atomic_add(bins_, key / kBins * kBinCopies + lane_ % kBinCopies, 1u);
        });
        std::int64_t n_above = 0;
        const int upper = find_bin(k, n_above);
        if (upper < 0) return {low - 1, 0};
        clear_bins();
        each([&](int key) {
            if (key / kBins == upper) simt::atomic_add(bins_, key % kBins * kBinCopies + lane_ % kBinCopies, 1u);
        });
        const int lower = find_bin(k, n_above);
        return {upper * kBins + lower, k - n_above};
    }

    __device__ void clear_bins() const {
        for (int i = thread_; i < kBins * kBinCopies; i += kTopkThreads) bins_[i] = 0;
        if (thread_ == 0) found_[0] = -1;
        __syncthreads();
    }

    // Of counts by value, the value at which, counted from the top, the k-th lies, or -1; n_above grows by what lies
    // above it.
    __device__ int find_bin(std::int64_t k, std::int64_t &n_above) const {
        __syncthreads(); // all have counted
        unsigned count = 0;
        const int bin = kBins - 1 - thread_;
        if (bin >= 0) {
            SIMT_UNROLL
            for (int copy = 0; copy < kBinCopies; ++copy) count += bins_[bin * kBinCopies + copy];
        }
        unsigned total;
        const unsigned before = sum_before(count, total);
        const std::int64_t left = k - n_above;
        if (before < left && left <= std::int64_t{before} + count) {
            found_[0] = bin;
            found_[1] = static_cast<int>(before);
        }
        __syncthreads();
        const int found = found_[0];
        if (found >= 0) n_above += int{found_[1]};
        __syncthreads(); // bins and result may be cleared
        return found;
    }

    // stretches_[..]: those whose best is at least `low`, ascending; returns how many.
    __device__ int list_stretches(int n_stretches, int low) const {
        int n = 0;
        for (int first = 0; first < n_stretches; first += kTopkThreads) {
            const int stretch = first + thread_;
            const bool stays = stretch < n_stretches && int{best_[stretch]} >= low;
            unsigned total;
            const unsigned before = sum_before(stays ? 1u : 0u, total);
            if (stays) stretches_[n + static_cast<int>(before)] = static_cast<std::uint16_t>(stretch);
            n += static_cast<int>(total);
        }
        return n;
    }

    // The vector of place `at` among those of the listed stretches; -1 behind the last.
    __device__ std::int64_t left_vector(int shift, std::int64_t at, std::int64_t n_left_vectors) const {
        if (at >= n_left_vectors) return -1;
        const std::int64_t stretch = stretches_[static_cast<int>(at >> shift)];
        return (stretch << shift) + (at & ((1 << shift) - 1));
    }
    template <typename Keys>
    __device__ uint4 load_left(const Keys &keys, int shift, std::int64_t at, std::int64_t n_left_vectors) const {
        const std::int64_t vector = left_vector(shift, at, n_left_vectors);
        return vector >= 0 ? keys.load(vector) : uint4{};
    }

    template <typename Keys>
    __device__ int write_winners(const Keys &keys, int shift, std::int64_t n_left_vectors, Cut cut, int k,
                                 std::int32_t *out) const {
        int n_above = 0, n_ties = 0; // before those that are looked at
        const int ties_allowed = static_cast<int>(cut.n_ties);
        for (std::int64_t first = 0; first < n_left_vectors; first += kTopkThreads) {
            const std::int64_t vector = left_vector(shift, first + thread_, n_left_vectors);
            const uint4 own = vector >= 0 ? keys.load(vector) : uint4{};
            // Two counts in one sum: at most 4096 each.
            unsigned counts = 0;
            SIMT_UNROLL
            for (int i = 0; i < kVectorKeys; ++i) {
                const int key = key_at(own, i);
                counts += key > cut.key ? 1u : key == cut.key ? 0x10000u : 0u;
            }
            unsigned total;
            const unsigned before = sum_before(counts, total);
            int above = n_above + static_cast<int>(before & 0xffffu), ties = n_ties + static_cast<int>(before >> 16);
            if (counts != 0) {
                SIMT_UNROLL
                for (int i = 0; i < kVectorKeys; ++i) {
                    const int key = key_at(own, i);
                    if (key < cut.key) continue;
                    const int place = above + (ties < ties_allowed ? ties : ties_allowed);
                    if (key > cut.key || ties < ties_allowed)
                        simt::store(out + place, keys.group(vector * kVectorKeys + i));
                    if (key > cut.key)
                        ++above;
                    else
                        ++ties;
                }
            }
            n_above += static_cast<int>(total & 0xffffu);
            n_ties += static_cast<int>(total >> 16);
            if (n_above + (n_ties < ties_allowed ? n_ties : ties_allowed) >= k) break;
        }
        return n_above + (n_ties < ties_allowed ? n_ties : ties_allowed);
    }

    simt::Shared<unsigned> sums_;           // [kTopkWarps]
    simt::Shared<unsigned> bins_;           // [kBins][kBinCopies]
    simt::Shared<int> found_;               // [2]
    simt::Shared<std::uint16_t> best_;      // [kMaxStretches]
    simt::Shared<std::uint16_t> stretches_; // [kMaxStretches]
    int thread_, lane_, warp_;
};

#define DS41_TOPK_SELECTOR(name)                                                                                       \
    SIMT_SHARED(unsigned, sums, kTopkWarps);                                                                           \
    SIMT_SHARED(unsigned, bins, kBins *kBinCopies);                                                                    \
    SIMT_SHARED(int, found, 2);                                                                                        \
    SIMT_SHARED(std::uint16_t, best, kMaxStretches);                                                                   \
    SIMT_SHARED(std::uint16_t, stretches, kMaxStretches);                                                              \
    const Selector name(sums, bins, found, best, stretches)

__global__ void __launch_bounds__(kTopkThreads, 1) topk_groups(const __grid_constant__ TopkParams p) {
    // grid (token), block 512
    const int i = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
    DS41_TOPK_SELECTOR(selector);
    const Token token = load_token(p.tokens, p.first + i);
    if (is_padding(token)) return;
    ColumnKeys keys{p.keys + i * p.stride_keys, (token.pos + 1) / p.ratio, nullptr, p.block_size};
    if (p.blocks) {
        keys.blocks = p.blocks + std::int64_t{p.first + i} * p.n_block_slots;
        unsigned n_kept = 0;
        for (int slot = thread; slot < p.n_block_slots; slot += kTopkThreads)
            n_kept += simt::load(keys.blocks + slot) >= 0 ? 1u : 0u;
        unsigned total;
        selector.sum_before(n_kept, total);
        keys.n = std::int64_t{total} * p.block_size;
    }
    std::int32_t *const out = p.groups + std::int64_t{p.first + i} * p.n_group_slots;
    const int n = selector.select(keys, p.index_topk < p.n_group_slots ? p.index_topk : p.n_group_slots, out);
    for (int slot = n + thread; slot < p.n_group_slots; slot += kTopkThreads) simt::store(out + slot, -1);
}

__global__ void __launch_bounds__(kTopkThreads, 1) topk_blocks(const __grid_constant__ KeepBlocksParams p) {
    // grid (token), block 512
    const int i = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
    DS41_TOPK_SELECTOR(selector);
    const Token token = load_token(p.tokens, p.first + i);
    if (is_padding(token)) return;
    const std::int64_t n_visible = (token.pos + 1) / p.ratio;
    const std::int64_t n_blocks = (n_visible + p.candidate_block_size - 1) / p.candidate_block_size;
    std::int32_t *const out = p.blocks + std::int64_t{p.first + i} * p.n_block_slots;
    const int k = p.candidate_topk_blocks < p.n_block_slots ? p.candidate_topk_blocks : p.n_block_slots;
    int n = 0;
    if (n_blocks > 0 && k > 0) {
        // The newest block is the last: it does not compete, and whole ones are left.
        n = selector.select(BlockKeys{p.keys + i * p.stride_keys, n_blocks - 1, p.candidate_block_size}, k - 1, out);
        if (thread == 0) simt::store(out + n, static_cast<std::int32_t>(n_blocks - 1));
        ++n;
    }
    for (int slot = n + thread; slot < p.n_block_slots; slot += kTopkThreads) simt::store(out + slot, -1);
}

#undef DS41_TOPK_SELECTOR

} // namespace ds41::kernels
