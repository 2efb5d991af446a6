// Stage 2 of every backend: x to latents of completed groups, their index keys and compressed rows, and the products of
// the group that waits.
#include "scene.h"

#include <algorithm>
#include <cmath>

using namespace ds41;
using namespace ds41::test;

namespace {

struct Weights {
    TestMatrix wkv, wgate, wk;
    std::vector<float> norm, k_norm;
};

Weights make_weights(Random &random, const Geometry &g, Format wkv, Format wk, Values values) {
    return {make_matrix(random, wkv, g.head_dim, g.dim, values), make_matrix(random, wkv, g.head_dim, g.dim, values),
            make_matrix(random, wk, g.index_dim, g.head_dim, values), make_norm(random, g.head_dim),
            make_norm(random, g.index_dim)};
}

void hold(TestLayer &layer, const Weights &w) {
    layer.weights.compressor_wkv = layer.hold(w.wkv);
    if (layer.ratio() > 1) layer.weights.compressor_wgate = layer.hold(w.wgate);
    layer.weights.compressor_norm = layer.hold(w.norm);
    if (!layer.role.is_index_source) return;
    layer.weights.indexer_wk = layer.hold(w.wk);
    layer.weights.indexer_k_norm = layer.hold(w.k_norm);
}

// What a sequence brings: products of the positions of an incomplete group, [2][ratio][head_dim].
using States = std::vector<std::vector<float>>;

States make_states(Random &random, const TestLayer &layer, const Spans &spans) {
    States states;
    const auto ratio = static_cast<std::size_t>(layer.ratio()), head = static_cast<std::size_t>(layer.config.head_dim);
    for (const SpanSpec &span : spans) {
        // Slots that no waiting position has filled hold NaN.
        std::vector<float> state(layer.role.has_group_state() ? 2 * ratio * head : 0, NAN);
        const auto waiting = static_cast<std::size_t>(span.start_pos % layer.ratio());
        for (std::size_t half = 0; half < 2 && !state.empty(); ++half)
            for (std::size_t i = 0; i < waiting * head; ++i)
                state[half * ratio * head + i] = static_cast<float>(random.normal());
        states.push_back(std::move(state));
    }
    return states;
}

struct Result {
    std::vector<std::vector<Bf16>> latents;                           // by span
    std::vector<std::vector<std::uint8_t>> compressed, keys;          // of the span's groups
    std::vector<std::vector<std::int64_t>> compressed_rows, key_rows; // that are no longer poison
    States states;

