// Stage 5 of every backend: softmax over window rows and selected compressed rows, with a sink. Every row that a token
// does not attend to is NaN: ring slots out of reach, groups that nobody selected, row 0 behind an absent entry.
#include "scene.h"

#include <algorithm>
#include <cmath>

using namespace ds41;
using namespace ds41::test;

namespace {

using Bytes = std::vector<std::uint8_t>;

// What a step attends to, apart from the queries.
struct Inputs {
    Spans spans;
    Bytes window_new;                                                // [n_tokens] rows
    std::vector<std::vector<std::pair<std::int64_t, Bytes>>> ring;   // by span: position and row
    std::vector<std::vector<std::pair<std::int64_t, Bytes>>> groups; // by span: group and row
    std::vector<std::vector<std::int32_t>> selected;                 // by token, ascending
    bool no_selection = false;                                       // no pointer at all
};

// Rows in reach and random selections of up to `topk` groups; every `absent_every`th token has none.
Inputs make_inputs_of(Random &random, const TestLayer &layer, const Spans &spans, int topk, int absent_every = 1000) {
    const Config &c = layer.config;
    Inputs in{spans, {}, {}, {}, {}, layer.ratio() == 0};
    for (const SpanSpec &span : spans) {
        in.ring.emplace_back();
        for (std::int64_t pos = std::max<std::int64_t>(0, span.start_pos - c.window_size + 1); pos < span.start_pos;
             ++pos)
            in.ring.back().emplace_back(pos, random_packed(random, Packing::kWindow, c.head_dim));
        std::vector<std::int64_t> needed;
        for (int i = 0; i < span.n_tokens; ++i) {
            append(in.window_new, random_packed(random, Packing::kWindow, c.head_dim));
            std::vector<std::int32_t> chosen;
            const std::int64_t visible = layer.ratio() > 0 ? (span.start_pos + i + 1) / layer.ratio() : 0;
            const bool absent = (in.selected.size() + 1) % static_cast<std::size_t>(absent_every) == 0;
            for (int k = 0; k < 2 * topk && visible > 0 && !absent && static_cast<int>(chosen.size()) < topk; ++k) {
                // Of a long sequence the first and the last groups.
                const auto near = static_cast<int>(std::min<std::int64_t>(visible, 200));
                auto group = static_cast<std::int32_t>(visible - 1 - random.below(near));
                if (group == 0 && visible > 1) continue; // stays NaN
                if (std::find(chosen.begin(), chosen.end(), group) == chosen.end()) chosen.push_back(group);
            }
            std::sort(chosen.begin(), chosen.end());
            needed.insert(needed.end(), chosen.begin(), chosen.end());
            in.selected.push_back(std::move(chosen));
        }
        std::sort(needed.begin(), needed.end());
        needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
        in.groups.emplace_back();
        for (const std::int64_t group : needed)
            in.groups.back().emplace_back(group, random_packed(random, Packing::kCompressed, c.head_dim));
    }
    return in;
}

using Output = std::vector<std::uint16_t>; // bits of o, comparable

Output attend(const TestLayer &layer, Stages &stages, const Inputs &in, const std::vector<Bf16> &q,
              const std::vector<int> &tiles, bool poison = false) {
    TestStep step(layer, in.spans);
    const auto width = static_cast<std::size_t>(layer.config.q_width());
    for (std::size_t s = 0; s < in.spans.size() && !poison; ++s) {
        for (const auto &[pos, row] : in.ring[s]) step.sequence(s).window.set(pos % layer.config.window_size, row);
        for (const auto &[group, row] : in.groups[s]) step.sequence(s).compressed.set(group, row);
    }
    const int n_slots = in.no_selection ? 0 : step.n_group_slots();
    std::vector<std::int32_t> groups(static_cast<std::size_t>(step.n_tokens() * n_slots), -1);
    for (std::size_t t = 0; t < in.selected.size() && n_slots > 0; ++t)
        std::copy(in.selected[t].begin(), in.selected[t].end(),
                  groups.begin() + static_cast<std::ptrdiff_t>(t) * n_slots);
    const Buffer<std::int32_t> group_buffer(layer.memory(), groups);
    const Buffer<std::uint8_t> window_new(layer.memory(), poison ? Bytes(in.window_new.size(), 0xff) : in.window_new);
    Output result;
    std::int32_t first = 0;
    for (const std::int32_t n : tiles) {
        const auto at = static_cast<std::size_t>(first), tile = static_cast<std::size_t>(n);
        const Buffer<Bf16> q_buffer(layer.memory(),
                                    poison ? poisoned(tile * width) : slice(q, at * width, tile * width));
        const Buffer<Bf16> o(layer.memory(), tile * width);
        stages.attend({step.view(),
                       {first, n},
                       q_buffer.data(),
                       window_new.data(),
                       n_slots > 0 ? group_buffer.data() : nullptr,
                       n_slots,
                       o.data()});
        for (const Bf16 value : o.get()) result.push_back(value.bits);
        first += n;
    }
    return result;
}

// One head over rows that are known exactly.
Row attention(const Row &q, const std::vector<std::vector<double>> &rows, float sink, double scale) {
    std::vector<Bounded> scores;
    double best = double{sink};
    for (const auto &row : rows) {
        Bounded score = dot(row, q);
        score = {score.value * scale, score.error * scale + 2.0 * kF32Step * std::fabs(score.value) * scale};
        scores.push_back(score);
        best = std::max(best, score.value);
    }
    Row o(q.size());
    if (std::isinf(sink) && sink > 0.0f) return o;
    double total = std::exp(double{sink} - best), total_error = 4.0 * kF32Step * total;
    std::vector<Bounded> weights;
    for (const Bounded &score : scores) {
        const double weight = std::exp(score.value - best);
        // As wrong as its argument, and by 4 steps of its own.
        const double relative =
            std::expm1(score.error + kF32Step * (std::fabs(score.value) + std::fabs(best)) * 0.5 + 4.0 * kF32Step);
        weights.push_back({weight, weight * relative});
        total += weight;
        total_error += weights.back().error;
    }
    for (std::size_t i = 0; i < o.size(); ++i) {
        double sum = 0.0, error = 0.0, size = 0.0;
        for (std::size_t r = 0; r < rows.size(); ++r) {
            sum += weights[r].value * rows[r][i];
            size += weights[r].value * std::fabs(rows[r][i]);
            error += weights[r].error * std::fabs(rows[r][i]);
        }
        error += size * kF32Step * (std::sqrt(static_cast<double>(rows.size())) + 4.0) +
                 std::fabs(sum) / total * total_error;
        o[i] = rounded({sum / total, error / total});
    }
    return o;
}

std::vector<std::vector<double>> rows_of(const TestLayer &layer, const Inputs &in, const TestStep &step,
                                         std::size_t token) {
    const auto [span, pos] = step.tokens()[token];
    const auto s = static_cast<std::size_t>(span);
    const int head_dim = layer.config.head_dim;
    const std::size_t row_bytes = packed_bytes(Packing::kWindow, head_dim);
    std::vector<std::vector<double>> rows;
    const auto stored = [](const auto &list, std::int64_t key) {
        return std::find_if(list.begin(), list.end(), [key](const auto &entry) { return entry.first == key; })->second;
    };
    for (std::int64_t at = std::max<std::int64_t>(0, pos - layer.config.window_size + 1); at <= pos; ++at) {
        const auto of_step = static_cast<std::size_t>(static_cast<std::int64_t>(token) - (pos - at));
        rows.push_back(unpacked(Packing::kWindow,
                                at < in.spans[s].start_pos ? stored(in.ring[s], at)
                                                           : slice(in.window_new, of_step * row_bytes, row_bytes),
                                head_dim));
    }
    if (!in.no_selection)
        for (const std::int32_t group : in.selected[token])
            rows.push_back(unpacked(Packing::kCompressed, stored(in.groups[s], group), head_dim));
    return rows;
}

void check(const TestLayer &layer, const std::vector<float> &sinks, const Inputs &in, const std::vector<Bf16> &q,
           const Output &result, bool tight = true) {
    const auto width = static_cast<std::size_t>(layer.config.q_width()),
               head = static_cast<std::size_t>(layer.config.head_dim);
    const TestStep step(layer, in.spans);
    const double scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head)));
    Verdict verdict;
    for (std::size_t t = 0; t < step.tokens().size(); ++t) {
        const auto rows = rows_of(layer, in, step, t);
        for (std::size_t h = 0; h < width / head; ++h) {
            std::vector<Bf16> o;
            for (const std::uint16_t bits : slice(result, t * width + h * head, head)) o.push_back(Bf16{bits});
            verdict.expect_bf16(o, attention(exactly(slice(q, t * width + h * head, head)), rows, sinks[h], scale));
        }
    }
    CHECK_MESSAGE(verdict.is_right(), verdict);
    if (tight) CHECK_MESSAGE(verdict.is_tight(), verdict);
}

