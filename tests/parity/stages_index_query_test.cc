// Stage 3 of every backend: index queries, rotated and packed, and the heads' weights.
#include "scene.h"

#include <algorithm>
#include <cmath>

using namespace ds41;
using namespace ds41::test;

namespace {

struct Weights {
    TestMatrix wq_b, weights_proj;
};

void hold(TestLayer &layer, const Weights &w) {
    layer.weights.indexer_wq_b = layer.hold(w.wq_b);
    layer.weights.indexer_weights_proj = layer.hold(w.weights_proj);
}

Weights make_weights(Random &random, const Geometry &g, Format wq_b, Format weights_proj, Values values) {
    return {make_matrix(random, wq_b, g.index_heads * g.index_dim, g.q_rank, values),
            make_matrix(random, weights_proj, g.index_heads, g.dim, values)};
}

struct Result {
    std::vector<std::uint8_t> queries;
    std::vector<Bf16> weights;

    bool operator==(const Result &o) const { return equal_bits(queries, o.queries) && equal_bits(weights, o.weights); }
};

Result index_query(const TestLayer &layer, Stages &stages, const Spans &spans, const std::vector<Bf16> &x,
                   const std::vector<Bf16> &qr, const std::vector<int> &tiles) {
    TestStep step(layer, spans);
    const Config &c = layer.config;
    const auto heads = static_cast<std::size_t>(c.index_n_heads), rank = static_cast<std::size_t>(c.q_lora_rank);
    Buffer<Bf16> x_buffer(layer.memory(), x);
    Result result;
    std::int32_t first = 0;
    for (const std::int32_t n : tiles) {
        const auto tile = static_cast<std::size_t>(n);
        Buffer<Bf16> qr_buffer(layer.memory(), slice(qr, static_cast<std::size_t>(first) * rank, tile * rank));
        Buffer<std::uint8_t> queries(layer.memory(), tile * heads * packed_bytes(Packing::kIndexKey, c.index_head_dim));
        Buffer<Bf16> weights(layer.memory(), tile * heads);
        stages.index_query(
            {step.view(), {first, n}, x_buffer.data(), qr_buffer.data(), queries.data(), weights.data()});
        append(result.queries, queries.get());
        append(result.weights, weights.get());
        first += n;
    }
    return result;
}

// index_head_dim^-0.5 * index_n_heads^-0.5 in f32.
double weight_scale(const Config &c) {
    return static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.index_head_dim) * c.index_n_heads));
}

Row head_weights(const Config &c, const Weights &w, const Row &x) {
    Row row = linear(w.weights_proj, x);
    for (Bounded &value : row) {
        const double scaled = value.value * weight_scale(c);
        value = rounded({scaled, value.error * weight_scale(c) + 2.0 * kF32Step * std::fabs(scaled)});
    }
    return row;
}

void check(const TestLayer &layer, const Weights &w, const Spans &spans, const std::vector<Bf16> &x,
           const std::vector<Bf16> &qr, const Result &result) {
    const Config &c = layer.config;
    const auto dim = static_cast<std::size_t>(c.dim), rank = static_cast<std::size_t>(c.q_lora_rank);
    const auto heads = static_cast<std::size_t>(c.index_n_heads), width = static_cast<std::size_t>(c.index_head_dim);
    const std::size_t row_bytes = packed_bytes(Packing::kIndexKey, c.index_head_dim);
    const TestStep step(layer, spans);
    Verdict queries, weights;
    for (std::size_t t = 0; t < step.tokens().size(); ++t) {
        Row iq = linear(w.wq_b, exactly(slice(qr, t * rank, rank)));
        for (std::size_t h = 0; h < heads; ++h) {
            const auto head = std::span(iq).subspan(h * width, width);
            rotate(head, layer.rope.frequencies(), step.tokens()[t].pos);
            queries.expect_packed(Packing::kIndexKey, slice(result.queries, (t * heads + h) * row_bytes, row_bytes),
                                  head);
        }
        weights.expect_bf16(slice(result.weights, t * heads, heads),
                            head_weights(c, w, exactly(slice(x, t * dim, dim))));
    }
    CHECK_MESSAGE(queries.is_right(), queries);
    CHECK_MESSAGE(weights.is_right(), weights);
    CHECK_MESSAGE(queries.is_tight(), queries);
    CHECK_MESSAGE(weights.is_tight(), weights);
}

} // namespace

