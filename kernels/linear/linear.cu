#include "linear/kernel.cuh"
#include "linear/launch.h"
#include "linear/q2k.cuh"
#include "linear/quantise.cuh"

namespace ds41::kernels {

namespace {

constexpr int kInvalidValue = 1; // cudaErrorInvalidValue

template <LinearFormat kFormat, int kTokens, int kWarps>
int launch(simt::Stream stream, const LinearParams &p, unsigned n_blocks, bool wide) {
    const simt::Dim3 grid{n_blocks}, block{kWarps * simt::kWarp};
    constexpr std::size_t kResults =
        simt::shared_bytes<std::uint32_t>(kWarps == kQuantisingWarps ? kTokens * kWarps : 0);
    if constexpr (kFormat == LinearFormat::kQ2K) {
        constexpr std::size_t kShared = simt::shared_bytes<std::uint32_t>(std::size_t{kTokens} * kQ2KStagedWords) +
                                        simt::shared_bytes<float>(std::size_t{kTokens} * kQ2KStagedScales) + kResults;
        return wide ? SIMT_LAUNCH(stream, (linear_q2k<kTokens, true, kWarps>), grid, block, kShared, p)
                    : SIMT_LAUNCH(stream, (linear_q2k<kTokens, false, kWarps>), grid, block, kShared, p);
    } else {
        constexpr std::size_t kShared =
            simt::shared_bytes<Bf16>(std::size_t{kTokens} * linear_chunk(kTokens, kWarps)) + kResults;
        return wide ? SIMT_LAUNCH(stream, (linear<kFormat, kTokens, true, kWarps>), grid, block, kShared, p)
                    : SIMT_LAUNCH(stream, (linear<kFormat, kTokens, false, kWarps>), grid, block, kShared, p);
    }
}

template <LinearFormat kFormat, int kWarps> int launch_format(simt::Stream stream, LinearParams p) {
    bool wide = true;
    int n_blocks = 0;
    for (int i = 0; i < p.n_segments; ++i) {
        LinearSegment &s = p.segments[i];
        const auto is_aligned = [](const void *data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; };
        wide = wide && s.k % kLane == 0 && s.stride_x % kLane == 0 && is_aligned(s.weights) && is_aligned(s.x);
        constexpr int kBlockRows = kWarps * kLinearRows;
        s.first_block = n_blocks;
        n_blocks += s.n_slices * ((s.rows + kBlockRows - 1) / kBlockRows);
    }
    const auto grid = static_cast<unsigned>(n_blocks);
    if (p.n <= 1) return launch<kFormat, 1, kWarps>(stream, p, grid, wide);
    if (p.n <= 2) return launch<kFormat, 2, kWarps>(stream, p, grid, wide);
    if (p.n <= 4) return launch<kFormat, 4, kWarps>(stream, p, grid, wide);
    if (p.n <= 8) return launch<kFormat, 8, kWarps>(stream, p, grid, wide);
    return launch<kFormat, kMaxLinearRows, kWarps>(stream, p, grid, wide);
}

template <int kWarps> int launch_warps(simt::Stream stream, const LinearParams &p) {
    switch (p.format) {
    case LinearFormat::kBf16:
        return launch_format<LinearFormat::kBf16, kWarps>(stream, p);
    case LinearFormat::kF32:
        return launch_format<LinearFormat::kF32, kWarps>(stream, p);
    case LinearFormat::kQ2K:
        return launch_format<LinearFormat::kQ2K, kWarps>(stream, p);
    case LinearFormat::kQ2KPlain:
        return launch_format<LinearFormat::kQ2KPlain, kWarps>(stream, p);
    case LinearFormat::kFp8:
        return launch_format<LinearFormat::kFp8, kWarps>(stream, p);
    }
    return kInvalidValue;
}

} // namespace

int launch_linear(simt::Stream stream, const LinearParams &p) {
    bool is_quantising = false;
    for (int i = 0; i < p.n_segments; ++i) {
        const LinearSegment &s = p.segments[i];
        if (s.quantised.form == QuantisedForm::kNone) continue;
        if (s.output != LinearOutput::kBf16 || s.rows % kQuantisedBlock != 0) return kInvalidValue;
        is_quantising = true;
    }
    return is_quantising ? launch_warps<kQuantisingWarps>(stream, p) : launch_warps<kLinearWarps>(stream, p);
}

int launch_quantise(simt::Stream stream, const QuantiseParams &p) {
    if (p.out.form == QuantisedForm::kNone || p.out.width % kQuantisedBlock != 0) return kInvalidValue;
    const unsigned per_block = kQuantiseThreads / simt::kWarp;
    const unsigned n_blocks = static_cast<unsigned>(p.out.width / kQuantisedBlock);
    return SIMT_LAUNCH(stream, (quantise),
                       (simt::Dim3{(n_blocks + per_block - 1) / per_block, static_cast<unsigned>(p.n)}),
                       simt::Dim3{kQuantiseThreads}, 0, p);
}

} // namespace ds41::kernels
