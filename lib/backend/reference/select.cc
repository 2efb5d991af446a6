// Index scores, candidate blocks, and the best groups of each token.
#include "backend/reference/rank.h"
#include "backend/reference/rows.h"
#include "numeric/rows.h"

#include <algorithm>
#include <limits>

namespace ds41 {

using namespace reference;

namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// bf16( sum_h bf16( relu(bf16(iq_h . k)) * w_h ) ), heads in ascending order in f32. `queries` are [n_heads][n].
float score_group(const Bf16 *queries, const Bf16 *key, const Bf16 *weights, int n_heads, int n) {
    float sum = 0.0f;
    for (int h = 0; h < n_heads; ++h) {
        float dot = 0.0f;
        for (int e = 0; e < n; ++e) dot += to_f32(queries[std::int64_t{h} * n + e]) * to_f32(key[e]);
        dot = round_bf16(dot);
        if (dot < 0.0f) dot = 0.0f; // a NaN stays
        sum += round_bf16(dot * to_f32(weights[h]));
    }
    return round_bf16(sum);
}

// Write ranked indices in ascending order, then -1.
void write_ascending(Scored *ranked, std::int64_t n, std::int32_t *out, std::int32_t n_slots) {
    std::sort(ranked, ranked + n, [](const Scored &a, const Scored &b) { return a.index < b.index; });
    for (std::int64_t i = 0; i < n; ++i) out[i] = ranked[i].index;
    std::fill(out + n, out + n_slots, -1);
}

} // namespace

void ReferenceStages::score_groups(const SelectArgs &a, int token, std::int64_t n_visible) {
    const Config &c = *a.layer.config;
    const SpanView &span = a.layer.step.spans[a.layer.step.tokens[token].span];
    const std::size_t row_bytes = index_key_row_bytes(c.index_head_dim);
    const std::size_t first =
        static_cast<std::size_t>(token - a.tile.first) * static_cast<std::size_t>(c.index_n_heads);
    Bf16 *queries = buffers_.row.data();
    Bf16 *key = buffers_.key.data();
    for (int h = 0; h < c.index_n_heads; ++h)
        unpack_index_key_row(a.iq + (first + static_cast<std::size_t>(h)) * row_bytes, c.index_head_dim,
                             queries + std::int64_t{h} * c.index_head_dim);

    float *scores = buffers_.scores.data();
    const auto score = [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t j = from; j < to; ++j) {
            unpack_index_key_row(span.index_keys.row(j), c.index_head_dim, key);
            scores[j] = score_group(queries, key, a.weights + first, c.index_n_heads, c.index_head_dim);
        }
    };
    std::fill(scores, scores + std::max(n_visible, span.n_rank_groups), kMasked);
    if (!a.layer.role->uses_candidates) {
        score(0, n_visible);
        return;
    }
    const std::int32_t *blocks = a.blocks + std::int64_t{token} * a.n_block_slots;
    for (std::int32_t i = 0; i < a.n_block_slots && blocks[i] >= 0; ++i) {
        const std::int64_t from = std::int64_t{blocks[i]} * c.candidate_block_size;
        score(from, std::min(from + c.candidate_block_size, n_visible));
    }
}