    bool operator==(const Result &o) const {
        for (std::size_t s = 0; s < states.size(); ++s)
            if (!equal_bits(latents[s], o.latents[s]) || !equal_bits(compressed[s], o.compressed[s]) ||
                !equal_bits(keys[s], o.keys[s]))
                return false;
        return true;
    }
};

std::int64_t groups_before(const TestLayer &layer, const SpanSpec &span) {
    return span.start_pos / layer.ratio();
}
std::int64_t groups_of(const TestLayer &layer, const SpanSpec &span) {
    return span.end_pos() / layer.ratio() - groups_before(layer, span);
}

Result compress(const TestLayer &layer, Stages &stages, const Spans &spans, const std::vector<Bf16> &x,
                const States &states, const std::vector<int> &tiles, bool tapped = true) {
    TestStep step(layer, spans);
    std::vector<Buffer<Bf16>> latents;
    std::vector<Bf16 *> latent_pointers;
    for (std::size_t s = 0; s < spans.size(); ++s) {
        if (layer.role.has_group_state()) step.sequence(s).group_state.set(states[s]);
        latents.emplace_back(layer.memory(),
                             static_cast<std::size_t>(groups_of(layer, spans[s]) * layer.config.head_dim));
        latent_pointers.push_back(latents.back().data());
    }
    Buffer<Bf16> x_buffer(layer.memory(), x);
    Buffer<Bf16 *> taps(layer.memory(), latent_pointers);
    std::int32_t first = 0;
    for (const std::int32_t n : tiles) {
        stages.compress({step.view(), {first, n}, x_buffer.data(), tapped ? taps.data() : nullptr});
        first += n;
    }
    Result result;
    for (std::size_t s = 0; s < spans.size(); ++s) {
        const TestStep::Sequence &sequence = step.sequence(s);
        result.latents.push_back(latents[s].get());
        result.compressed.emplace_back();
        result.keys.emplace_back();
        for (std::int64_t group = groups_before(layer, spans[s]); group < spans[s].end_pos() / layer.ratio(); ++group) {
            append(result.compressed[s], sequence.compressed.get(group));
            append(result.keys[s], sequence.index_keys.get(group));
        }
        result.compressed_rows.push_back(sequence.compressed.written());
        result.key_rows.push_back(sequence.index_keys.written());
        result.states.push_back(layer.role.has_group_state() ? sequence.group_state.get() : std::vector<float>{});
    }
    return result;
}

// Softmax over the group, value by value.
Row pooled(const std::vector<Row> &kv, const std::vector<Row> &gate) {
    Row result;
    for (std::size_t i = 0; i < kv[0].size(); ++i) {
        double best = -INFINITY, total = 0.0, sum = 0.0;
        for (const Row &g : gate) best = std::max(best, g[i].value);
        for (std::size_t t = 0; t < kv.size(); ++t) {
            const double weight = std::exp(gate[t][i].value - best);
            total += weight;
            sum += weight * kv[t][i].value;
        }
        const double mean = sum / total;
        double error = 0.0;
        for (std::size_t t = 0; t < kv.size(); ++t) {
            const double weight = std::exp(gate[t][i].value - best) / total;
            // An exponential is as wrong as its argument, and by 4 steps of its own.
            const double relative = gate[t][i].error + kF32Step * (std::fabs(gate[t][i].value - best) + 4.0);
            error += weight * (relative * std::fabs(kv[t][i].value - mean) + kv[t][i].error +
                               6.0 * kF32Step * std::fabs(kv[t][i].value));
        }
        result.push_back(rounded({mean, error}));
    }
    return result;
}

Row index_key(const TestLayer &layer, const Weights &w, const Row &latent, std::int64_t pos) {
    Row key = rms_norm(linear(w.wk, latent), w.k_norm, layer.config.norm_eps);
    rotate(key, layer.rope.frequencies(), pos);
    return key;
}

void check(const TestLayer &layer, const Weights &w, const Spans &spans, const std::vector<Bf16> &x,
           const States &states, const Result &result) {
    const int ratio = layer.ratio();
    const auto dim = static_cast<std::size_t>(layer.config.dim), head = static_cast<std::size_t>(layer.config.head_dim);
    const std::size_t row_bytes = packed_bytes(Packing::kCompressed, layer.config.head_dim);
    const std::size_t key_bytes = packed_bytes(Packing::kIndexKey, layer.config.index_head_dim);
    Verdict latent_verdict, row_verdict, key_verdict, state_verdict;
    std::size_t token = 0;
    for (std::size_t s = 0; s < spans.size(); ++s) {
        std::vector<Row> kv, gate; // of the incomplete group
        for (std::size_t slot = 0; slot < static_cast<std::size_t>(spans[s].start_pos % ratio); ++slot) {
            kv.emplace_back();
            gate.emplace_back();
            for (std::size_t i = 0; i < head; ++i) {
                kv.back().push_back({double{states[s][slot * head + i]}, 0.0});
                gate.back().push_back({double{states[s][(static_cast<std::size_t>(ratio) + slot) * head + i]}, 0.0});
            }
        }
        std::vector<std::int64_t> rows;
        for (std::int64_t pos = spans[s].start_pos; pos < spans[s].end_pos(); ++pos, ++token) {
            const Row input = exactly(slice(x, token * dim, dim));
            kv.push_back(products(w.wkv, 0, w.wkv.rows, input));
            if (ratio > 1) gate.push_back(products(w.wgate, 0, w.wgate.rows, input));
            if ((pos + 1) % ratio != 0) continue;
            const std::int64_t group = pos / ratio;
            const std::size_t at = rows.size();
            rows.push_back(group);
            const auto latent = slice(result.latents[s], at * head, head);
            latent_verdict.expect_bf16(
                latent, rms_norm(ratio == 1 ? rounded(kv[0]) : pooled(kv, gate), w.norm, layer.config.norm_eps));
            kv.clear();
            gate.clear();
            // From here on with the latent that the backend made.
            const auto packed_row = slice(result.compressed[s], at * row_bytes, row_bytes);
            Row row = exactly(latent);
            rotate(row, layer.rope.frequencies(), group * ratio);
            row_verdict.expect_packed(Packing::kCompressed, packed_row, row);
            if (!layer.role.writes_index_keys()) continue;
            const auto packed_key = slice(result.keys[s], at * key_bytes, key_bytes);
            key_verdict.expect_packed(Packing::kIndexKey, packed_key,
                                      index_key(layer, w, exactly(latent), group * ratio));
        }
        CHECK(result.compressed_rows[s] == rows);
        CHECK(result.key_rows[s] == (layer.role.writes_index_keys() ? rows : std::vector<std::int64_t>{}));
        for (std::size_t slot = 0; slot < kv.size() && ratio > 1; ++slot) {
            state_verdict.expect_f32(slice(result.states[s], slot * head, head), kv[slot]);
            state_verdict.expect_f32(slice(result.states[s], (static_cast<std::size_t>(ratio) + slot) * head, head),
                                     gate[slot]);
        }
    }
    CHECK_MESSAGE(latent_verdict.is_right(), latent_verdict);
    CHECK_MESSAGE(row_verdict.is_right(), row_verdict);
    CHECK_MESSAGE(key_verdict.is_right(), key_verdict);
    CHECK_MESSAGE(state_verdict.is_right(), state_verdict);
    CHECK_MESSAGE(latent_verdict.is_tight(), latent_verdict);
    CHECK_MESSAGE(row_verdict.is_tight(), row_verdict);
    CHECK_MESSAGE(key_verdict.is_tight(), key_verdict);
}

// Around the border of the first page; groups that begin before the step, and that wait after it.
Spans border_spans(int ratio) {
    return {{63 * ratio - 1, 3 * ratio + 1}, {0, 1}, {5, ratio + 1}, {64 * ratio, ratio}};
}

} // namespace

