// Stage 1 of every backend: x to normed low-rank queries, rotated queries and packed window rows.
#include "scene.h"

using namespace ds41;
using namespace ds41::test;

namespace {

struct Weights {
    TestMatrix wq_a, wq_b, wkv;
    std::vector<float> q_norm, kv_norm;
};

Weights make_weights(Random &random, const Geometry &g, Format format, Values values) {
    return {make_matrix(random, format, g.q_rank, g.dim, values),
            make_matrix(random, format, g.n_heads * g.head_dim, g.q_rank, values),
            make_matrix(random, format, g.head_dim, g.dim, values), make_norm(random, g.q_rank),
            make_norm(random, g.head_dim)};
}

void hold(TestLayer &layer, const Weights &w) {
    layer.weights.wq_a = layer.hold(w.wq_a);
    layer.weights.wq_b = layer.hold(w.wq_b);
    layer.weights.wkv = layer.hold(w.wkv);
    layer.weights.q_norm = layer.hold(w.q_norm);
    layer.weights.kv_norm = layer.hold(w.kv_norm);
}

struct Result {
    std::vector<Bf16> qr, q;
    std::vector<std::uint8_t> window;

    bool operator==(const Result &other) const {
        return equal_bits(qr, other.qr) && equal_bits(q, other.q) && equal_bits(window, other.window);
    }
};

Result project(const TestLayer &layer, Stages &stages, const Spans &spans, const std::vector<Bf16> &x,
               const std::vector<int> &tiles) {
    TestStep step(layer, spans);
    const Config &c = layer.config;
    const std::size_t row_bytes = packed_bytes(Packing::kWindow, c.head_dim);
    Buffer<Bf16> x_buffer(layer.memory(), x);
    Buffer<std::uint8_t> window(layer.memory(), static_cast<std::size_t>(step.n_tokens()) * row_bytes);
    Result result;
    std::int32_t first = 0;
    for (const std::int32_t n : tiles) {
        const auto tile = static_cast<std::size_t>(n);
        Buffer<Bf16> qr(layer.memory(), tile * static_cast<std::size_t>(c.q_lora_rank));
        Buffer<Bf16> q(layer.memory(), tile * static_cast<std::size_t>(c.q_width()));
        const auto before = window.get();
        stages.project({step.view(), {first, n}, x_buffer.data(), qr.data(), q.data(), window.data()});
        append(result.qr, qr.get());
        append(result.q, q.get());
        // Rows of other tiles stay as they are.
        auto after = window.get();
        const auto at = static_cast<std::size_t>(first) * row_bytes;
        std::memcpy(after.data() + at, before.data() + at, tile * row_bytes);
        CHECK(equal_bits(before, after));
        first += n;
    }
    CHECK(equal_bits(x_buffer.get(), x));
    result.window = window.get();
    return result;
}

void check(const TestLayer &layer, const Weights &w, const Spans &spans, const std::vector<Bf16> &x,
           const Result &result) {
    const Config &c = layer.config;
    const auto dim = static_cast<std::size_t>(c.dim), rank = static_cast<std::size_t>(c.q_lora_rank);
    const auto width = static_cast<std::size_t>(c.q_width()), head = static_cast<std::size_t>(c.head_dim);
    const std::size_t row_bytes = packed_bytes(Packing::kWindow, c.head_dim);
    const TestStep step(layer, spans);
    Verdict qr_verdict, q_verdict, window_verdict;
    for (std::size_t t = 0; t < step.tokens().size(); ++t) {
        const std::int64_t pos = step.tokens()[t].pos;
        const Row row = exactly(slice(x, t * dim, dim));
        const auto qr = slice(result.qr, t * rank, rank);
        qr_verdict.expect_bf16(qr, rms_norm(linear(w.wq_a, row), w.q_norm, c.norm_eps));
        // From the queries that the backend made: an error of theirs is judged once.
        Row q = linear(w.wq_b, exactly(qr));
        for (std::size_t h = 0; h < width; h += head)
            rotate(std::span(q).subspan(h, head), layer.rope.frequencies(), pos);
        q_verdict.expect_bf16(slice(result.q, t * width, width), q);
        Row kv = rms_norm(linear(w.wkv, row), w.kv_norm, c.norm_eps);
        rotate(kv, layer.rope.frequencies(), pos);
        window_verdict.expect_packed(Packing::kWindow, slice(result.window, t * row_bytes, row_bytes), kv);
    }
    CHECK_MESSAGE(qr_verdict.is_right(), qr_verdict);
    CHECK_MESSAGE(q_verdict.is_right(), q_verdict);
    CHECK_MESSAGE(window_verdict.is_right(), window_verdict);
    CHECK_MESSAGE(qr_verdict.is_tight(), qr_verdict);
    CHECK_MESSAGE(q_verdict.is_tight(), q_verdict);
    CHECK_MESSAGE(window_verdict.is_tight(), window_verdict);
}

struct Case {
    const char *name;
    Geometry geometry;
    int layer;
    Spans spans;
};

const Case kCases[] = {
    {"one token", kTiny, kWindowLayer, {{0, 1}}},
    {"ratio 0, spans of different lengths", kOdd, kWindowLayer, {{0, 1}, {5, 4}, {1000, 2}}},
    {"compressed, large positions", kOdd, kConsumerLayer, {{1048573, 3}, {65535, 2}}},
    {"more tokens than heads", kWholeHead, kConsumerLayer, {{3, 9}}},
    {"as many tokens as heads", kWholeHead, kWindowLayer, {{0, 2}, {77, 2}}},
    {"production heads", kProduction, kConsumerLayer, {{131071, 1}, {0, 1}}},
};

} // namespace