std::vector<float> make_sinks(Random &random, int n) {
    std::vector<float> sinks;
    constexpr float kSpecial[] = {-INFINITY, INFINITY, 30.0f, -30.0f};
    for (int h = 0; h < n; ++h) sinks.push_back(n > 3 && h < 4 ? kSpecial[h] : static_cast<float>(random.normal()));
    return sinks;
}

struct Case {
    const char *name;
    Geometry geometry;
    int ratio;
    Spans spans;
    int absent_every = 1000;
};

const Case kCases[] = {
    {"window of one", kTiny, 0, {{0, 1}, {5, 3}}},
    {"ratio 0: clipped at 0, ring wraps, step longer than the window",
     kOdd,
     0,
     {{0, 3}, {3, 4}, {4, 1}, {5, 1}, {1000, 13}, {6, 2}}},
    {"ratio 1", kOdd, 1, {{0, 2}, {70, 4}, {300, 1}}},
    {"ratio 2, no group complete at first", kWholeHead, 2, {{0, 7}, {8, 1}, {129, 3}}},
    {"ratio 3, absent selections", kWholeHead, 3, {{20, 9}, {400, 2}}, 2},
    {"all selections absent", kOdd, 2, {{9, 3}}, 1},
    {"production heads", kProduction, 1, {{1048575, 1}, {0, 1}, {200, 1}}},
};

} // namespace

