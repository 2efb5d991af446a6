#include "plain_loops.h"

#include "plain_kernels.h"

#include "numeric/q2_k.h"
#include "numeric/rows.h"

#include <array>

namespace bench {

using namespace ds41;

namespace {

/// Those of the best instruction set of this machine.
const PlainKernels &kernels() {
#if defined(__x86_64__)
    static const PlainKernels &kBest =
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
            ? v4::kKernels
        : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? v3::kKernels
                                                                          : portable::kKernels;
    return kBest;
#else
    return portable::kKernels;
#endif
}

/// The values of all codes.
std::array<float, 256> table(float (*decode)(uint8_t)) {
    std::array<float, 256> values{};
    for (int i = 0; i < 256; ++i) values[static_cast<size_t>(i)] = decode(static_cast<uint8_t>(i));
    return values;
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
    kernels().q2_k(reinterpret_cast<const uint8_t *>(rows), n_rows, static_cast<int64_t>(x.codes.size()) / kQ2KBlock,
                   x.codes.data(), x.d.data(), x.sums.data(), out);
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
    kernels().attend(q, rows, n_rows, n, scale, sink, weights, out);
}

void plain_scores(const float *queries, const float *weights, int64_t n_heads, const Bf16 *keys, int64_t n_keys,
                  int64_t n, float *scores) {
    thread_local std::vector<float> columns;
    columns.resize(static_cast<size_t>(n) * kPlainKeys);
    kernels().scores(queries, weights, n_heads, reinterpret_cast<const uint16_t *>(keys), n_keys, n, scores,
                     columns.data());
}

} // namespace bench