TEST_CASE("project: queries and window rows in every shape, bf16 weights") {
    each_backend([](const Backend &backend) {
        std::uint64_t stream = 100;
        for (const Case &c : kCases) {
            CAPTURE(std::string(c.name));
            Random random(stream++);
            TestLayer layer(backend, make_config(c.geometry, 2), c.layer);
            const Weights w = make_weights(random, c.geometry, Format::kBf16, Values::kRandom);
            hold(layer, w);
            const int n = token_count(c.spans);
            const auto x = make_inputs(random, n * c.geometry.dim, Values::kRandom);
            const bool large = c.geometry.n_heads > 8;
            Result whole;
            for (const auto &tiles : tilings(n)) {
                const auto run = [&](Stages &stages, bool poison) {
                    return project(layer, stages, c.spans, poison ? poisoned(x.size()) : x, tiles);
                };
                const Result result = large ? run(*layer.create_stages(c.spans), false) : repeated(layer, c.spans, run);
                if (tiles.size() == 1) check(layer, w, c.spans, x, whole = result);
                CHECK_MESSAGE(result == whole, "tiles of another size gave other bits");
            }
        }
    });
}

TEST_CASE("project: a sequence gets the same bits alone and in company") {
    each_backend([](const Backend &backend) {
        for (const Format format : {Format::kBf16, Format::kFp8, Format::kQ2K}) {
            CAPTURE(std::string(name_of(format)));
            Random random(190);
            TestLayer layer(backend, make_config(kSuperBlocks, 2), kConsumerLayer);
            hold(layer, make_weights(random, kSuperBlocks, format, Values::kRandom));
            const Spans spans = {{7, 2}, {1000, 1}, {0, 3}, {12, 8}};
            const auto x = make_inputs(random, 14 * 256, Values::kRandom);
            const auto stages = layer.create_stages(spans);
            const Result together = project(layer, *stages, spans, x, {14});
            std::size_t at = 0;
            for (const SpanSpec &span : spans) {
                const auto n = static_cast<std::size_t>(span.n_tokens);
                const Result alone = project(layer, *stages, {span}, slice(x, at * 256, n * 256), {span.n_tokens});
                CHECK(alone == Result{slice(together.qr, at * 512, n * 512), slice(together.q, at * 1024, n * 1024),
                                      slice(together.window, at * 264, n * 264)});
                at += n;
            }
        }
    });
}

TEST_CASE("project: every weight format, its sums exact and not") {
    each_backend([](const Backend &backend) {
        for (const Format format : kFormats) {
            for (const Values values : {Values::kSmall, Values::kRandom}) {
                CAPTURE(std::string(name_of(format)));
                CAPTURE((values == Values::kSmall));
                Random random(200 + static_cast<std::uint64_t>(format));
                TestLayer layer(backend, make_config(kSuperBlocks, 1), kWindowLayer);
                const Weights w = make_weights(random, kSuperBlocks, format, values);
                hold(layer, w);
                const Spans spans = {{7, 3}};
                const auto x = make_inputs(random, 3 * kSuperBlocks.dim, values);
                const Result result = project(layer, *layer.create_stages(spans), spans, x, {3});
                check(layer, w, spans, x, result);
            }
        }
    });
}

TEST_CASE("project: each projection has a format of its own") {
    each_backend([](const Backend &backend) {
        Random random(210);
        TestLayer layer(backend, make_config(kSuperBlocks, 1), kWindowLayer);
        Weights w = make_weights(random, kSuperBlocks, Format::kQ2K, Values::kRandom);
        w.wq_a = make_matrix(random, Format::kFp8, kSuperBlocks.q_rank, kSuperBlocks.dim, Values::kRandom);
        w.wkv = make_matrix(random, Format::kF32, kSuperBlocks.head_dim, kSuperBlocks.dim, Values::kRandom);
        hold(layer, w);
        const Spans spans = {{7, 2}};
        const auto x = make_inputs(random, 2 * kSuperBlocks.dim, Values::kRandom);
        check(layer, w, spans, x, project(layer, *layer.create_stages(spans), spans, x, {2}));
    });
}