TEST_CASE("index_query: every shape, tiles of every size") {
    const struct {
        Geometry geometry;
        Spans spans;
    } cases[] = {
        {kTiny, {{1, 1}}},
        {kOdd, {{0, 3}, {17, 1}, {1048570, 2}}},
        {kWholeHead, {{40000, 5}, {3, 2}}},
        {kProduction, {{131071, 1}, {2, 2}}},
    };
    each_backend([&](const Backend &backend) {
        for (const auto &c : cases) {
            CAPTURE(std::string(c.geometry.name));
            Random random(400);
            TestLayer layer(backend, make_config(c.geometry, 2), kLaterIndexLayer);
            const Weights w = make_weights(random, c.geometry, Format::kBf16, Format::kBf16, Values::kRandom);
            hold(layer, w);
            const int n = token_count(c.spans);
            const auto x = make_inputs(random, n * c.geometry.dim, Values::kRandom);
            const auto qr = make_inputs(random, n * c.geometry.q_rank, Values::kRandom);
            Result whole;
            for (const auto &tiles : tilings(n)) {
                const Result result = repeated(layer, c.spans, [&](Stages &stages, bool poison) {
                    return index_query(layer, stages, c.spans, poison ? poisoned(x.size()) : x,
                                       poison ? poisoned(qr.size()) : qr, tiles);
                });
                if (tiles.size() == 1) check(layer, w, c.spans, x, qr, whole = result);
                CHECK_MESSAGE(result == whole, "tiles of another size gave other bits");
            }
        }
    });
}

TEST_CASE("index_query: every weight format") {
    each_backend([](const Backend &backend) {
        for (const Format format : kFormats) {
            for (const Values values : {Values::kSmall, Values::kRandom}) {
                CAPTURE(std::string(name_of(format)));
                CAPTURE((values == Values::kSmall));
                Random random(410 + static_cast<std::uint64_t>(format));
                TestLayer layer(backend, make_config(kSuperBlocks, 1), kSourceLayer);
                const Weights w = make_weights(random, kSuperBlocks, format, format, values);
                hold(layer, w);
                const Spans spans = {{11, 2}};
                const auto x = make_inputs(random, 2 * kSuperBlocks.dim, values);
                const auto qr = make_inputs(random, 2 * kSuperBlocks.q_rank, values);
                check(layer, w, spans, x, qr, index_query(layer, *layer.create_stages(spans), spans, x, qr, {2}));
            }
        }
    });
}

TEST_CASE("index_query: head weights are rounded, scaled, and rounded again") {
    each_backend([](const Backend &backend) {
        // One input of 1: the product is the weight itself, 1 + k / 1024, of which bf16 keeps three bits fewer.
        const Geometry g = {"scaled by 1 / sqrt(96)", 1, 1, 32, 2, 32, 1, 8, 1, 64, 96};
        TestLayer layer(backend, make_config(g, 2), kSourceLayer);
        std::vector<float> column;
        for (int h = 0; h < 64; ++h) column.push_back(1.0f + static_cast<float>(17 * h) / 1024.0f);
        const Weights w = {make_f32(64 * 96, 32, std::vector<float>(64 * 96 * 32, 1.0f)), make_f32(64, 1, column)};
        hold(layer, w);
        const Spans spans = {{0, 1}};
        const std::vector<Bf16> x = {to_bf16(1.0f)}, qr(32, to_bf16(1.0f));
        const Result result = index_query(layer, *layer.create_stages(spans), spans, x, qr, {1});
        check(layer, w, spans, x, qr, result);
        int n_once = 0, n_unrounded = 0;
        for (std::size_t h = 0; h < 64; ++h) {
            const double actual = double_of(result.weights[h]), scale = weight_scale(layer.config);
            n_once += actual != bf16_value(double{column[h]} * scale);
            n_unrounded += actual != bf16_value(double{column[h]}) * scale;
        }
        CHECK(n_once > 5);
        CHECK(n_unrounded > 5);
    });
}

