#include "select_scene.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace ds41::test {

namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

float rounded_f32(double value, bool round) {
    return static_cast<float>(round ? bf16_value(value) : value);
}

float sum_of(std::vector<float> products, const Steps &steps) {
    if (!steps.ascending) std::reverse(products.begin(), products.end());
    if (!steps.in_f32) return static_cast<float>(std::accumulate(products.begin(), products.end(), 0.0));
    if (!steps.one_by_one)
        for (std::size_t i = 0; i + 1 < products.size(); i += 2) {
            products[i] += products[i + 1];
            products[i + 1] = 0.0f;
        }
    float sum = 0.0f;
    for (const float product : products) sum += product;
    return sum;
}

float score_of(const std::vector<std::vector<double>> &iq, std::span<const Bf16> weights,
               const std::vector<double> &key, const Steps &steps) {
    std::vector<float> products;
    for (std::size_t h = 0; h < iq.size(); ++h) {
        double sum = 0.0;
        for (std::size_t i = 0; i < key.size(); ++i) sum += iq[h][i] * key[i];
        float value = rounded_f32(sum, steps.round_dot);
        if (steps.relu && value < 0.0f) value = 0.0f;
        products.push_back(rounded_f32(double{value} * double_of(weights[h]), steps.round_product));
    }
    return rounded_f32(double{sum_of(std::move(products), steps)}, steps.round_sum);
}

bool is_candidate(float score) {
    return !std::isnan(score) && score != kMasked;
}

// Indices of the `k` best that may be taken, ascending. `ties`: set when the first one left out is as good as the last
// taken.
std::vector<std::int32_t> best_of(const std::vector<float> &scores, std::size_t k, bool &ties) {
    std::vector<std::int32_t> order;
    for (std::size_t i = 0; i < scores.size(); ++i)
        if (is_candidate(scores[i])) order.push_back(static_cast<std::int32_t>(i));
    const auto at = [&](std::int32_t i) { return scores[static_cast<std::size_t>(i)]; };
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) { return at(a) > at(b); });
    if (order.size() > k) {
        ties = ties || (k > 0 && at(order[k]) == at(order[k - 1]));
        order.resize(k);
    }
    std::sort(order.begin(), order.end());
    return order;
}

std::vector<std::int32_t> padded(std::vector<std::int32_t> indices, int n) {
    indices.resize(static_cast<std::size_t>(n), -1);
    return indices;
}

std::vector<std::vector<std::int32_t>> rows_of(const std::vector<std::int32_t> &values, std::size_t n_rows) {
    std::vector<std::vector<std::int32_t>> rows;
    const std::size_t width = n_rows ? values.size() / n_rows : 0;
    for (std::size_t r = 0; r < n_rows; ++r) rows.push_back(slice(values, r * width, width));
    return rows;
}

} // namespace

Queries random_queries(Random &random, const TestLayer &layer, const Spans &spans) {
    const Config &c = layer.config;
    Queries queries{spans, {}, {}, {}, {}};
    for (int i = 0; i < token_count(spans) * c.index_n_heads; ++i) {
        append(queries.iq, random_packed(random, Packing::kIndexKey, c.index_head_dim));
        queries.weights.push_back(to_bf16(static_cast<float>(0.1 * random.normal())));
    }
    for (const SpanSpec &span : spans) {
        queries.keys.emplace_back();
        for (std::int64_t j = 0; j < groups_among(span.end_pos(), layer.ratio()); ++j)
            queries.keys.back().push_back(random_packed(random, Packing::kIndexKey, c.index_head_dim));
    }
    return queries;
}

Queries poisoned_queries(Queries queries) {
    std::fill(queries.iq.begin(), queries.iq.end(), std::uint8_t{0xff});
    queries.weights = poisoned(queries.weights.size());
    for (auto &keys : queries.keys) keys.clear();
    return queries;
}