TEST_CASE("attend: every shape, tiles of every size") {
    each_backend([](const Backend &backend) {
        std::uint64_t stream = 700;
        for (const Case &c : kCases) {
            CAPTURE(std::string(c.name));
            Random random(stream++);
            const bool large = c.geometry.n_heads > 8;
            TestLayer layer(backend, make_config(c.geometry, c.ratio, large ? 40 : 8),
                            c.ratio ? kConsumerLayer : kWindowLayer);
            const auto sinks = make_sinks(random, c.geometry.n_heads);
            layer.weights.attn_sink = layer.hold(sinks);
            const Inputs in = make_inputs_of(random, layer, c.spans, large ? 40 : 8, c.absent_every);
            const int n = token_count(c.spans);
            const auto q = make_inputs(random, n * c.geometry.n_heads * c.geometry.head_dim, Values::kRandom);
            Output whole;
            for (const auto &tiles : tilings(n)) {
                const Output result = repeated(layer, c.spans, [&](Stages &stages, bool poison) {
                    return attend(layer, stages, in, q, tiles, poison);
                });
                if (tiles.size() == 1) check(layer, sinks, in, q, whole = result);
                CHECK_MESSAGE(result == whole, "tiles of another size gave other bits");
            }
        }
    });
}

TEST_CASE("attend: a sequence gets the same bits alone and in company") {
    each_backend([](const Backend &backend) {
        Random random(705);
        TestLayer layer(backend, make_config(kOdd, 2), kConsumerLayer);
        layer.weights.attn_sink = layer.hold(make_sinks(random, 6));
        const Spans spans = {{7, 2}, {1000, 1}, {0, 3}, {12, 8}};
        const Inputs in = make_inputs_of(random, layer, spans, 8);
        const auto q = make_inputs(random, 14 * 576, Values::kRandom);
        const auto stages = layer.create_stages(spans);
        const Output together = attend(layer, *stages, in, q, {14});
        std::size_t at = 0;
        for (std::size_t s = 0; s < spans.size(); ++s) {
            const auto n = static_cast<std::size_t>(spans[s].n_tokens);
            const Inputs own = {{spans[s]},
                                slice(in.window_new, at * 99, n * 99),
                                {in.ring[s]},
                                {in.groups[s]},
                                slice(in.selected, at, n)};
            CHECK(attend(layer, *stages, own, slice(q, at * 576, n * 576), {spans[s].n_tokens}) ==
                  slice(together, at * 576, n * 576));
            at += n;
        }
    });
}

TEST_CASE("attend: a compressed layer without a complete group attends to its window") {
    each_backend([](const Backend &backend) {
        Random random(710);
        TestLayer layer(backend, make_config(kOdd, 4), kConsumerLayer);
        const auto sinks = make_sinks(random, 6);
        layer.weights.attn_sink = layer.hold(sinks);
        const Spans spans = {{0, 3}, {1, 2}};
        Inputs in = make_inputs_of(random, layer, spans, 8);
        in.no_selection = true;
        const auto q = make_inputs(random, 5 * 576, Values::kRandom);
        check(layer, sinks, in, q, attend(layer, *layer.create_stages(spans), in, q, {5}));
    });
}

TEST_CASE("attend: scores far apart and far from zero, sinks too") {
    each_backend([](const Backend &backend) {
        for (const double magnitude : {30.0, 1e3}) {
            CAPTURE(magnitude);
            Random random(720);
            TestLayer layer(backend, make_config(kWholeHead, 1), kConsumerLayer);
            const std::vector<float> sinks = {-INFINITY, 1e4f, -1e4f, 300.0f};
            layer.weights.attn_sink = layer.hold(sinks);
            const Spans spans = {{12, 4}};
            const Inputs in = make_inputs_of(random, layer, spans, 8);
            const auto q = random.bf16_row(4 * 128, magnitude);
            check(layer, sinks, in, q, attend(layer, *layer.create_stages(spans), in, q, {4}), magnitude < 100.0);
        }
    });
}

