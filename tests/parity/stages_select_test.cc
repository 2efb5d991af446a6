// Stage 4 of every backend: scores of groups with all their roundings, and the best of them.
#include "select_scene.h"

#include <cmath>

using namespace ds41;
using namespace ds41::test;

TEST_CASE("select: every shape, tiles of every size, both rules where no tie is cut") {
    const struct {
        const char *name;
        Geometry geometry;
        int ratio, topk;
        Spans spans;
    } cases[] = {
        {"one head, one token", kTiny, 1, 3, {{0, 1}}},
        {"ratio 2, nothing visible at first", kOdd, 2, 4, {{0, 5}, {13, 3}}},
        {"three pages and a border", kOdd, 1, 20, {{150, 2}, {62, 4}, {3, 1}}},
        {"ratio 3", kWholeHead, 3, 8, {{200, 5}, {1, 2}}},
        {"k of one", kOdd, 2, 1, {{40, 3}}},
        {"k larger than visible", kOdd, 1, 512, {{30, 3}}},
        {"production heads", kProduction, 2, 40, {{600, 2}, {9, 1}}},
    };
    each_backend([&](const Backend &backend) {
        std::uint64_t stream = 800;
        for (const auto &c : cases) {
            CAPTURE(std::string(c.name));
            Random random(stream++);
            const TestLayer layer(backend, make_config(c.geometry, c.ratio, c.topk), kSourceLayer);
            const Queries queries = random_queries(random, layer, c.spans);
            const Selection expected = expected_selection(layer, queries);
            const int n = token_count(c.spans);
            for (const auto &tiles : tilings(n)) {
                const Selection actual = repeated(layer, c.spans, [&](Stages &stages, bool poison) {
                    return select(layer, stages, poison ? poisoned_queries(queries) : queries, tiles);
                });
                CHECK(same_scores(actual, expected));
                CHECK(actual.groups == expected.groups);
                CHECK(actual.blocks == expected.blocks);
            }
            const auto stages = layer.create_stages(c.spans);
            CHECK(select(layer, *stages, queries, {n}, DS41_TOPK_STABLE, false).groups ==
                  expected.groups); // without a tap
            const Selection torch =
                select(layer, *layer.create_stages(c.spans), queries, {n}, DS41_TOPK_TORCH_CPU);
            CHECK(same_scores(torch, expected));
            for (std::size_t t = 0; t < expected.groups.size(); ++t)
                if (!expected.ties[t]) CHECK(torch.groups[t] == expected.groups[t]);
        }
    });
}

TEST_CASE("select: every rounding step decides a selection") {
    // Of two groups that are equal once rounded the first is taken; without the step the second would be.
    using Values = std::vector<int>;
    const struct {
        const char *name;
        bool Steps::*step;
        float weights[2];
        Values queries[2], first, second; // e2m1 values, the rest zero
    } cases[] = {
        // 256 w - 256 w and 257 w - 256 w, where 257 w would be rounded up
        {"a dot product",
         &Steps::round_dot,
         {129.0f / 128.0f, -129.0f / 128.0f},
         {{6, 6, 6, 6, 6, 6, 6, 1, 1}, {6, 6, 6, 6, 6, 6, 6, 1}},
         {6, 6, 6, 6, 6, 6, 6, 4},
         {6, 6, 6, 6, 6, 6, 6, 4, 1}},
        // -1 and 0 (a tie of zeros), with a weight that is negative: 1 without the relu
        {"the relu", &Steps::relu, {-1, 0}, {{1}, {}}, {0}, {-1}},
        // 0 - 0, and bf16(129 * 129 / 128 = 130.008) - 130
        {"a product",
         &Steps::round_product,
         {129.0f / 128.0f, -1},
         {{6, 6, 6, 3, 1}, {6, 6, 6, 3, 0, 4}},
         {0},
         {6, 6, 6, 6, 3, 1}},
        // 256 + 0 and 256 + 1
        {"the sum",
         &Steps::round_sum,
         {1, 1},
         {{6, 6, 6, 6, 6, 6, 6, 1}, {0, 0, 0, 0, 0, 0, 0, 0, 1}},
         {6, 6, 6, 6, 6, 6, 6, 4},
         {6, 6, 6, 6, 6, 6, 6, 4, 1}},
    };
    const auto packed = [](const Values &values) {
        std::vector<std::uint8_t> row(17);
        row[16] = 127;
        for (std::size_t i = 0; i < values.size(); ++i) {
            int code = 0;
            while (e2m1_value(code) != values[i]) ++code;
            row[i / 2] |= static_cast<std::uint8_t>(code << (4 * (i % 2)));
        }
        return row;
    };
    each_backend([&](const Backend &backend) {
        for (const auto &c : cases) {
            CAPTURE(std::string(c.name));
            const TestLayer layer(backend, make_config(kCrafted, 1, 1), kSourceLayer);
            const Queries queries = {{{1, 1}},
                                     {},
                                     {to_bf16(c.weights[0]), to_bf16(c.weights[1])},
                                     {{packed(c.first), packed(c.second)}},
                                     {}};
            Queries asked = queries;
            append(asked.iq, packed(c.queries[0]));
            append(asked.iq, packed(c.queries[1]));
            const Selection actual = select(layer, *layer.create_stages(asked.spans), asked, {1});
            CHECK(chosen(actual.groups[0]) == std::vector<std::int32_t>{0});
            CHECK(same_scores(actual, expected_selection(layer, asked)));
            Steps steps;
            steps.*c.step = false;
            CHECK(chosen(expected_selection(layer, asked, steps).groups[0]) == std::vector<std::int32_t>{1});
        }
    });
}

