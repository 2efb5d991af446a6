// Shapes of the score kernels.
#pragma once

#include "numeric/rows.h"
#include "simt/types.h"

namespace ds41::kernels {

constexpr int kScoreThreads = 128;
constexpr int kScoreGridColumns = 1024; // of columns, each going on to further ones: about 8 on each of 132 SMs

// Blocks of 32 values, of a key and of each query.
template <int kBlocks> struct ScoreConfig {
    // Each query word that comes from shared memory serves two keys. 64 registers hold them; keys of 8 blocks fill
    // those alone.
    static constexpr int kKeys = kBlocks <= 4 ? 2 : 1;
    static constexpr int kTile = kScoreThreads * kKeys;
    static constexpr int kCodeWords = kBlocks * kIndexKeyBlock / 4; // of an expanded row, four values each
    // Of a staged row, at most; odd, so that 32 rows lie in different banks.
    static constexpr int kRowWords = (kBlocks * 17 + 3) / 4 | 1;

    static constexpr std::size_t kRowBytes =
        simt::shared_bytes<std::uint32_t>(kTile * kRowWords) + simt::shared_bytes<const std::uint8_t *>(kTile);
    static constexpr std::size_t kHeadBytes = (kCodeWords + kBlocks + 1) * 4;
    // Heads whose queries fit beside the rows into the 48 KiB that need no asking; with more, queries are staged anew
    // for each tile of keys.
    static constexpr int kHeads = static_cast<int>((48 * 1024 - kRowBytes - 64) / kHeadBytes);
    static_assert(kHeads >= 32);

    static constexpr std::size_t shared_bytes(int n_heads) {
        const auto n = static_cast<std::size_t>(n_heads < kHeads ? n_heads : kHeads);
        return kRowBytes + simt::shared_bytes<int>(n * kCodeWords) + simt::shared_bytes<float>(n * kBlocks) +
               simt::shared_bytes<float>(n);
    }
};

} // namespace ds41::kernels
