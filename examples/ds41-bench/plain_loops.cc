#include "plain_loops.h"

#include "numeric/q2_k.h"
#include "numeric/rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace bench {

using namespace ds41;

namespace {

// ---- A loop for the best instruction set of this machine. What it calls is inlined, and so compiled for it.

#define BENCH_INLINE [[gnu::always_inline]] inline

#if defined(__x86_64__)
template <auto kLoop, class... Arguments>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq,fma")]] void run_avx512(Arguments... arguments) {
    kLoop(arguments...);
}

template <auto kLoop, class... Arguments> [[gnu::target("avx2,fma")]] void run_avx2(Arguments... arguments) {
    kLoop(arguments...);
}
#endif

template <auto kLoop, class... Arguments> void run_best(Arguments... arguments) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return run_avx512<kLoop>(arguments...);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return run_avx2<kLoop>(arguments...);
#endif
    kLoop(arguments...);
}

// ---- Q2_K.

/// Sums stand in as many lanes as a scale has values, and are added up at the end of a row.
BENCH_INLINE void q2_k_loop(const uint8_t *rows, int64_t n_rows, int64_t n_blocks, const int8_t *codes, const float *d,
                            const int32_t *sums, float *out) {
    constexpr int kLanes = kQ8Block / 2;
    for (int64_t row = 0; row < n_rows; ++row) {
        float lanes[kLanes] = {}, minimum = 0;
        for (int64_t b = 0; b < n_blocks; ++b, rows += kQ2KBytes) {
            const Q2KScales scales = q2_k_scales(rows);
            float of_minima = 0;
            for (int group = 0; group < kQ2KBlock / kQ8Block; ++group) { // a plane of half a block
                const uint8_t *packed = rows + 16 + 32 * (group / 4), *both = rows + 2 * group;
                const int8_t *x = codes + b * kQ2KBlock + group * kQ8Block;
                const int32_t *of_codes = sums + (b * 8 + group) * 2;
                const int shift = 2 * (group % 4), first = both[0] & 15, second = both[1] & 15;
                const float d8 = d[b * 8 + group], scale = scales.d * d8;
#pragma omp simd
                for (int r = 0; r < kLanes; ++r) {
                    const int dot = first * (((packed[r] >> shift) & 3) * x[r]) +
                                    second * (((packed[kLanes + r] >> shift) & 3) * x[kLanes + r]);
                    lanes[r] += scale * static_cast<float>(dot);
                }
                of_minima += d8 * static_cast<float>((both[0] >> 4) * of_codes[0] + (both[1] >> 4) * of_codes[1]);
            }
            minimum += scales.dmin * of_minima;
        }
        float sum = 0;
        for (const float lane : lanes) sum += lane;
        out[row] = sum - minimum;
    }
}

// ---- Attention.

BENCH_INLINE void attend_loop(const float *q, const float *rows, int64_t n_rows, int64_t n, float scale, float sink,
                              float *weights, float *out) {
    float max = sink;
    for (int64_t r = 0; r < n_rows; ++r) {
        const float *row = rows + r * n;
        float dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t e = 0; e < n; ++e) dot += q[e] * row[e];
        weights[r] = dot * scale;
        max = std::max(max, weights[r]);
    }
    float denominator = std::exp(sink - max);
    std::memset(out, 0, static_cast<size_t>(n) * sizeof(float));
    for (int64_t r = 0; r < n_rows; ++r) {
        const float *row = rows + r * n;
        const float weight = std::exp(weights[r] - max);
        denominator += weight;
#pragma omp simd
        for (int64_t e = 0; e < n; ++e) out[e] += weight * row[e];
    }
#pragma omp simd
    for (int64_t e = 0; e < n; ++e) out[e] /= denominator;
}

/// The values of all codes.
std::array<float, 256> table(float (*decode)(uint8_t)) {
    std::array<float, 256> values{};
    for (int i = 0; i < 256; ++i) values[static_cast<size_t>(i)] = decode(static_cast<uint8_t>(i));
    return values;
}

// ---- Scores.

constexpr int kKeys = 16, kHeads = 4; // keys side by side in a vector; heads that share what is loaded of them
using Lanes [[gnu::vector_size(4 * kKeys)]] = float;
using Words [[gnu::vector_size(4 * kKeys)]] = uint32_t;