Queries crafted_queries(const TestLayer &layer, const Spans &spans) {
    Queries queries{spans, {}, {}, {}, {}};
    std::vector<std::uint8_t> row(packed_bytes(Packing::kIndexKey, layer.config.index_head_dim));
    row.back() = 127;
    for (int t = 0; t < token_count(spans); ++t) {
        for (const int h : {0, 1}) {
            row[0] = h == 0 ? 0x02 : 0x0a; // e2m1 of 1 and -1
            append(queries.iq, row);
            queries.weights.push_back(to_bf16(h == 0 ? 1.0f : -1.0f));
        }
    }
    queries.keys.resize(spans.size());
    return queries;
}

void set_scores(Queries &queries, std::size_t span, const std::vector<double> &scores) {
    queries.keys[span].clear();
    for (const double score : scores) {
        std::vector<std::uint8_t> row(17);
        row[16] = 127;
        if (std::isnan(score)) {
            row[16] = 255;
        } else if (std::isinf(score)) { // 6 * 2^127 is beyond f32
            row[16] = 254;
            row[0] = score > 0.0 ? 0x07 : 0x0f;
        } else if (score != 0.0) {
            // 1 or 1.5 times a power of two, as 2 or 3 (codes 4, 5) times a scale.
            int exponent = 0;
            const double mantissa = std::frexp(std::fabs(score), &exponent);
            REQUIRE((mantissa == 0.5 || mantissa == 0.75));
            row[16] = static_cast<std::uint8_t>(127 + exponent - 2);
            row[0] = static_cast<std::uint8_t>((mantissa > 0.6 ? 5 : 4) | (score < 0.0 ? 8 : 0));
        }
        queries.keys[span].push_back(row);
    }
}

Comparison same_scores(const Selection &actual, const Selection &expected) {
    std::vector<float> a, b;
    for (const auto &row : actual.scores) append(a, row);
    for (const auto &row : expected.scores) append(b, row);
    // -0 is 0: the sign of a sum without terms depends on how it starts.
    return close(a, b, Tolerance{});
}

std::vector<std::int32_t> chosen(std::vector<std::int32_t> slots) {
    while (!slots.empty() && slots.back() == -1) slots.pop_back();
    return slots;
}

Selection select(const TestLayer &layer, Stages &stages, const Queries &queries, const std::vector<int> &tiles,
                 ds41_topk_rule rule, bool tapped) {
    TestStep step(layer, queries.spans);
    const auto n_tokens = static_cast<std::size_t>(step.n_tokens()),
               heads = static_cast<std::size_t>(layer.config.index_n_heads);
    const std::size_t row_bytes = packed_bytes(Packing::kIndexKey, layer.config.index_head_dim);
    const auto n_group_slots = static_cast<std::size_t>(step.n_group_slots()),
               n_block_slots = static_cast<std::size_t>(step.n_block_slots());
    const bool has_blocks = layer.role.is_candidate_source || layer.role.uses_candidates;

    std::vector<Buffer<float>> taps;
    std::vector<float *> tap_pointers;
    for (std::size_t s = 0; s < queries.spans.size(); ++s) {
        for (std::size_t j = 0; j < queries.keys[s].size() && static_cast<std::int64_t>(j) < step.n_groups(s); ++j)
            step.sequence(s).index_keys.set(static_cast<std::int64_t>(j), queries.keys[s][j]);
        taps.emplace_back(layer.memory(), static_cast<std::size_t>(queries.spans[s].n_tokens * step.n_groups(s)));
        tap_pointers.push_back(taps.back().data());
    }
    const Buffer<float *> tap_table(layer.memory(), tap_pointers);
    Buffer<std::int32_t> groups(layer.memory(), n_tokens * n_group_slots),
        blocks(layer.memory(), n_tokens * n_block_slots);
    for (std::size_t t = 0; t < queries.kept.size(); ++t)
        blocks.set(padded(queries.kept[t], static_cast<int>(n_block_slots)), t * n_block_slots);

    std::int32_t first = 0;
    for (const std::int32_t n : tiles) {
        const auto at = static_cast<std::size_t>(first), tile = static_cast<std::size_t>(n);
        const Buffer<std::uint8_t> iq(layer.memory(),
                                      slice(queries.iq, at * heads * row_bytes, tile * heads * row_bytes));
        const Buffer<Bf16> weights(layer.memory(), slice(queries.weights, at * heads, tile * heads));
        stages.select({step.view(),
                       {first, n},
                       iq.data(),
                       weights.data(),
                       has_blocks ? blocks.data() : nullptr,
                       step.n_block_slots(),
                       groups.data(),
                       step.n_group_slots(),
                       rule,
                       tapped ? tap_table.data() : nullptr});
        first += n;
    }
    Selection result;
    result.groups = rows_of(groups.get(), n_tokens);
    if (has_blocks) result.blocks = rows_of(blocks.get(), n_tokens);
    for (std::size_t s = 0; s < queries.spans.size(); ++s) {
        const auto width = static_cast<std::size_t>(step.n_groups(s));
        for (std::size_t t = 0; t < static_cast<std::size_t>(queries.spans[s].n_tokens); ++t)
            result.scores.push_back(taps[s].get(t * width, width));
    }
    return result;
}

