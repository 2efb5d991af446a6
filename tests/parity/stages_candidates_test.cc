// Stage 4 of every backend, continued: blocks of groups that the candidate source keeps, and layers that score inside
// them.
#include "select_scene.h"

#include <algorithm>
#include <cmath>

using namespace ds41;
using namespace ds41::test;

namespace {

using Indices = std::vector<std::int32_t>;

// The blocks that one token at the end of a sequence with these scores keeps.
Indices kept_blocks(const Backend &backend, const std::vector<double> &scores, int n_blocks, int block_size,
                    ds41_topk_rule rule) {
    const TestLayer layer(backend, make_config(kCrafted, 1, 4, n_blocks, block_size), kSourceLayer);
    const Spans spans = {{static_cast<std::int64_t>(scores.size()) - 1, 1}};
    Queries queries = crafted_queries(layer, spans);
    set_scores(queries, 0, scores);
    const Selection actual = select(layer, *layer.create_stages(spans), queries, {1}, rule);
    // The source's own selection does not know of blocks.
    if (rule == DS41_TOPK_STABLE) CHECK(actual.groups == expected_selection(layer, queries).groups);
    return chosen(actual.blocks[0]);
}

} // namespace

TEST_CASE("candidates: a block is as good as its best group; the newest block is kept") {
    const struct {
        const char *name;
        std::vector<double> scores;
        int n_blocks, block_size;
        Indices kept;
        bool both_rules = true; // no tie is cut, and enough blocks are left
    } cases[] = {
        {"the best of a block", {1, 1, 8, 0, 2, 2, 0, 4, 3, 3, 0, 0}, 2, 2, {1, 5}},
        {"the newest block has the lowest score", {4, 4, 6, 6, 3, 3, -6, -6}, 3, 2, {0, 1, 3}},
        {"the newest block is the best anyway", {4, 4, 6, 6, 3, 3, 8, 8}, 2, 2, {1, 3}},
        {"one block", {4, 4, 6, 6, -1, -1}, 1, 2, {2}},
        {"the newest block beside infinite scores", {INFINITY, 4, INFINITY, 6, -1, -1}, 1, 2, {2}, false},
        {"the newest block is all NaN", {4, 4, 6, 6, NAN, NAN}, 2, 2, {1, 2}, false},
        {"ties go to the lower block", {2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, 3, 2, {0, 1, 4}, false},
        {"all zero", std::vector<double>(200, 0.0), 4, 8, {0, 1, 2, 24}, false},
        {"zeros outrank negatives", {-1, -1, 0, -3, -2, -2, -1, -1}, 2, 2, {1, 3}},
        {"fewer blocks than the limit", {1, 2, 3, 4, 512, -6}, 9, 2, {0, 1, 2}},
        {"as many blocks as the limit", {1, 2, 3, 4, 0, -6}, 3, 2, {0, 1, 2}},
        {"a last block of one group", {4, 4, 4, 6, 6, 6, 3, 3, 3, -2}, 2, 3, {1, 3}},
        {"blocks of one group", {4, 1, 6, 2, 3}, 3, 1, {0, 2, 4}},
        {"a block larger than all groups", {4, 1, 6}, 3, 16, {0}},
        {"a block that is all -inf is not kept",
         {-INFINITY, -INFINITY, 1, 1, -INFINITY, -INFINITY, 2, 2, 0, 0},
         5,
         2,
         {1, 3, 4},
         false},
        {"-inf beside a number", {-INFINITY, -4, 1, 1, -INFINITY, -INFINITY, 2, 2, 0, 0}, 4, 2, {0, 1, 3, 4}, false},
        {"NaN beside numbers", {NAN, 4, 6, NAN, NAN, -1, 1, 1, NAN, 0}, 3, 2, {0, 1, 4}, false},
        {"a block that is all NaN is not kept", {NAN, NAN, 6, 1, NAN, NAN, 1, 1, 0, 0}, 5, 2, {1, 3, 4}, false},
    };
    each_backend([&](const Backend &backend) {
        for (const auto &c : cases) {
            CAPTURE(std::string(c.name));
            CHECK(kept_blocks(backend, c.scores, c.n_blocks, c.block_size, DS41_TOPK_STABLE) == c.kept);
            if (c.both_rules)
                CHECK(kept_blocks(backend, c.scores, c.n_blocks, c.block_size, DS41_TOPK_TORCH_CPU) == c.kept);
        }
    });
}

TEST_CASE("candidates: random scores, several sequences, tiles of every size, then a layer inside the blocks") {
    const struct {
        const char *name;
        Geometry geometry;
        int ratio, topk, n_blocks, block_size;
        Spans spans;
    } cases[] = {
        {"blocks bind", kOdd, 1, 12, 5, 4, {{150, 3}, {0, 3}, {66, 1}}},
        {"ratio 2, nothing visible at first", kWholeHead, 2, 6, 2, 3, {{90, 5}, {1, 1}, {0, 4}}},
        {"one block", kOdd, 1, 6, 1, 8, {{70, 3}}},
        {"more slots than blocks", kOdd, 3, 6, 50, 2, {{70, 4}}},
        {"blocks that straddle pages", kWholeHead, 1, 30, 4, 24, {{200, 2}, {63, 2}}},
    };
    each_backend([&](const Backend &backend) {
        std::uint64_t stream = 900;
        for (const auto &c : cases) {
            CAPTURE(std::string(c.name));
            Random random(stream++);
            const ds41_config config = make_config(c.geometry, c.ratio, c.topk, c.n_blocks, c.block_size);
            const TestLayer source(backend, config, kSourceLayer), later(backend, config, kLaterIndexLayer);
            const int n = token_count(c.spans);
            const Queries queries = random_queries(random, source, c.spans);
            const Selection expected = expected_selection(source, queries);
            // Other queries on the same keys.
            Queries inside = random_queries(random, later, c.spans);
            inside.keys = queries.keys;
            for (const auto &blocks : expected.blocks) inside.kept.push_back(chosen(blocks));
            const Selection expected_inside = expected_selection(later, inside);
            for (const auto &tiles : tilings(n)) {
                const Selection actual = repeated(source, c.spans, [&](Stages &stages, bool poison) {
                    return select(source, stages, poison ? poisoned_queries(queries) : queries, tiles);
                });
                CHECK(actual.blocks == expected.blocks);
                CHECK(actual.groups == expected.groups);
                CHECK(same_scores(actual, expected));
                const Selection actual_inside = repeated(later, c.spans, [&](Stages &stages, bool poison) {
                    return select(later, stages, poison ? poisoned_queries(inside) : inside, tiles);
                });
                CHECK(actual_inside.groups == expected_inside.groups);
                CHECK(actual_inside.blocks == expected_inside.blocks); // as they were
                CHECK(same_scores(actual_inside, expected_inside));
            }
            const Selection torch =
                select(source, *source.create_stages(c.spans), queries, {n}, DS41_TOPK_TORCH_CPU);
            for (std::size_t t = 0; t < expected.groups.size(); ++t) {
                if (expected.ties[t]) continue;
                CHECK(torch.groups[t] == expected.groups[t]);
                CHECK(torch.blocks[t] == expected.blocks[t]);
            }
        }
    });
}

TEST_CASE("candidates: groups that a token does not see do not count for its blocks") {
    each_backend([](const Backend &backend) {
        // Block 1 becomes the best with its last group, block 2 with its first: for the tokens that see them.
        const TestLayer layer(backend, make_config(kCrafted, 1, 4, 2, 2), kSourceLayer);
        const Spans spans = {{2, 5}};
        Queries queries = crafted_queries(layer, spans);
        set_scores(queries, 0, {2, 1, 1, 8, 16, -1, -2});
        const Selection actual = select(layer, *layer.create_stages(spans), queries, {5});
        const Indices expected[] = {{0, 1}, {0, 1}, {1, 2}, {1, 2}, {2, 3}};
        for (std::size_t t = 0; t < 5; ++t) CHECK(chosen(actual.blocks[t]) == expected[t]);
    });
}

TEST_CASE("candidates: a layer that uses them takes groups of kept blocks only") {
    each_backend([](const Backend &backend) {
        const TestLayer layer(backend, make_config(kCrafted, 1, 3, 4, 2), kLaterIndexLayer);
        // One token sees 7 of 8 groups and one 8; two see everything but keep nothing.
        const Spans spans = {{6, 2}, {7, 1}, {7, 1}};
        Queries queries = crafted_queries(layer, spans);
        queries.kept = {{1, 3}, {1, 3}, {}, {0}};
        for (const double outside : {64.0, static_cast<double>(NAN)}) {
            CAPTURE(outside);
            set_scores(queries, 0, {outside, outside, 1, -1, outside, outside, -2, 4});
            set_scores(queries, 1, std::vector<double>(8, outside));
            set_scores(queries, 2, {-1, -INFINITY, outside, outside, outside, outside, outside, outside});
            const Selection actual = select(layer, *layer.create_stages(spans), queries, {4});
            CHECK(chosen(actual.groups[0]) == Indices{2, 3, 6});
            CHECK(chosen(actual.groups[1]) == Indices{2, 3, 7});
            CHECK(chosen(actual.groups[2]).empty());
            CHECK(chosen(actual.groups[3]) == Indices{0});
            CHECK(same_scores(actual, expected_selection(layer, queries)));
        }
    });
}

TEST_CASE("candidates: other index sources are not bound by blocks") {
    each_backend([](const Backend &backend) {
        // A layer before the candidate source: it scores everything, and is handed no blocks.
        TestLayer layer(backend, make_config(kCrafted, 1, 2, 1, 2), kLaterIndexLayer);
        layer.role.uses_candidates = false;
        const Spans spans = {{5, 1}};
        Queries queries = crafted_queries(layer, spans);
        set_scores(queries, 0, {4, 6, 1, -1, -2, -3});
        CHECK(chosen(select(layer, *layer.create_stages(spans), queries, {1}).groups[0]) == Indices{0, 1});
    });
}