TEST_CASE("select: the sum over heads is f32, in ascending order") {
    each_backend([](const Backend &backend) {
        // Products a 2^24, b, -a 2^24, c with small b and c: the order decides what is left of b.
        Geometry g = kTiny;
        g.index_heads = 4;
        Random random(830);
        const TestLayer layer(backend, make_config(g, 1, 8), kSourceLayer);
        const Spans spans = {{120, 8}};
        Queries queries = random_queries(random, layer, spans);
        constexpr float kWeights[] = {0x1p24f, 1.0f, -0x1p24f, 1.0f};
        const std::size_t row_bytes = packed_bytes(Packing::kIndexKey, 32);
        for (std::size_t t = 0; t < 8; ++t) {
            for (std::size_t h = 0; h < 4; ++h) queries.weights[t * 4 + h] = to_bf16(kWeights[h]);
            std::copy_n(queries.iq.begin() + static_cast<std::ptrdiff_t>(t * 4 * row_bytes), row_bytes,
                        queries.iq.begin() + static_cast<std::ptrdiff_t>((t * 4 + 2) * row_bytes));
        }
        const Selection expected = expected_selection(layer, queries);
        const Selection actual = select(layer, *layer.create_stages(spans), queries, {8});
        CHECK(same_scores(actual, expected));
        CHECK(actual.groups == expected.groups);
        for (bool Steps::*step : {&Steps::ascending, &Steps::in_f32, &Steps::one_by_one}) {
            Steps steps;
            steps.*step = false;
            CHECK(expected_selection(layer, queries, steps).groups != expected.groups);
        }
    });
}

TEST_CASE("select: a group is visible once it is complete") {
    each_backend([](const Backend &backend) {
        // Later groups score higher: each token takes the newest that it sees.
        for (int ratio = 1; ratio <= 4; ++ratio) {
            CAPTURE(ratio);
            const TestLayer layer(backend, make_config(kCrafted, ratio, 2), kSourceLayer);
            const Spans spans = {{0, 13}, {ratio - 1, 2}, {5 * ratio, 1}};
            Queries queries = crafted_queries(layer, spans);
            for (std::size_t s = 0; s < spans.size(); ++s) {
                std::vector<double> scores;
                for (int j = 0; j < 13; ++j) scores.push_back(std::ldexp(1.0, j));
                set_scores(queries, s, scores);
            }
            const Selection actual = select(layer, *layer.create_stages(spans), queries, {16});
            const TestStep step(layer, spans);
            for (std::size_t t = 0; t < actual.groups.size(); ++t) {
                const auto visible = static_cast<std::int32_t>((step.tokens()[t].pos + 1) / ratio);
                std::vector<std::int32_t> newest;
                for (std::int32_t j = std::max(visible - 2, 0); j < visible; ++j) newest.push_back(j);
                CHECK(chosen(actual.groups[t]) == newest);
            }
            CHECK(same_scores(actual, expected_selection(layer, queries)));
        }
    });
}

