// Compiled several times: BENCH_LEVEL is the namespace of this one. Includes nothing that has functions in it: the
// linker keeps one of several copies of such a function, perhaps one that this machine cannot run.
#include "plain_kernels.h"

#include <math.h>
#include <string.h>

namespace bench::BENCH_LEVEL {

namespace {

// ---- Q2_K: see numeric/q2_k.h.

constexpr int kBlock = 256, kBlockBytes = 84, kGroup = 32; // values, bytes; values with one scale of activations

/// Of fp16, finite.
float half_at(const uint8_t *bytes) {
    const uint32_t bits = (bytes[0] | uint32_t{bytes[1]} << 8), magnitude = (bits & 0x7fffu) << 13;
    float value;
    memcpy(&value, &magnitude, sizeof(value));
    return (bits & 0x8000u ? -0x1p112f : 0x1p112f) * value;
}

constexpr int kLanes = kGroup / 2; // values with one scale of the weights
using Bytes [[gnu::vector_size(kLanes)]] = uint8_t;
using Codes [[gnu::vector_size(kLanes)]] = int8_t;
using Shorts [[gnu::vector_size(2 * kLanes)]] = int16_t;
using Lanes [[gnu::vector_size(4 * kLanes)]] = float;
using Words [[gnu::vector_size(4 * kLanes)]] = uint32_t;

/// Sums stand in as many lanes as a scale has values, and are added up at the end of a row.
void q2_k(const uint8_t *rows, int64_t n_rows, int64_t n_blocks, const int8_t *codes, const float *d,
          const int32_t *sums, float *out) {
    for (int64_t row = 0; row < n_rows; ++row) {
        Lanes lanes = {};
        float minimum = 0;
        for (int64_t b = 0; b < n_blocks; ++b, rows += kBlockBytes) {
            const float block_scale = half_at(rows + 80), block_min = half_at(rows + 82);
            float of_minima = 0;
            for (int group = 0; group < kBlock / kGroup; ++group) { // a plane of half a block
                const uint8_t *packed = rows + 16 + 32 * (group / 4), *both = rows + 2 * group;
                const int8_t *x = codes + b * kBlock + group * kGroup;
                const int32_t *of_codes = sums + (b * 8 + group) * 2;
                Shorts dot = {}; // at most 2 * 15 * 3 * 127
                for (int half = 0; half < 2; ++half) {
                    Bytes weights;
                    Codes activations;
                    memcpy(&weights, packed + half * kLanes, sizeof(weights));
                    memcpy(&activations, x + half * kLanes, sizeof(activations));
                    const Shorts values = (__builtin_convertvector(weights, Shorts) >> (2 * (group % 4))) & 3;
                    dot +=
                        values * __builtin_convertvector(activations, Shorts) * static_cast<int16_t>(both[half] & 15);
                }
                const float d8 = d[b * 8 + group];
                lanes += block_scale * d8 * __builtin_convertvector(dot, Lanes);
                of_minima += d8 * static_cast<float>((both[0] >> 4) * of_codes[0] + (both[1] >> 4) * of_codes[1]);
            }
            minimum += block_min * of_minima;
        }
        float sum = 0;
        for (int i = 0; i < kLanes; ++i) sum += lanes[i];
        out[row] = sum - minimum;
    }
}

// ---- Attention.

void attend(const float *q, const float *rows, int64_t n_rows, int64_t n, float scale, float sink, float *weights,
            float *out) {
    float max = sink;
    for (int64_t r = 0; r < n_rows; ++r) {
        const float *row = rows + r * n;
        float dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t e = 0; e < n; ++e) dot += q[e] * row[e];
        weights[r] = dot * scale;
        if (weights[r] > max) max = weights[r];
    }
    float denominator = expf(sink - max);
    memset(out, 0, static_cast<size_t>(n) * sizeof(float));
    for (int64_t r = 0; r < n_rows; ++r) {
        const float *row = rows + r * n;
        const float weight = expf(weights[r] - max);
        denominator += weight;
#pragma omp simd
        for (int64_t e = 0; e < n; ++e) out[e] += weight * row[e];
    }
#pragma omp simd
    for (int64_t e = 0; e < n; ++e) out[e] /= denominator;
}

// ---- Scores.

constexpr int kKeys = kPlainKeys, kHeads = 8; // keys of a vector; heads that share what is loaded of them
static_assert(kKeys == kLanes);

/// Keys are turned into columns, [n][kKeys], so that nothing is summed across a vector.
void scores(const float *queries, const float *weights, int64_t n_heads, const uint16_t *keys, int64_t n_keys,
            int64_t n, float *out, float *columns) {
    for (int64_t first = 0; first < n_keys; first += kKeys) {
        const int n_here = n_keys - first < kKeys ? static_cast<int>(n_keys - first) : kKeys;
        // Pairs of values side by side, in the upper half of the columns; then split from below, which reaches no pair
        // before it is read. In two passes: a vector is slow to load from words just stored.
        float *pairs = columns + n / 2 * kKeys;
        for (int k = 0; k < kKeys; ++k) {
            const uint16_t *key = keys + (first + (k < n_here ? k : n_here - 1)) * n;
            for (int64_t e = 0; e < n; e += 2) memcpy(pairs + e / 2 * kKeys + k, key + e, 4);
        }
        for (int64_t e = 0; e < n; e += 2) {
            Words pair;
            memcpy(&pair, pairs + e / 2 * kKeys, sizeof(pair));
            const Words low = pair << 16, high = pair & 0xffff0000u;
            memcpy(columns + e * kKeys, &low, sizeof(low));
            memcpy(columns + (e + 1) * kKeys, &high, sizeof(high));
        }
        Lanes sums = {};
        for (int64_t h = 0; h < n_heads; h += kHeads) {
            Lanes dots[kHeads] = {};
            const float *q = queries + h * n;
            for (int64_t e = 0; e < n; ++e) {
                Lanes column;
                memcpy(&column, columns + e * kKeys, sizeof(column));
                for (int i = 0; i < kHeads; ++i) dots[i] += q[i * n + e] * column;
            }
            for (int i = 0; i < kHeads; ++i) sums += (dots[i] > 0 ? dots[i] : Lanes{}) * weights[h + i];
        }
        memcpy(out + first, &sums, static_cast<size_t>(n_here) * sizeof(float));
    }
}

} // namespace

extern const PlainKernels kKernels;
const PlainKernels kKernels = {q2_k, attend, scores};

} // namespace bench::BENCH_LEVEL