TEST_CASE("compress: ratios 1 to 4, groups that straddle steps and tiles, rows past a page's border") {
    each_backend([](const Backend &backend) {
        for (int ratio = 1; ratio <= 4; ++ratio) {
            for (const Geometry &g : {kTiny, kOdd}) {
                CAPTURE(ratio);
                CAPTURE(std::string(g.name));
                Random random(300 + static_cast<std::uint64_t>(ratio));
                TestLayer layer(backend, make_config(g, ratio), kSourceLayer);
                const Weights w = make_weights(random, g, Format::kF32, Format::kBf16, Values::kRandom);
                hold(layer, w);
                const Spans spans = border_spans(ratio);
                const int n = token_count(spans);
                const auto x = make_inputs(random, n * g.dim, Values::kRandom);
                const States states = make_states(random, layer, spans);
                Result whole;
                for (const auto &tiles : tilings(n)) {
                    const Result result = repeated(layer, spans, [&](Stages &stages, bool poison) {
                        return compress(layer, stages, spans, poison ? poisoned(x.size()) : x, states, tiles);
                    });
                    if (tiles.size() == 1) check(layer, w, spans, x, states, whole = result);
                    CHECK_MESSAGE(result == whole, "tiles of another size gave other bits");
                }
                const Result untapped = compress(layer, *layer.create_stages(spans), spans, x, states, {n}, false);
                CHECK(untapped.compressed == whole.compressed);
                CHECK(untapped.keys == whole.keys);
            }
        }
    });
}

TEST_CASE("compress: a group that waits through several steps is the group of one step") {
    each_backend([](const Backend &backend) {
        for (int ratio = 2; ratio <= 4; ++ratio) {
            Random random(310);
            TestLayer layer(backend, make_config(kWholeHead, ratio), kSourceLayer);
            const Weights w = make_weights(random, kWholeHead, Format::kF32, Format::kF32, Values::kRandom);
            hold(layer, w);
            const auto x = make_inputs(random, 12 * kWholeHead.dim, Values::kRandom);
            const auto stages = layer.create_stages({{0, 12}});
            const Result whole = compress(layer, *stages, {{0, 12}}, x, make_states(random, layer, {{0, 12}}), {12});
            States states = make_states(random, layer, {{0, 12}});
            std::vector<Bf16> latents;
            std::int64_t pos = 0;
            for (const int n : {1, 1, 1, 4, 2, 3}) {
                const auto part = slice(x, static_cast<std::size_t>(pos * kWholeHead.dim),
                                        static_cast<std::size_t>(n * kWholeHead.dim));
                const Result result = compress(layer, *stages, {{pos, n}}, part, states, {n});
                append(latents, result.latents[0]);
                states = result.states;
                pos += n;
            }
            CHECK(equal_bits(latents, whole.latents[0]));
        }
    });
}

TEST_CASE("compress: every weight format") {
    each_backend([](const Backend &backend) {
        for (const int ratio : {1, 2}) {
            for (const Format format : kFormats) {
                for (const Values values : {Values::kSmall, Values::kRandom}) {
                    CAPTURE(ratio);
                    CAPTURE(std::string(name_of(format)));
                    CAPTURE((values == Values::kSmall));
                    const bool is_float = format == Format::kF32 || format == Format::kBf16;
                    Random random(320 + static_cast<std::uint64_t>(format));
                    TestLayer layer(backend, make_config(kSuperBlocks, ratio), kSourceLayer);
                    // With ratio 2 the compressor's weights are floats.
                    const Weights w = make_weights(random, kSuperBlocks, ratio == 1 || is_float ? format : Format::kF32,
                                                   format, values);
                    hold(layer, w);
                    const Spans spans = {{3, 3}};
                    const auto x = make_inputs(random, 3 * kSuperBlocks.dim, values);
                    const States states = make_states(random, layer, spans);
                    check(layer, w, spans, x, states,
                          compress(layer, *layer.create_stages(spans), spans, x, states, {3}));
                }
            }
        }
    });
}