Selection expected_selection(const TestLayer &layer, const Queries &queries, Steps steps) {
    const Config &c = layer.config;
    const TestStep step(layer, queries.spans);
    const auto heads = static_cast<std::size_t>(c.index_n_heads),
               size = static_cast<std::size_t>(std::max(c.candidate_block_size, 1));
    const std::size_t row_bytes = packed_bytes(Packing::kIndexKey, c.index_head_dim);
    const bool has_blocks = layer.role.is_candidate_source || layer.role.uses_candidates;
    std::vector<std::vector<std::vector<double>>> keys;
    for (const auto &of_span : queries.keys) {
        keys.emplace_back();
        for (const auto &row : of_span) keys.back().push_back(unpacked(Packing::kIndexKey, row, c.index_head_dim));
    }
    Selection result;
    for (std::size_t t = 0; t < step.tokens().size(); ++t) {
        const auto s = static_cast<std::size_t>(step.tokens()[t].span);
        const auto visible = static_cast<std::size_t>((step.tokens()[t].pos + 1) / layer.ratio());
        std::vector<std::vector<double>> iq;
        for (std::size_t h = 0; h < heads; ++h)
            iq.push_back(unpacked(Packing::kIndexKey, slice(queries.iq, (t * heads + h) * row_bytes, row_bytes),
                                  c.index_head_dim));
        std::vector<float> scores(static_cast<std::size_t>(step.n_groups(s)), kMasked);
        for (std::size_t j = 0; j < visible; ++j) {
            if (layer.role.uses_candidates) {
                const auto &kept = queries.kept[t];
                if (std::find(kept.begin(), kept.end(), static_cast<std::int32_t>(j / size)) == kept.end()) continue;
            }
            scores[j] = score_of(iq, slice(queries.weights, t * heads, heads), keys[s][j], steps);
        }
        bool ties = false;
        result.groups.push_back(
            padded(best_of(scores, static_cast<std::size_t>(c.index_topk), ties), step.n_group_slots()));
        std::vector<std::int32_t> kept;
        if (layer.role.uses_candidates) kept = queries.kept[t];
        if (layer.role.is_candidate_source && visible > 0) {
            std::vector<float> best((visible + size - 1) / size, kMasked);
            for (std::size_t j = 0; j < visible; ++j)
                if (scores[j] > best[j / size]) best[j / size] = scores[j];
            // The newest group's block has its place; the others compete for the rest.
            best.back() = kMasked;
            kept = best_of(best, static_cast<std::size_t>(c.candidate_topk_blocks) - 1, ties);
            kept.push_back(static_cast<std::int32_t>(best.size()) - 1);
        }
        if (has_blocks) result.blocks.push_back(padded(kept, step.n_block_slots()));
        result.scores.push_back(std::move(scores));
        result.ties.push_back(ties);
    }
    return result;
}

} // namespace ds41::test
