// Scores are 16 bits: counts of their upper and then of their lower halves find the k-th best exactly. To count few,
// the best of each stretch of 32 is taken first, which vectors do: the k-th best of those is no better than the k-th
// best of all, so that what lies below it, and stretches that do, need not be looked at again.
#include "backend/cpu/rank.h"

#include <algorithm>
#include <array>

namespace ds41::cpu {

namespace {

struct Cut {
    int place;            // of the k-th best
    std::int64_t n_above; // that are better
};

int upper(int place) {
    return (place >> 8) + 128;
}

// Of counts by value, the value at which, counted from the top, the k-th lies; n_above grows by what lies above it.
int cut_at(const std::uint32_t *counts, std::int64_t k, std::int64_t &n_above) {
    int value = 255;
    for (; value > 0 && n_above + counts[value] < k; --value) n_above += counts[value];
    return value;
}

// each(f) calls f(i, place) for what there is to choose from; places below `low` do not count. The lowest that does,
// where there are fewer than k.
template <typename Each> Cut find_cut(std::int64_t k, int low, Each each) {
    // Four by turns: equal scores would wait for each other's.
    std::uint32_t turns[4][256] = {};
    each([&](std::int64_t i, int place) {
        if (place >= low) ++turns[i % 4][upper(place)];
    });
    std::uint32_t counts[256];
    for (int v = 0; v < 256; ++v) counts[v] = turns[0][v] + turns[1][v] + turns[2][v] + turns[3][v];
    Cut cut{0, 0};
    const int high = cut_at(counts, k, cut.n_above);
    const int first = (high - 128) * 256;
    std::uint32_t fine[256] = {};
    each([&](std::int64_t, int place) {
        if (place >= low && upper(place) == high) ++fine[place - first];
    });
    cut.place = std::max(low, first + cut_at(fine, k, cut.n_above));
    return cut;
}

std::int16_t best_place(const std::uint16_t *scores, std::int64_t n) {
    std::int16_t best = INT16_MIN;
    if (n == kStretch) // a count that the compiler knows
        for (int i = 0; i < kStretch; ++i) best = std::max(best, order_of(scores[i]));
    else
        for (std::int64_t i = 0; i < n; ++i) best = std::max(best, order_of(scores[i]));
    return best;
}

} // namespace

std::int64_t best_of(const std::uint16_t *scores, std::int64_t n, std::int64_t k, std::int16_t *best,
                     std::int32_t *out) {
    if (k <= 0) return 0;
    const std::int64_t n_stretches = stretches_of(n);
    for (std::int64_t s = 0; s < n_stretches; ++s)
        best[s] = best_place(scores + s * kStretch, std::min<std::int64_t>(kStretch, n - s * kStretch));
    int low = kMaskedOrder + 1;
    const auto each_near = [&](auto f) {
        for (std::int64_t s = 0; s < n_stretches; ++s) {
            if (best[s] < low) continue;
            const std::int64_t end = std::min(n, (s + 1) * kStretch);
            for (std::int64_t i = s * kStretch; i < end; ++i) f(i, int{order_of(scores[i])});
        }
    };
    if (n_stretches >= 2 * k) // otherwise it would say little
        low = find_cut(k, low, [&](auto f) {
                  for (std::int64_t s = 0; s < n_stretches; ++s) f(s, int{best[s]});
              }).place;
    // Mostly a few more than k are left.
    std::array<std::int32_t, 2048> left;
    std::size_t n_left = 0;
    each_near([&](std::int64_t i, int place) {
        if (place < low) return;
        if (n_left < left.size()) left[n_left] = static_cast<std::int32_t>(i);
        ++n_left;
    });
    const auto each_left = [&](auto f) {
        if (n_left > left.size()) return each_near(f);
        for (std::size_t j = 0; j < n_left; ++j) f(std::int64_t{left[j]}, int{order_of(scores[left[j]])});
    };
    const Cut cut = find_cut(k, low, each_left);
    low = cut.place;
    std::int64_t n_ties = k - cut.n_above; // that still have a place
    std::int64_t n_taken = 0;
    each_left([&](std::int64_t i, int place) {
        if (place < low || (place == low && n_ties-- <= 0)) return;
        out[n_taken++] = static_cast<std::int32_t>(i);
    });
    return n_taken;
}

} // namespace ds41::cpu