// A block's score is its best; the block of the newest visible group always stays.
void reference::keep_blocks(const SelectArgs &a, int token, std::int64_t n_visible, const float *scores,
                            Scored *ranking) {
    const Config &c = *a.layer.config;
    const SpanView &span = a.layer.step.spans[a.layer.step.tokens[token].span];
    const std::int64_t block_size = c.candidate_block_size;
    std::int32_t *out = a.blocks + std::int64_t{token} * a.n_block_slots;

    const bool torch = a.rule == DS41_TOPK_TORCH_CPU;
    const std::int64_t n_groups = torch ? std::max(n_visible, span.n_rank_groups) : n_visible;
    const std::int64_t n_blocks = (n_groups + block_size - 1) / block_size;
    const std::int64_t newest = n_visible > 0 ? (n_visible - 1) / block_size : -1;
    for (std::int64_t b = 0; b < n_blocks; ++b) {
        float best = kMasked;
        for (std::int64_t j = b * block_size; j < std::min((b + 1) * block_size, n_groups); ++j)
            if (scores[j] > best || (torch && is_nan(scores[j]))) best = scores[j];
        ranking[b] = {best, static_cast<std::int32_t>(b)};
    }

    std::int64_t n_kept = std::min<std::int64_t>(c.candidate_topk_blocks, n_blocks);
    if (torch) {
        if (newest >= 0) ranking[newest].score = std::numeric_limits<float>::infinity();
        if (n_kept > 0) rank_torch_cpu(ranking, n_blocks, n_kept);
        n_kept =
            std::remove_if(ranking, ranking + n_kept, [](const Scored &s) { return !(s.score > kMasked); }) - ranking;
    } else if (newest >= 0) {
        // The newest, which is the last, has its place whatever its scores are; of the others those without one fall
        // out.
        Scored *end =
            std::remove_if(ranking, ranking + n_blocks - 1, [](const Scored &s) { return !(s.score > kMasked); });
        *end = {std::numeric_limits<float>::infinity(), static_cast<std::int32_t>(newest)};
        n_kept = std::min<std::int64_t>(n_kept, end - ranking + 1);
        std::swap(ranking[0], *end);
        rank_stable(ranking + 1, end - ranking, n_kept - 1);
    }
    write_ascending(ranking, n_kept, out, a.n_block_slots);
}

void reference::take_best(const SelectArgs &a, int token, std::int64_t n_visible, const float *scores,
                          Scored *ranking) {
    const Config &c = *a.layer.config;
    const SpanView &span = a.layer.step.spans[a.layer.step.tokens[token].span];
    std::int64_t n = 0, n_taken;
    if (a.rule == DS41_TOPK_TORCH_CPU) {
        for (; n < std::max(n_visible, span.n_rank_groups); ++n) ranking[n] = {scores[n], static_cast<std::int32_t>(n)};
        n_taken = std::min<std::int64_t>(c.index_topk, n);
        if (n_taken > 0) rank_torch_cpu(ranking, n, n_taken);
        // What the token cannot see is dropped; a masked group that it can see stays, as in the original.
        n_taken =
            std::remove_if(ranking, ranking + n_taken, [&](const Scored &s) { return s.index >= n_visible; }) - ranking;
    } else {
        for (std::int64_t j = 0; j < n_visible; ++j)
            if (scores[j] > kMasked) ranking[n++] = {scores[j], static_cast<std::int32_t>(j)};
        n_taken = std::min<std::int64_t>(c.index_topk, n);
        rank_stable(ranking, n, n_taken);
    }
    write_ascending(ranking, n_taken, a.groups + std::int64_t{token} * a.n_group_slots, a.n_group_slots);
}

void ReferenceStages::select(const SelectArgs &a) {
    const LayerRole &role = *a.layer.role;
    for (int token = a.tile.first; token < a.tile.first + a.tile.n; ++token) {
        const TokenView &view = a.layer.step.tokens[token];
        const SpanView &span = a.layer.step.spans[view.span];
        const std::int64_t n_visible = groups_among(view.pos + 1, role.ratio);
        score_groups(a, token, n_visible);
        if (a.tap_scores) {
            const std::int64_t n_groups = groups_among(span.start_pos + span.n_tokens, role.ratio);
            float *row = a.tap_scores[view.span] + (view.pos - span.start_pos) * n_groups;
            std::copy_n(buffers_.scores.data(), n_visible, row);
            std::fill(row + n_visible, row + n_groups, kMasked);
        }
        if (role.is_candidate_source) keep_blocks(a, token, n_visible, buffers_.scores.data(), buffers_.ranking.data());
        take_best(a, token, n_visible, buffers_.scores.data(), buffers_.ranking.data());
    }
}

} // namespace ds41