TEST_CASE("compress: production heads at the end of a million positions") {
    each_backend([](const Backend &backend) {
        for (const int ratio : {1, 2}) {
            Random random(330);
            TestLayer layer(backend, make_config(kProduction, ratio), kSourceLayer);
            const Weights w = make_weights(random, kProduction, ratio == 1 ? Format::kBf16 : Format::kF32,
                                           Format::kBf16, Values::kRandom);
            hold(layer, w);
            const Spans spans = {{(1 << 20) - 5, 5}, {0, 1}};
            const auto x = make_inputs(random, 6 * kProduction.dim, Values::kRandom);
            const States states = make_states(random, layer, spans);
            check(layer, w, spans, x, states, compress(layer, *layer.create_stages(spans), spans, x, states, {6}));
        }
    });
}

TEST_CASE("compress: rotation at the group's first position; the key is made of the latent before it") {
    each_backend([](const Backend &backend) {
        const int ratio = 3;
        const Geometry g = {"rotated throughout", 32, 1, 64, 64, 32, 1, 8, 1, 1, 64};
        Random random(340);
        TestLayer layer(backend, make_config(g, ratio), kSourceLayer);
        const Weights w = make_weights(random, g, Format::kF32, Format::kF32, Values::kRandom);
        hold(layer, w);
        const Spans spans = {{30, 3}};
        const auto x = make_inputs(random, 3 * g.dim, Values::kRandom);
        const States states = make_states(random, layer, spans);
        const Result result = compress(layer, *layer.create_stages(spans), spans, x, states, {3});
        check(layer, w, spans, x, states, result);

        const Row latent = exactly(result.latents[0]);
        const auto &row = result.compressed[0], &key = result.keys[0];
        const auto fits = [](Packing packing, const std::vector<std::uint8_t> &bytes, const Row &values) {
            Verdict verdict;
            verdict.expect_packed(packing, bytes, values);
            return verdict.is_right();
        };
        for (const std::int64_t pos : {10, 30, 31, 32, 33}) { // group, first to last position, its end
            Row rotated = latent;
            rotate(rotated, layer.rope.frequencies(), pos);
            CHECK(fits(Packing::kCompressed, row, rotated) == (pos == 30));
            CHECK(fits(Packing::kIndexKey, key, index_key(layer, w, latent, pos)) == (pos == 30));
            CHECK_FALSE(fits(Packing::kIndexKey, key, index_key(layer, w, rotated, pos)));
        }
    });
}

TEST_CASE("compress: tiny, zero and large inputs, gates far apart") {
    each_backend([](const Backend &backend) {
        for (const int ratio : {1, 2, 3}) {
            CAPTURE(ratio);
            Random random(350);
            TestLayer layer(backend, make_config(kOdd, ratio), kSourceLayer);
            Weights w = make_weights(random, kOdd, Format::kF32, Format::kF32, Values::kRandom);
            // Rows below the floor of the fp4 scales, and above the largest e4m3 scale.
            for (std::size_t i = 0; i < 16; ++i) w.norm[i] *= 1e-4f;
            for (std::size_t i = 16; i < 32; ++i) w.norm[i] *= 1e4f;
            for (std::size_t i = 32; i < 48; ++i) w.norm[i] = 0.0f;
            for (std::size_t i = 0; i < 32; ++i) w.k_norm[i] *= 1e-37f;
            hold(layer, w);
            std::vector<Bf16> x;
            for (const double magnitude : {1e-9, 1e-10, 1e-11, 0.0, 1e3, 1e4})
                for (int i = 0; i < ratio; ++i) append(x, random.bf16_row(kOdd.dim, magnitude));
            const Spans spans = {{ratio, 6 * ratio}};
            const States states = make_states(random, layer, spans);
            check(layer, w, spans, x, states,
                  compress(layer, *layer.create_stages(spans), spans, x, states, {6 * ratio}));
        }
    });
}

