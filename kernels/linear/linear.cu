#include "linear/kernel.cuh"
#include "linear/launch.h"
#include "linear/q2k.cuh"
#include "linear/q8.cuh"

namespace ds41::kernels {

namespace {

template <LinearFormat kFormat, int kTokens>
int launch(simt::Stream stream, const LinearParams &p, unsigned n_blocks, bool wide) {
    const simt::Dim3 grid{n_blocks}, block{kLinearThreads};
    const std::size_t shared = simt::shared_bytes<Bf16>(std::size_t{kTokens} * kLinearChunk);
    if constexpr (kFormat == LinearFormat::kQ2K)
        return wide ? SIMT_LAUNCH(stream, (linear_q2k<kTokens, true>), grid, block, 0, p)
                    : SIMT_LAUNCH(stream, (linear_q2k<kTokens, false>), grid, block, 0, p);
    else
        return wide ? SIMT_LAUNCH(stream, (linear<kFormat, kTokens, true>), grid, block, shared, p)
                    : SIMT_LAUNCH(stream, (linear<kFormat, kTokens, false>), grid, block, shared, p);
}

template <LinearFormat kFormat> int launch_format(simt::Stream stream, const LinearParams &p, unsigned n_blocks) {
    bool wide = true;
    for (int i = 0; i < p.n_segments; ++i) {
        const LinearSegment &s = p.segments[i];
        const auto is_aligned = [](const void *data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
        wide = wide && s.k % kLane == 0 && s.stride_x % kLane == 0 && is_aligned(s.weights) && is_aligned(s.x);
    }
    if (p.n <= 1) return launch<kFormat, 1>(stream, p, n_blocks, wide);
    if (p.n <= 2) return launch<kFormat, 2>(stream, p, n_blocks, wide);
    if (p.n <= 4) return launch<kFormat, 4>(stream, p, n_blocks, wide);
    if (p.n <= 8) return launch<kFormat, 8>(stream, p, n_blocks, wide);
    return launch<kFormat, kMaxLinearRows>(stream, p, n_blocks, wide);
}

} // namespace

int launch_linear(simt::Stream stream, const LinearParams &params) {
    LinearParams p = params;
    int n_blocks = 0;
    for (int i = 0; i < p.n_segments; ++i) {
        p.segments[i].first_block = n_blocks;
        n_blocks += p.segments[i].n_slices * ((p.segments[i].rows + kLinearBlockRows - 1) / kLinearBlockRows);
    }
    switch (p.format) {
    case LinearFormat::kBf16:
        return launch_format<LinearFormat::kBf16>(stream, p, static_cast<unsigned>(n_blocks));
    case LinearFormat::kF32:
        return launch_format<LinearFormat::kF32>(stream, p, static_cast<unsigned>(n_blocks));
    case LinearFormat::kQ2K:
        return launch_format<LinearFormat::kQ2K>(stream, p, static_cast<unsigned>(n_blocks));
    case LinearFormat::kQ2KPlain:
        return launch_format<LinearFormat::kQ2KPlain>(stream, p, static_cast<unsigned>(n_blocks));
    case LinearFormat::kFp8:
        return launch_format<LinearFormat::kFp8>(stream, p, static_cast<unsigned>(n_blocks));
    }
    return 1; // cudaErrorInvalidValue
}

int launch_quantise_q8(simt::Stream stream, const QuantiseQ8Params &p) {
    const unsigned per_block = kQ8Threads / simt::kWarp;
    const unsigned n_blocks = static_cast<unsigned>(p.k / kQ8Values);
    return SIMT_LAUNCH(stream, (quantise_q8),
                       (simt::Dim3{(n_blocks + per_block - 1) / per_block, static_cast<unsigned>(p.n)}),
                       simt::Dim3{kQ8Threads}, 0, p);
}

} // namespace ds41::kernels