TEST_CASE("attend: one score of 2^97 takes all, all of -2^97 leave the sink or the mean") {
    each_backend([](const Backend &backend) {
        Geometry g = kTiny;
        g.n_heads = 4;
        g.window = 3;
        TestLayer layer(backend, make_config(g, 0), kWindowLayer);
        const std::vector<float> sinks = {-INFINITY, 0x1p90f, -INFINITY, 0.0f};
        layer.weights.attn_sink = layer.hold(sinks);
        // Rows of 32 codes and one scale: value 0 is +-1, value 1 is 1, 2, 3 by position, the others 0.
        Inputs in{{{2, 1}}, {}, {{}}, {{}}, {{}}, true};
        const auto row_of = [](std::uint8_t first, std::uint8_t second) {
            Bytes row(33, 0);
            row[0] = first;
            row[1] = second;
            row[32] = 127;
            return row;
        };
        for (const bool alike : {false, true}) {
            in.ring[0] = {{0, row_of(alike ? 0x38 : 0xb8, 0x38)}, {1, row_of(0x38, 0x40)}};
            in.window_new = row_of(alike ? 0x38 : 0xb8, 0x44);
            std::vector<Bf16> q(128, to_bf16(0.0f));
            for (std::size_t h = 0; h < 4; ++h) q[h * 32] = to_bf16(h < 2 ? 0x1p100f : -0x1p100f);
            const Output o = attend(layer, *layer.create_stages(in.spans), in, q, {1});
            const auto value = [&](std::size_t h, std::size_t i) { return double_of(Bf16{o[h * 32 + i]}); };
            for (std::size_t h = 0; h < 2; ++h) { // the middle row; or all three
                CHECK(value(h, 0) == 1.0);
                CHECK(value(h, 1) == 2.0);
            }
            CHECK(value(2, 0) == (alike ? 1.0 : -1.0)); // no sink: the mean of those that are best
            CHECK(value(2, 1) == 2.0);
            CHECK(value(3, 0) == (alike ? 0.0 : -1.0)); // the sink takes what all rows leave
            CHECK(value(3, 1) == (alike ? 0.0 : 2.0));
        }
    });
}

TEST_CASE("attend: the sink counts in the denominator only") {
    each_backend([](const Backend &backend) {
        Geometry g = kTiny;
        g.n_heads = 5;
        TestLayer layer(backend, make_config(g, 0), kWindowLayer);
        const std::vector<float> sinks = {0.0f, -INFINITY, INFINITY, std::log(3.0f), -std::log(3.0f)};
        layer.weights.attn_sink = layer.hold(sinks);
        Inputs in{{{7, 1}}, Bytes(32, 0x38), {{}}, {{}}, {{}}, true}; // one row, of ones
        in.window_new.push_back(127);
        const std::vector<Bf16> q(160, to_bf16(0.0f)); // a score of 0
        const Output o = attend(layer, *layer.create_stages(in.spans), in, q, {1});
        const double expected[] = {0.5, 1.0, 0.0, 0.25, 0.75};
        for (std::size_t h = 0; h < 5; ++h)
            for (std::size_t i = 0; i < 32; ++i) CHECK(double_of(Bf16{o[h * 32 + i]}) == expected[h]);
        check(layer, sinks, in, q, o);
    });
}

TEST_CASE("attend: NaN in one head or one sequence leaves the others as they are") {
    each_backend([](const Backend &backend) {
        Random random(730);
        TestLayer layer(backend, make_config(kOdd, 2), kConsumerLayer);
        const auto sinks = make_sinks(random, 6);
        layer.weights.attn_sink = layer.hold(sinks);
        const Spans spans = {{20, 2}, {30, 1}, {9, 3}};
        const Inputs in = make_inputs_of(random, layer, spans, 8);
        auto q = make_inputs(random, 6 * 576, Values::kRandom);
        const auto stages = layer.create_stages(spans);
        const Output clean = attend(layer, *stages, in, q, {6});
        const auto differing = [&](const Output &other) {
            std::vector<std::size_t> heads;
            for (std::size_t h = 0; h < 36; ++h)
                if (slice(clean, h * 96, 96) != slice(other, h * 96, 96)) heads.push_back(h);
            return heads;
        };
        const auto clean_q = q;
        q[10 * 96 + 3].bits = 0x7fc0; // token 1, head 4
        const Output with_query = attend(layer, *stages, in, q, {6});
        CHECK(differing(with_query) == std::vector<std::size_t>{10});
        CHECK(std::isnan(double_of(Bf16{with_query[10 * 96]})));
        Inputs dirty = in;
        dirty.ring[1][0].second[96] = 255; // scales of rows of token 2
        dirty.groups[1][0].second[48] = 127;
        for (const std::size_t h : differing(attend(layer, *stages, dirty, clean_q, {6}))) CHECK(h / 6 == 2);
    });
}