TEST_CASE("index_query: zero, tiny and huge queries; the floor of the scale") {
    each_backend([](const Backend &backend) {
        Random random(420);
        TestLayer layer(backend, make_config(kOdd, 2), kSourceLayer);
        const Weights w = make_weights(random, kOdd, Format::kF32, Format::kF32, Values::kRandom);
        hold(layer, w);
        const Spans spans = {{0, 5}};
        std::vector<Bf16> qr;
        for (const double magnitude : {0.0, 1e-36, 1e-30, 1e-3, 1e30})
            append(qr, random.bf16_row(kOdd.q_rank, magnitude));
        const auto x = make_inputs(random, 5 * kOdd.dim, Values::kRandom);
        const Result result = index_query(layer, *layer.create_stages(spans), spans, x, qr, {5});
        check(layer, w, spans, x, qr, result);
        for (std::size_t b = 32; b < 34; ++b) CHECK(result.queries[b] == 1); // 2^-126
    });
}

TEST_CASE("index_query: adjacent pairs are rotated at the token's position, at the end of each head") {
    each_backend([](const Backend &backend) {
        const Geometry g = {"pairs", 32, 1, 32, 4, 32, 1, 32, 1, 2, 32};
        TestLayer layer(backend, make_config(g, 2), kSourceLayer);
        // Each head copies qr.
        std::vector<float> copies(64 * 32);
        for (std::size_t i = 0; i < 64; ++i) copies[i * 32 + i % 32] = 1.0f;
        Random random(430);
        const Weights w = {make_f32(64, 32, copies), make_matrix(random, Format::kF32, 2, 32, Values::kRandom)};
        hold(layer, w);
        const Spans spans = {{2, 1}};
        std::vector<Bf16> qr(32, to_bf16(0.0f));
        qr[0] = to_bf16(6.0f);
        qr[28] = to_bf16(6.0f);
        const auto x = make_inputs(random, 32, Values::kRandom);
        const Result result = index_query(layer, *layer.create_stages(spans), spans, x, qr, {1});
        check(layer, w, spans, x, qr, result);
        // 2 radians: 6 cos 2 = -2.5 (to even: -2 of 2 and 3), 6 sin 2 = 5.45 (of 4 and 6: 6).
        for (std::size_t h = 0; h < 2; ++h) {
            const auto head = unpacked(Packing::kIndexKey, slice(result.queries, h * 17, 17), 32);
            CHECK(head[0] == 6.0);
            CHECK(head[28] == -2.0);
            CHECK(head[29] == 6.0);
            CHECK(head[30] == 0.0);
        }
    });
}

TEST_CASE("index_query: NaN in one token leaves the others as they are") {
    each_backend([](const Backend &backend) {
        Random random(440);
        TestLayer layer(backend, make_config(kOdd, 2), kSourceLayer);
        const Weights w = make_weights(random, kOdd, Format::kF32, Format::kF32, Values::kRandom);
        hold(layer, w);
        const Spans spans = {{0, 3}};
        auto x = make_inputs(random, 3 * kOdd.dim, Values::kRandom);
        auto qr = make_inputs(random, 3 * kOdd.q_rank, Values::kRandom);
        const auto stages = layer.create_stages(spans);
        const Result clean = index_query(layer, *stages, spans, x, qr, {3});
        x[96 + 1] = qr[160 + 1] = Bf16{0x7fc0};
        const Result dirty = index_query(layer, *stages, spans, x, qr, {3});
        for (const std::size_t t : {0u, 2u}) {
            CHECK(equal_bits(slice(clean.queries, t * 102, 102), slice(dirty.queries, t * 102, 102)));
            CHECK(equal_bits(slice(clean.weights, t * 3, 3), slice(dirty.weights, t * 3, 3)));
        }
        for (std::size_t h = 0; h < 3; ++h) {
            CHECK(dirty.queries[102 + h * 34 + 32] == 255);
            CHECK(std::isnan(double_of(dirty.weights[3 + h])));
        }
    });
}
