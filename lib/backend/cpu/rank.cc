// Scores are 16 bits: counts of their upper and then of their lower halves find the k-th best exactly, a third pass
// collects. Most scores matter to the first pass only: the others look at 32 of them at once.
#include "backend/cpu/rank.h"

#include <algorithm>

namespace ds41::cpu {

namespace {

constexpr int kStretch = 32;

// Of counts by value, the value at which, counted from the top, the k-th lies; `above` grows by what lies above it.
int cut_at(const std::uint32_t *counts, std::int64_t k, std::int64_t &above) {
    int value = 255;
    for (; value > 0 && above + counts[value] < k; --value) above += counts[value];
    return value;
}

// f(i, order) for stretches of scores of which one is at least `low`.
template <typename F> void each_near(const std::uint16_t *scores, std::int64_t n, std::int16_t low, F f) {
    for (std::int64_t i = 0; i < n; i += kStretch) {
        const std::int64_t end = std::min(n, i + kStretch);
        if (end - i == kStretch) {
            std::int16_t best = INT16_MIN;
            for (int j = 0; j < kStretch; ++j) best = std::max(best, order_of(scores[i + j]));
            if (best < low) continue;
        }
        for (std::int64_t j = i; j < end; ++j) f(j, order_of(scores[j]));
    }
}

} // namespace

std::int64_t best_of(const std::uint16_t *scores, std::int64_t n, std::int64_t k, std::int32_t *out) {
    if (k <= 0) return 0;
    // Four counters by turns: equal scores after one another would wait for each other's.
    std::uint32_t turns[4][256] = {};
    const auto upper = [](std::int16_t order) { return (order >> 8) + 128; };
    std::int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int t = 0; t < 4; ++t) ++turns[t][upper(order_of(scores[i + t]))];
    for (; i < n; ++i) ++turns[0][upper(order_of(scores[i]))];
    std::uint32_t counts[256];
    for (int v = 0; v < 256; ++v) counts[v] = turns[0][v] + turns[1][v] + turns[2][v] + turns[3][v];

    std::int64_t above = 0;
    const int high = cut_at(counts, k, above);
    const int first = (high - 128) * 256; // lowest place of that upper half
    std::uint32_t fine[257] = {};         // the last one takes what is elsewhere
    each_near(scores, n, static_cast<std::int16_t>(first),
              [&](std::int64_t, std::int16_t order) { ++fine[upper(order) == high ? order - first : 256]; });
    int cut = first + cut_at(fine, k, above);
    std::int64_t n_ties = k - above; // that still have a place
    if (cut <= kMaskedOrder) {       // fewer than k may be taken: all of them
        cut = kMaskedOrder + 1;
        n_ties = n;
    }
    const std::int64_t most = std::min(n, k);
    std::int64_t n_taken = 0;
    each_near(scores, n, static_cast<std::int16_t>(cut), [&](std::int64_t j, std::int16_t order) {
        if (n_taken == most) return;
        out[n_taken] = static_cast<std::int32_t>(j); // taken or written over
        n_taken += (order > cut) | ((order == cut) & (n_ties > 0));
        n_ties -= order == cut;
    });
    return n_taken;
}

} // namespace ds41::cpu
