// Index scores, candidate blocks, and the best groups of each token. A few tokens of a sequence are scored against each
// unpacked tile of keys; layers with candidates read only their blocks.
#include "backend/cpu/stages.h"

#include "backend/cpu/rank.h"
#include "backend/reference/rank.h"
#include "numeric/rows.h"

#include <algorithm>

namespace ds41 {

using namespace cpu;

namespace {

constexpr std::int64_t kChunkKeys = 256; // 17 KB of packed keys of V4.1-Flash

float score_value(std::uint16_t bits) {
    return to_f32(Bf16{bits});
}

} // namespace

IndexQuery CpuStages::query_at(const Config &c, int i) const {
    const std::int64_t codes = c.index_q_width(), blocks = codes / kIndexKeyBlock;
    std::uint8_t *memory = get<std::uint8_t>(kQueries) + std::size_t(i) * query_bytes(c);
    auto *const bias = reinterpret_cast<std::int32_t *>(memory + codes);
    auto *const scales = reinterpret_cast<float *>(bias + blocks);
    return {reinterpret_cast<std::int8_t *>(memory), bias, scales, scales + blocks};
}

void CpuStages::unpack_query(const SelectArgs &a, int token, int i) const {
    const Config &c = *a.layer.config;
    const IndexQuery q = query_at(c, i);
    const int n_blocks = c.index_head_dim / kIndexKeyBlock;
    const std::size_t row_bytes = index_key_row_bytes(c.index_head_dim);
    for (int h = 0; h < c.index_n_heads; ++h) {
        const std::int64_t row = std::int64_t{token - a.tile.first} * c.index_n_heads + h;
        score_.unpack_query(a.iq + static_cast<std::size_t>(row) * row_bytes, c.index_head_dim,
                            q.codes + std::int64_t{h} * c.index_head_dim, q.bias + h * n_blocks,
                            q.scales + h * n_blocks);
        q.weights[h] = to_f32(a.weights[row]);
    }
}

// Keys [from, to) of those that the tokens score: all in ascending order, or one after the other those of the blocks.
void CpuStages::score_keys(const SelectArgs &a, int first, int n, std::int64_t from, std::int64_t to, int slot) const {
    const Config &c = *a.layer.config;
    const LayerRole &role = *a.layer.role;
    const TokenView *tokens = a.layer.step.tokens + first;
    const SpanView &span = a.layer.step.spans[tokens->span];
    const std::int32_t *blocks = role.uses_candidates ? a.blocks + std::int64_t{first} * a.n_block_slots : nullptr;
    const std::int64_t n_visible = groups_among(tokens[n - 1].pos + 1, role.ratio);
    std::uint8_t *tile = scratch(slot);
    auto *const scales = reinterpret_cast<float *>(tile + std::int64_t{kKeyTile} * c.index_head_dim);

    const auto group_at = [&](std::int64_t i) {
        return blocks ? blocks[i / c.candidate_block_size] * std::int64_t{c.candidate_block_size} +
                            i % c.candidate_block_size
                      : i;
    };
    while (from < to) {
        std::int64_t groups[kKeyTile];
        const std::uint8_t *rows[kKeyTile];
        int n_keys = 0;
        for (; n_keys < kKeyTile && from < to; ++from) {
            const std::int64_t group = group_at(from);
            if (group >= n_visible) continue; // the end of the last block
            groups[n_keys] = group;
            rows[n_keys++] = span.index_keys.row(group);
            // Those of the next tile: while this one is scored they come from memory.
            if (from + kKeyTile >= to) continue;
            if (const std::int64_t next = group_at(from + kKeyTile); next < n_visible)
                __builtin_prefetch(span.index_keys.row(next));
        }
        if (n_keys == 0) return;
        for (int k = n_keys; k < kKeyTile; ++k) rows[k] = rows[0];
        score_.unpack_keys(rows, c.index_head_dim, tile, scales);
        for (int i = 0; i < n; ++i) {
            std::uint16_t scores[kKeyTile];
            const std::int64_t n_seen = groups_among(tokens[i].pos + 1, role.ratio);
            if (groups[0] >= n_seen) continue;
            score_.score(query_at(c, i), c.index_n_heads, c.index_head_dim, tile, scales, scores);
            for (int k = 0; k < n_keys && groups[k] < n_seen; ++k) scores_of(i)[groups[k]] = scores[k];
        }
    }
}

void CpuStages::score_tokens(const SelectArgs &a, int first, int n) {
    const Config &c = *a.layer.config;
    const LayerRole &role = *a.layer.role;
    const std::int64_t n_visible = groups_among(a.layer.step.tokens[first + n - 1].pos + 1, role.ratio);
    for (int i = 0; i < n; ++i) unpack_query(a, first + i, i);
    std::int64_t n_keys = n_visible;
    if (role.uses_candidates) {
        const std::int32_t *blocks = a.blocks + std::int64_t{first} * a.n_block_slots;
        std::int64_t n_blocks = 0;
        while (n_blocks < a.n_block_slots && blocks[n_blocks] >= 0) ++n_blocks;
        n_keys = n_blocks * c.candidate_block_size;
        std::fill_n(scores_of(0), n_visible, kMaskedBits);
    }
    const std::int64_t cost = kChunkKeys * n * c.index_q_width() / 8;
    pool_.run((n_keys + kChunkKeys - 1) / kChunkKeys, cost, [&](int slot, std::int64_t chunk) {
        score_keys(a, first, n, chunk * kChunkKeys, std::min(n_keys, (chunk + 1) * kChunkKeys), slot);
    });
}

// A block's score is its best; the block of the newest visible group always stays.
void CpuStages::keep_blocks(const SelectArgs &a, int token, const std::uint16_t *scores, std::int64_t n_visible,
                            std::int16_t *stretches) const {
    const Config &c = *a.layer.config;
    const std::int64_t block_size = c.candidate_block_size;
    const std::int64_t n_blocks = (n_visible + block_size - 1) / block_size;
    std::int32_t *out = a.blocks + std::int64_t{token} * a.n_block_slots;
    std::int64_t n_kept = 0;
    if (n_blocks > 0) {
        auto *const best = get<std::uint16_t>(kBest);
        for (std::int64_t b = 0; b < n_blocks - 1; ++b) {
            std::uint16_t of_block = kMaskedBits;
            for (std::int64_t j = b * block_size; j < (b + 1) * block_size; ++j)
                if (order_of(scores[j]) > order_of(of_block)) of_block = scores[j];
            best[b] = of_block;
        }
        // The newest, which is the last, has its place whatever its scores are.
        n_kept = best_of(best, n_blocks - 1, c.candidate_topk_blocks - 1, stretches, out);
        out[n_kept++] = static_cast<std::int32_t>(n_blocks - 1);
    }
    std::fill(out + n_kept, out + a.n_block_slots, -1);
}

void CpuStages::choose(const SelectArgs &a, int token, int i) {
    const Config &c = *a.layer.config;
    const LayerRole &role = *a.layer.role;
    const TokenView &view = a.layer.step.tokens[token];
    const SpanView &span = a.layer.step.spans[view.span];
    const std::int64_t n_visible = groups_among(view.pos + 1, role.ratio);
    const std::uint16_t *scores = scores_of(i);
    if (a.tap_scores) {
        const std::int64_t n_groups = groups_among(span.start_pos + span.n_tokens, role.ratio);
        float *row = a.tap_scores[view.span] + (view.pos - span.start_pos) * n_groups;
        std::transform(scores, scores + n_visible, row, score_value);
        std::fill(row + n_visible, row + n_groups, score_value(kMaskedBits));
    }
    if (a.rule == DS41_TOPK_TORCH_CPU) { // for parity: as the reference does it
        const std::int64_t n = std::max(n_visible, span.n_rank_groups);
        auto *const values = get<float>(kRanking);
        auto *const ranking = reinterpret_cast<Scored *>(values + n_group_room_);
        std::transform(scores, scores + n_visible, values, score_value);
        std::fill(values + n_visible, values + n, score_value(kMaskedBits));
        if (role.is_candidate_source) reference::keep_blocks(a, token, n_visible, values, ranking);
        reference::take_best(a, token, n_visible, values, ranking);
        return;
    }
    if (role.is_candidate_source) keep_blocks(a, token, scores, n_visible, stretches_at(i));
    std::int32_t *out = a.groups + std::int64_t{token} * a.n_group_slots;
    const std::int64_t n_taken = best_of(scores, n_visible, c.index_topk, stretches_at(i), out);
    std::fill(out + n_taken, out + a.n_group_slots, -1);
}

void CpuStages::select(const SelectArgs &a) {
    const TokenView *tokens = a.layer.step.tokens;
    const int end = a.tile.first + a.tile.n;
    for (int first = a.tile.first, n; first < end; first += n) {
        // Neighbours in a sequence; each with its own blocks where there are any.
        const int most = a.layer.role->uses_candidates ? 1 : kScoreTokens;
        for (n = 1; n < most && first + n < end && tokens[first + n].span == tokens[first].span;) ++n;
        score_tokens(a, first, n);
        // The candidate source's and torch's ranking have one buffer.
        const bool apart = !a.layer.role->is_candidate_source && a.rule == DS41_TOPK_STABLE;
        const std::int64_t n_groups = groups_among(tokens[first + n - 1].pos + 1, a.layer.role->ratio);
        pool_.run(apart ? n : 1, n_groups * 8, [&](int, std::int64_t item) {
            for (int i = apart ? static_cast<int>(item) : 0; i < (apart ? static_cast<int>(item) + 1 : n); ++i)
                choose(a, first + i, i);
        });
    }
}

} // namespace ds41
