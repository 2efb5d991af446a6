// Selection and attention, as launches; and the torch rule, which ranks on the host.
#include "attend/params.h"
#include "backend/cuda/stages.h"
#include "backend/reference/rank.h"
#include "numeric/rows.h"
#include "score/params.h"
#include "topk/params.h"

#include <algorithm>
#include <limits>

namespace ds41 {

// Tokens [first, first + n) of the step. `tap` starts at token `first`.
void CudaStages::score(const SelectArgs &a, int first, int n, float *tap, std::int64_t stride_tap) {
    const Config &c = *a.layer.config;
    const LayerRole &role = *a.layer.role;
    const std::int64_t row_bytes = static_cast<std::int64_t>(index_key_row_bytes(c.index_head_dim)) * c.index_n_heads;
    const int in_tile = first - a.tile.first;
    kernels::ScoreParams p{};
    p.tokens = tokens();
    p.spans = spans(a.layer);
    p.first = first;
    p.n = n;
    p.ratio = role.ratio;
    p.index_n_heads = c.index_n_heads;
    p.index_head_dim = c.index_head_dim;
    p.iq = a.iq + in_tile * row_bytes;
    p.weights = a.weights + std::int64_t{in_tile} * c.index_n_heads;
    p.blocks = role.uses_candidates ? a.blocks : nullptr;
    p.n_block_slots = a.n_block_slots;
    p.block_size = c.candidate_block_size;
    p.n_columns_max = layout_.score_stride;
    if (role.uses_candidates)
        p.n_columns_max = std::min(p.n_columns_max, std::int64_t{a.n_block_slots} * c.candidate_block_size);
    p.keys = buffer<std::uint16_t>(kScores);
    p.stride_keys = layout_.score_stride;
    p.tap = tap;
    p.stride_tap = stride_tap;

    References touched = step_references(a.layer);
    touched.read(p.iq, n * row_bytes)
        .read(p.weights, std::int64_t{n} * c.index_n_heads)
        .write(p.keys, n * layout_.score_stride);
    if (p.blocks) touched.read(a.blocks, std::int64_t{layout_.n_tokens} * a.n_block_slots);
    if (tap) touched.write(tap, n * stride_tap);
    touched.index_keys(c, role.ratio, DeviceAccess::kRead);
    launch(DeviceOp::kScore, p, touched);
}

void CudaStages::select_tile(const SelectArgs &a, int first, int n) {
    const Config &c = *a.layer.config;
    const LayerRole &role = *a.layer.role;
    const auto *const keys = buffer<std::uint16_t>(kScores);
    const std::int64_t n_blocks = std::int64_t{layout_.n_tokens} * a.n_block_slots;
    const std::int64_t n_groups = std::int64_t{layout_.n_tokens} * a.n_group_slots;
    if (role.is_candidate_source) {
        kernels::KeepBlocksParams p{};
        p.tokens = tokens();
        p.first = first;
        p.n = n;
        p.ratio = role.ratio;
        p.keys = keys;
        p.stride_keys = layout_.score_stride;
        p.candidate_topk_blocks = c.candidate_topk_blocks;
        p.candidate_block_size = c.candidate_block_size;
        p.blocks = a.blocks;
        p.n_block_slots = a.n_block_slots;
        launch(DeviceOp::kKeepBlocks, p,
               step_references(a.layer).read(keys, n * layout_.score_stride).write(a.blocks, n_blocks));
    }
    kernels::TopkParams p{};
    p.tokens = tokens();
    p.first = first;
    p.n = n;
    p.ratio = role.ratio;
    p.keys = keys;
    p.stride_keys = layout_.score_stride;
    p.blocks = role.uses_candidates ? a.blocks : nullptr;
    p.n_block_slots = a.n_block_slots;
    p.block_size = c.candidate_block_size;
    p.index_topk = c.index_topk;
    p.groups = a.groups;
    p.n_group_slots = a.n_group_slots;
    References touched = step_references(a.layer);
    touched.read(keys, n * layout_.score_stride).write(a.groups, n_groups);
    if (p.blocks) touched.read(a.blocks, n_blocks);
    launch(DeviceOp::kTopk, p, touched);
}

// The torch rule follows algorithms of the host's C++ library: scores come down, selections go up.
void CudaStages::select_on_host(const SelectArgs &a, int first, int n) {
    const LayerRole &role = *a.layer.role;
    const auto blocks_at = std::int64_t{first} * a.n_block_slots, groups_at = std::int64_t{first} * a.n_group_slots;
    std::int64_t n_columns = 1;
    for (int s = 0; s < layout_.n_spans; ++s) {
        const SpanView &span = a.layer.step.spans[s];
        n_columns = std::max({n_columns, span.n_rank_groups, groups_among(span.start_pos + span.n_tokens, role.ratio)});
    }
    score(a, first, n, buffer<float>(kTorchScores), layout_.score_stride);
    synchronize();
    host_scores_.resize(static_cast<std::size_t>(std::max(n_columns, layout_.score_stride)));
    ranking_.resize(host_scores_.size() * sizeof(Scored));
    host_groups_.resize(static_cast<std::size_t>(a.n_group_slots));
    host_blocks_.resize(static_cast<std::size_t>(a.n_block_slots));
    auto *const ranking = reinterpret_cast<Scored *>(ranking_.data());
    for (int token = first; token < first + n; ++token) {
        const std::int64_t n_visible = groups_among(a.layer.step.tokens[token].pos + 1, role.ratio);
        memory_.download(host_scores_.data(), buffer<float>(kTorchScores) + (token - first) * layout_.score_stride,
                         static_cast<std::size_t>(n_visible) * sizeof(float));
        std::fill(host_scores_.begin() + n_visible, host_scores_.end(), -std::numeric_limits<float>::infinity());
        SelectArgs on_host = a;
        on_host.groups = host_groups_.data() - std::int64_t{token} * a.n_group_slots;
        on_host.blocks = host_blocks_.data() - std::int64_t{token} * a.n_block_slots;
        if (role.is_candidate_source) {
            reference::keep_blocks(on_host, token, n_visible, host_scores_.data(), ranking);
            memory_.upload(a.blocks + blocks_at + std::int64_t{token - first} * a.n_block_slots, host_blocks_.data(),
                           host_blocks_.size() * sizeof(std::int32_t));
        }
        reference::take_best(on_host, token, n_visible, host_scores_.data(), ranking);
        memory_.upload(a.groups + groups_at + std::int64_t{token - first} * a.n_group_slots, host_groups_.data(),
                       host_groups_.size() * sizeof(std::int32_t));
    }
}

void CudaStages::select(const SelectArgs &a) {
    const int end = a.tile.first + a.tile.n;
    if (a.tap_scores)
        for (int s = 0; s < layout_.n_spans; ++s) {
            const SpanView &span = a.layer.step.spans[s];
            const std::int64_t n_groups = groups_among(span.start_pos + span.n_tokens, a.layer.role->ratio);
            const int last = std::min(end, span.first_token + span.n_tokens);
            for (int first = std::max(a.tile.first, span.first_token); first < last && n_groups > 0;
                 first += layout_.score_tile)
                score(a, first, std::min(layout_.score_tile, last - first),
                      a.tap_scores[s] + (first - span.first_token) * n_groups, n_groups);
        }
    for (int first = a.tile.first; first < end; first += layout_.score_tile) {
        const int n = std::min(layout_.score_tile, end - first);
        if (a.rule == DS41_TOPK_TORCH_CPU) {
            select_on_host(a, first, n);
        } else {
            score(a, first, n, nullptr, 0);
            select_tile(a, first, n);
        }
    }
}

void CudaStages::attend(const AttendArgs &a) {
    const Config &c = *a.layer.config;
    const std::int64_t n_values = a.tile.n * c.q_width();
    kernels::AttendParams p{};
    p.tokens = tokens();
    p.spans = spans(a.layer);
    p.first = a.tile.first;
    p.n = a.tile.n;
    p.window_size = c.window_size;
    p.n_heads = c.n_heads;
    p.head_dim = c.head_dim;
    p.rope_dim = 2 * layout_.n_pairs;
    p.q = a.q;
    p.window_new = a.window_new;
    p.groups = a.groups;
    p.n_group_slots = a.n_group_slots;
    p.sink = a.layer.weights->attn_sink;
    p.scale = c.attention_scale();
    p.n_splits = attention_split_;
    p.rope = angles(a.layer);
    p.workspace = buffer<float>(kPartials);
    p.o_before = a.is_tapped ? a.o : nullptr;
    p.o = buffer<Bf16>(kRotated);
    if (const auto form = form_of(a.layer.weights->wo_a); form != kernels::QuantisedForm::kNone && !has_many_rows()) {
        p.quantised = quantised(Input::kO, form, c.q_width());
        p.o = nullptr; // nobody reads it
    }
    // A tap wants the rings as they were, and so do further tiles.
    p.commit = !a.is_tapped && a.tile.n == layout_.n_tokens;
    has_committed_ = p.commit != 0;

    const auto row_bytes = static_cast<std::int64_t>(window_row_bytes(c.head_dim));
    References touched = step_references(a.layer);
    touched.read(a.q, n_values)
        .read(a.window_new, layout_.n_tokens * row_bytes)
        .read(p.sink, c.n_heads)
        .read(p.rope, layout_.n_tokens * angle_count())
        .quantised(p.quantised, a.tile.n, DeviceAccess::kWrite)
        .bytes(p.workspace, attend_workspace_bytes(p), DeviceAccess::kReadWrite);
    if (a.groups) touched.read(a.groups, std::int64_t{layout_.n_tokens} * a.n_group_slots);
    if (p.o_before) touched.write(p.o_before, n_values);
    if (p.o) touched.write(p.o, n_values);
    touched.window(c, p.commit ? DeviceAccess::kReadWrite : DeviceAccess::kRead);
    if (a.groups) touched.compressed(c, a.layer.role->ratio, DeviceAccess::kRead);
    launch(has_many_rows() ? DeviceOp::kAttendTensor : DeviceOp::kAttend, p, touched);
}

} // namespace ds41