TEST_CASE("compress: eps inside the root of the key's norm") {
    each_backend([](const Backend &backend) {
        for (const float magnitude : {1e-9f, 1e-10f, 1e-11f, 0.0f}) {
            Random random(355);
            TestLayer layer(backend, make_config(kOdd, 1), kSourceLayer);
            Weights w = make_weights(random, kOdd, Format::kF32, Format::kF32, Values::kRandom);
            for (float &value : w.norm) value *= magnitude;
            hold(layer, w);
            const Spans spans = {{8, 2}};
            const auto x = make_inputs(random, 2 * kOdd.dim, Values::kRandom);
            const States states = make_states(random, layer, spans);
            check(layer, w, spans, x, states, compress(layer, *layer.create_stages(spans), spans, x, states, {2}));
        }
    });
}

TEST_CASE("compress: a latent is rounded before it is normed, products are not") {
    each_backend([](const Backend &backend) {
        // Equal gates: the mean of two products that bf16 cannot hold, 1 + 2^-9 and 1 + 3 * 2^-9, is 1 + 2^-8, a tie
        // that goes to 1; of 1 + 2^-9 and itself it goes to 1 as well; of 1 + 2^-9 and 1 + 5 * 2^-9 to 1 + 2^-7. Beside
        // 31 values of 1 / 2.
        const Geometry g = {"one input", 1, 1, 32, 2, 32, 1, 8, 1, 1, 32};
        TestLayer layer(backend, make_config(g, 2), kSourceLayer);
        std::vector<float> kv(32, 0.5f);
        kv[0] = 1.0f + 0x1p-9f;
        Weights w = {make_f32(32, 1, kv), make_f32(32, 1, std::vector<float>(32, 0.0f)),
                     make_f32(32, 32, std::vector<float>(1024, 1.0f)), std::vector<float>(32, 1.0f),
                     std::vector<float>(32, 1.0f)};
        hold(layer, w);
        for (const float second : {1.0f + 3 * 0x1p-9f, 1.0f + 0x1p-9f, 1.0f + 5 * 0x1p-9f}) {
            States states = {std::vector<float>(2 * 2 * 32, 0.0f)};
            for (std::size_t i = 0; i < 32; ++i) states[0][i] = i == 0 ? second : 0.5f;
            const Spans spans = {{1, 1}};
            const std::vector<Bf16> x = {to_bf16(1.0f)};
            check(layer, w, spans, x, states, compress(layer, *layer.create_stages(spans), spans, x, states, {1}));
        }
    });
}

TEST_CASE("compress: a kv source that is no index source writes no keys") {
    each_backend([](const Backend &backend) {
        Random random(360);
        TestLayer layer(backend, make_config(kOdd, 2), kSourceLayer);
        layer.role.is_index_source = false;
        const Weights w = make_weights(random, kOdd, Format::kF32, Format::kF32, Values::kRandom);
        hold(layer, w);
        const Spans spans = {{1, 4}};
        const auto x = make_inputs(random, 4 * kOdd.dim, Values::kRandom);
        const States states = make_states(random, layer, spans);
        check(layer, w, spans, x, states, compress(layer, *layer.create_stages(spans), spans, x, states, {4}));
    });
}

TEST_CASE("compress: NaN in one sequence leaves the others as they are") {
    each_backend([](const Backend &backend) {
        Random random(370);
        TestLayer layer(backend, make_config(kOdd, 2), kSourceLayer);
        const Weights w = make_weights(random, kOdd, Format::kF32, Format::kF32, Values::kRandom);
        hold(layer, w);
        const Spans spans = {{1, 3}, {4, 4}};
        auto x = make_inputs(random, 7 * kOdd.dim, Values::kRandom);
        const States states = make_states(random, layer, spans);
        const auto stages = layer.create_stages(spans);
        const Result clean = compress(layer, *stages, spans, x, states, {7});
        x[5 * 96 + 7] = Bf16{0x7fc0}; // third token of the second sequence: its second group
        const Result dirty = compress(layer, *stages, spans, x, states, {7});
        CHECK(clean.compressed[0] == dirty.compressed[0]);
        CHECK(clean.keys[0] == dirty.keys[0]);
        CHECK(equal_bits(clean.latents[0], dirty.latents[0]));
        CHECK(equal_bits(slice(clean.latents[1], 0, 96), slice(dirty.latents[1], 0, 96)));
        CHECK(std::isnan(double_of(dirty.latents[1][96])));
        // The packed rows say so too: every scale is the NaN code.
        const auto row = slice(dirty.compressed[1], 54, 54), key = slice(dirty.keys[1], 34, 34);
        for (std::size_t b = 48; b < 54; ++b) CHECK((row[b] & 0x7f) == 0x7f);
        for (std::size_t b = 32; b < 34; ++b) CHECK(key[b] == 255);
    });
}