TEST_CASE("project: eps inside the root, tiny, zero and large rows") {
    each_backend([](const Backend &backend) {
        Random random(220);
        TestLayer layer(backend, make_config(kOdd, 2), kWindowLayer);
        Weights w = make_weights(random, kOdd, Format::kF32, Values::kRandom);
        // A large norm weight meets a large row: the row is normed before it is weighed, or infinity comes out.
        w.q_norm[3] = 1e30f;
        w.kv_norm[5] = 1e30f;
        hold(layer, w);
        const Spans spans = {{0, 9}};
        std::vector<Bf16> x;
        for (const double magnitude : {1e-8, 1e-9, 1e-10, 3e-11, 1e-11, 1e-12, 0.0, 1e4, 1e15})
            append(x, random.bf16_row(kOdd.dim, magnitude));
        const Result result = project(layer, *layer.create_stages(spans), spans, x, {9});
        check(layer, w, spans, x, result);
        // A row of zeros stays one: the floor of the window's scale, 2^-22, and codes of zero.
        const auto zero_row = slice(result.window, 6 * 99, 99);
        for (std::size_t i = 0; i < 96; ++i) CHECK((zero_row[i] & 0x7f) == 0);
        for (std::size_t b = 96; b < 99; ++b) CHECK(zero_row[b] == 127 - 22);
    });
}

TEST_CASE("project: heads of q are not normed, and only their ends are rotated") {
    each_backend([](const Backend &backend) {
        // wq_a and wq_b copy: qr is x of magnitude 1, head h is 2^h times its start, so a norm of heads would show.
        const Geometry g = {"copies", 32, 3, 32, 8, 32, 1, 32, 4, 1, 32};
        TestLayer layer(backend, make_config(g, 2), kWindowLayer);
        std::vector<float> identity(32 * 32), scaled(96 * 32);
        for (std::size_t i = 0; i < 32; ++i) identity[i * 33] = 1.0f;
        for (std::size_t i = 0; i < 96; ++i) scaled[i * 32 + i % 32] = static_cast<float>(1 << (i / 32));
        const Weights w = {make_f32(32, 32, identity), make_f32(96, 32, scaled), make_f32(32, 32, identity),
                           std::vector<float>(32, 1.0f), std::vector<float>(32, 1.0f)};
        hold(layer, w);
        const Spans spans = {{1, 1}};
        const std::vector<Bf16> x(32, to_bf16(1.0f));
        const Result result = project(layer, *layer.create_stages(spans), spans, x, {1});
        for (std::size_t h = 0; h < 3; ++h) {
            for (std::size_t i = 0; i < 24; ++i) CHECK(double_of(result.q[h * 32 + i]) == 1 << h);
            // Position 1, pair 0: one radian.
            CHECK(double_of(result.q[h * 32 + 24]) == bf16_value((1 << h) * -0.30116867893975674));
            CHECK(double_of(result.q[h * 32 + 25]) == bf16_value((1 << h) * 1.3817732906760363));
        }
        // The window row is quantised with its rotated tail: one block, of amax 1.38 and scale 2^-8.
        CHECK(result.window[32] == 127 - 8);
        CHECK(e4m3_value(result.window[0]) == 256.0);
        CHECK(e4m3_value(result.window[25]) == 352.0);
        CHECK(e4m3_value(result.window[24]) == -80.0);
        check(layer, w, spans, x, result);
    });
}

TEST_CASE("project: NaN in one token leaves the others as they are") {
    each_backend([](const Backend &backend) {
        for (const Format format : {Format::kBf16, Format::kFp8, Format::kQ2K}) {
            Random random(230);
            TestLayer layer(backend, make_config(kSuperBlocks, 2), kConsumerLayer);
            const Weights w = make_weights(random, kSuperBlocks, format, Values::kRandom);
            hold(layer, w);
            const Spans spans = {{9, 2}, {4, 2}};
            auto x = make_inputs(random, 4 * kSuperBlocks.dim, Values::kRandom);
            const auto stages = layer.create_stages(spans);
            const Result clean = project(layer, *stages, spans, x, {4});
            x[kSuperBlocks.dim + 5] = Bf16{0x7fc0};
            const Result dirty = project(layer, *stages, spans, x, {4});
            for (const std::size_t t : {0u, 2u, 3u}) {
                CHECK(equal_bits(slice(clean.qr, t * 512, 512), slice(dirty.qr, t * 512, 512)));
                CHECK(equal_bits(slice(clean.q, t * 1024, 1024), slice(dirty.q, t * 1024, 1024)));
                CHECK(equal_bits(slice(clean.window, t * 264, 264), slice(dirty.window, t * 264, 264)));
            }
            CHECK(std::isnan(double_of(dirty.qr[512])));
            CHECK(std::isnan(double_of(dirty.q[1024])));
            CHECK(std::isnan(unpacked(Packing::kWindow, slice(dirty.window, 264, 264), 256)[0]));
        }
    });
}