/// Keys are turned into columns, [n][kKeys], so that nothing is summed across a vector.
BENCH_INLINE void scores_loop(const float *queries, const float *weights, int64_t n_heads, const Bf16 *keys,
                              int64_t n_keys, int64_t n, float *scores, float *columns) {
    for (int64_t first = 0; first < n_keys; first += kKeys) {
        const auto n_here = static_cast<int>(std::min<int64_t>(kKeys, n_keys - first));
        for (int64_t e = 0; e < n; e += 2) {
            uint32_t words[kKeys];
            for (int k = 0; k < kKeys; ++k)
                std::memcpy(&words[k], keys + (first + std::min(k, n_here - 1)) * n + e, sizeof(words[k]));
            Words pairs;
            std::memcpy(&pairs, words, sizeof(pairs));
            const Words low = pairs << 16, high = pairs & 0xffff0000u;
            std::memcpy(columns + e * kKeys, &low, sizeof(low));
            std::memcpy(columns + (e + 1) * kKeys, &high, sizeof(high));
        }
        Lanes sums = {};
        for (int64_t h = 0; h < n_heads; h += kHeads) {
            Lanes dots[kHeads] = {};
            const float *q = queries + h * n;
            for (int64_t e = 0; e < n; ++e) {
                Lanes column;
                std::memcpy(&column, columns + e * kKeys, sizeof(column));
                for (int i = 0; i < kHeads; ++i) dots[i] += q[i * n + e] * column;
            }
            for (int i = 0; i < kHeads; ++i) sums += (dots[i] > 0 ? dots[i] : Lanes{}) * weights[h + i];
        }
        std::memcpy(scores + first, &sums, static_cast<size_t>(n_here) * sizeof(float));
    }
}

} // namespace

Q8Row q8_row(const Bf16 *x, int64_t n) {
    std::vector<Q8Block> blocks(static_cast<size_t>(n / kQ8Block));
    quantise_q8(x, static_cast<int>(n), blocks.data());
    Q8Row row;
    for (const Q8Block &block : blocks) {
        row.d.push_back(f16_to_f32(block.d));
        row.codes.insert(row.codes.end(), std::begin(block.codes), std::end(block.codes));
        int32_t sums[2] = {0, 0};
        for (int i = 0; i < kQ8Block; ++i) sums[2 * i / kQ8Block] += block.codes[i];
        row.sums.insert(row.sums.end(), std::begin(sums), std::end(sums));
    }
    return row;
}

void plain_q2_k(const std::byte *rows, int64_t n_rows, const Q8Row &x, float *out) {
    run_best<q2_k_loop>(reinterpret_cast<const uint8_t *>(rows), n_rows,
                        static_cast<int64_t>(x.codes.size()) / kQ2KBlock, x.codes.data(), x.d.data(), x.sums.data(),
                        out);
}

void plain_unpack_window(const uint8_t *row, int64_t n, float *values) {
    static const auto kCodes = table(e4m3_to_f32);
    for (int64_t b = 0; b < n / kWindowBlock; ++b) {
        const float scale = ue8m0_to_f32(row[n + b]);
        for (int64_t i = b * kWindowBlock; i < (b + 1) * kWindowBlock; ++i) values[i] = kCodes[row[i]] * scale;
    }
}

void plain_unpack_compressed(const uint8_t *row, int64_t n, float *values) {
    static const auto kCodes = table(e2m1_to_f32), kScales = table(e4m3_to_f32);
    for (int64_t b = 0; b < n / kCompressedBlock; ++b) {
        const float scale = kScales[row[n / 2 + b]];
        for (int64_t i = b * kCompressedBlock; i < (b + 1) * kCompressedBlock; i += 2) {
            values[i] = kCodes[row[i / 2] & 15] * scale;
            values[i + 1] = kCodes[row[i / 2] >> 4] * scale;
        }
    }
}

void plain_attend(const float *q, const float *rows, int64_t n_rows, int64_t n, float scale, float sink, float *weights,
                  float *out) {
    run_best<attend_loop>(q, rows, n_rows, n, scale, sink, weights, out);
}

void plain_scores(const float *queries, const float *weights, int64_t n_heads, const Bf16 *keys, int64_t n_keys,
                  int64_t n, float *scores) {
    thread_local std::vector<float> columns;
    columns.resize(static_cast<size_t>(n) * kKeys);
    run_best<scores_loop>(queries, weights, n_heads, keys, n_keys, n, scores, columns.data());
}

} // namespace bench