TEST_CASE("select: ties, zeros, negatives, infinities, NaN") {
    const struct {
        const char *name;
        std::vector<double> scores;
        int topk;
        std::vector<std::int32_t> groups;
    } cases[] = {
        {"all equal and zero", std::vector<double>(140, 0.0), 5, {0, 1, 2, 3, 4}},
        {"all equal and positive", std::vector<double>(140, 3.0), 3, {0, 1, 2}},
        {"all equal and negative", std::vector<double>(140, -0.5), 3, {0, 1, 2}},
        {"a tie at the cut", {1, 2, 1, 4, 1, 1}, 3, {0, 1, 3}},
        {"zeros outrank negatives", {-1, 0, -0.5, 0, -6, 0}, 4, {0 + 1, 2, 3, 5}},
        {"negatives are taken when nothing else is there", {-1, -4, -2}, 2, {0, 2}},
        {"minus infinity is never taken", {-INFINITY, 1, -INFINITY, -3}, 4, {1, 3}},
        {"nothing but minus infinity", {-INFINITY, -INFINITY}, 2, {}},
        {"infinity is the best", {6, INFINITY, 4, INFINITY, 0x1p100}, 2, {1, 3}},
        {"NaN is below all and never taken", {NAN, -6, NAN, 1, NAN}, 4, {1, 3}},
        {"NaN between numbers", {2, NAN, 3, NAN, 1, 4}, 2, {2, 5}},
        {"nothing but NaN", {NAN, NAN, NAN}, 2, {}},
        {"NaN and infinities", {NAN, -INFINITY, INFINITY, NAN, 0}, 5, {2, 4}},
    };
    each_backend([&](const Backend &backend) {
        for (const auto &c : cases) {
            CAPTURE(std::string(c.name));
            const TestLayer layer(backend, make_config(kCrafted, 1, c.topk), kSourceLayer);
            const auto n = static_cast<std::int64_t>(c.scores.size());
            const Spans spans = {{n - 1, 1}};
            Queries queries = crafted_queries(layer, spans);
            set_scores(queries, 0, c.scores);
            const Selection actual = select(layer, *layer.create_stages(spans), queries, {1});
            CHECK(chosen(actual.groups[0]) == c.groups);
            for (std::size_t j = 0; j < c.scores.size(); ++j) {
                const auto score = static_cast<double>(actual.scores[0][j]);
                CHECK((score == bf16_value(c.scores[j]) || (std::isnan(score) && std::isnan(c.scores[j]))));
            }
        }
    });
}

TEST_CASE("select: NaN in one token's query or weight leaves the others as they are") {
    each_backend([](const Backend &backend) {
        for (const int n_blocks : {0, 3}) {
            Random random(840);
            const TestLayer layer(backend, make_config(kOdd, 1, 6, n_blocks), kSourceLayer);
            const Spans spans = {{60, 4}, {5, 2}};
            Queries queries = random_queries(random, layer, spans);
            const auto stages = layer.create_stages(spans);
            const Selection clean = select(layer, *stages, queries, {6});
            queries.iq[(1 * 3 + 1) * 34 + 33] = 255; // token 1, head 1: a scale
            queries.weights[4 * 3 + 2].bits = 0x7fc0;
            const Selection dirty = select(layer, *stages, queries, {6});
            for (const std::size_t t : {0u, 2u, 3u, 5u}) {
                CHECK(dirty.groups[t] == clean.groups[t]);
                CHECK((n_blocks == 0 || dirty.blocks[t] == clean.blocks[t]));
            }
            CHECK(chosen(dirty.groups[1]).empty());
            CHECK(chosen(dirty.groups[4]).empty());
        }
    });
}

TEST_CASE("select: keys that no token of the step sees are not looked at") {
    each_backend([](const Backend &backend) {
        // The first sequence has no key at all, the second one's page holds NaN behind its last group.
        const TestLayer layer(backend, make_config(kCrafted, 4, 3), kSourceLayer);
        const Spans spans = {{0, 2}, {7, 2}};
        Queries queries = crafted_queries(layer, spans);
        set_scores(queries, 1, {-1, -2});
        const Selection actual = select(layer, *layer.create_stages(spans), queries, {4});
        CHECK(chosen(actual.groups[0]).empty());
        CHECK(chosen(actual.groups[1]).empty());
        CHECK(chosen(actual.groups[2]) == std::vector<std::int32_t>{0, 1});
        CHECK(chosen(actual.groups[3]) == std::vector<std::int32_t>{0, 1});
    });
}
