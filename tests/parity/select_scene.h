// Index queries and keys for tests of the selection: random ones whose dot products are exact in f32, and crafted ones
// that give each group the score that a test wants. And the selection that the design asks for.
#pragma once

#include "scene.h"

#include <vector>

namespace ds41::test {

struct Queries {
    Spans spans;
    std::vector<std::uint8_t> iq;                             // [n_tokens, index_n_heads] packed rows
    std::vector<Bf16> weights;                                // [n_tokens, index_n_heads]
    std::vector<std::vector<std::vector<std::uint8_t>>> keys; // by span and group; none: the row stays NaN
    std::vector<std::vector<std::int32_t>> kept;              // by token: blocks, for layers that use candidates
};

Queries random_queries(Random &random, const TestLayer &layer, const Spans &spans);
Queries poisoned_queries(Queries queries);

// Two heads that see the first value of a key, one as it is and one negated, with weights 1 and -1: it is the score.
constexpr Geometry kCrafted = {"crafted scores", 32, 1, 32, 2, 32, 1, 8, 4, 2, 32};
Queries crafted_queries(const TestLayer &layer, const Spans &spans);
// Scores are NaN, infinite, or e2m1 values times a power of two. One for each group, or more.
void set_scores(Queries &queries, std::size_t span, const std::vector<double> &scores);

struct Selection {
    std::vector<std::vector<std::int32_t>> groups, blocks; // by token, padded with -1
    std::vector<std::vector<float>> scores;                // by token: of the groups at the end of its span
    std::vector<bool> ties;                                // whether a cut goes between equal scores

    bool operator==(const Selection &o) const {
        if (groups != o.groups || blocks != o.blocks || scores.size() != o.scores.size()) return false;
        for (std::size_t t = 0; t < scores.size(); ++t)
            if (!equal_bits(scores[t], o.scores[t])) return false;
        return true;
    }
};

// Bit for bit; any NaN is as good as another.
Comparison same_scores(const Selection &actual, const Selection &expected);
// Without the padding. -1 before another entry stays.
std::vector<std::int32_t> chosen(std::vector<std::int32_t> slots);

Selection select(const TestLayer &layer, Stages &stages, const Queries &queries, const std::vector<int> &tiles,
                 ds41_topk_rule rule = DS41_TOPK_STABLE, bool tapped = true);

// Steps of the score, to be left out one at a time.
struct Steps {
    bool round_dot = true, relu = true, round_product = true, round_sum = true;
    bool ascending = true, in_f32 = true, one_by_one = true; // of the sum over heads
};

Selection expected_selection(const TestLayer &layer, const Queries &queries, Steps steps = {});

} // namespace ds41::test
