#include "score/kernel.cuh"
#include "score/launch.h"

namespace ds41::kernels {

namespace {

simt::Dim3 grid_of(int n_tokens, std::int64_t n_columns, int tile) {
    const std::int64_t tiles = (n_columns + tile - 1) / tile;
    return {static_cast<unsigned>(n_tokens),
            static_cast<unsigned>(tiles < kScoreGridColumns ? tiles : kScoreGridColumns), 1};
}

template <int kBlocks> int launch_keys(simt::Stream stream, const ScoreParams &p) {
    using Config = ScoreConfig<kBlocks>;
    return SIMT_LAUNCH(stream, (score_keys<kBlocks>), grid_of(p.n, p.n_columns_max, Config::kTile),
                       (simt::Dim3{kScoreThreads, 1, 1}), Config::shared_bytes(p.index_n_heads), p);
}

} // namespace

int launch_score(simt::Stream stream, const ScoreParams &p) {
    constexpr simt::Dim3 kBlock{kScoreThreads, 1, 1};
    if (p.n == 0) return 0;
    if (p.tap && p.stride_tap > 0) {
        const int error = SIMT_LAUNCH(stream, (clear_tap), grid_of(p.n, p.stride_tap, kScoreThreads), kBlock, 0, p);
        if (error != 0) return error;
    }
    if (p.n_columns_max <= 0) return 0;
    if (p.index_head_dim <= 4 * kIndexKeyBlock) return launch_keys<4>(stream, p);
    if (p.index_head_dim <= 8 * kIndexKeyBlock) return launch_keys<8>(stream, p);
    return SIMT_LAUNCH(stream, (score_long_keys), grid_of(p.n, p.n_columns_max, kScoreThreads), kBlock, 0, p);
}

} // namespace ds41::kernels
