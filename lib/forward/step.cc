// What a step may run next, what it sees of its sequences, and what changes when a layer has run.
#include "forward/step.h"

#include "error.h"

#include <algorithm>

namespace ds41 {

Step Step::plan(const Model &model, Kind kind, std::vector<Span> spans, std::int64_t rank_end,
                std::int64_t widths_for) {
    Step step;
    step.kind = kind;
    step.rank_end = rank_end;
    std::int64_t n_tokens = 0, end_pos = 0;
    for (const Span &span : spans) {
        n_tokens += span.n_tokens;
        end_pos = std::max(end_pos, span.end_pos());
    }
    DS41_CHECK(n_tokens <= (1 << 30), DS41_STATUS_INVALID_ARGUMENT, "spans hold %lld tokens, need at most %d in a step",
               static_cast<long long>(n_tokens), 1 << 30);
    step.tokens.reserve(static_cast<std::size_t>(n_tokens));
    step.views.resize(spans.size());
    for (std::size_t s = 0; s < spans.size(); ++s) {
        step.views[s].first_token = static_cast<std::int32_t>(step.tokens.size());
        for (std::int32_t i = 0; i < spans[s].n_tokens; ++i)
            step.tokens.push_back({static_cast<std::int32_t>(s), spans[s].start_pos + i});
    }
    step.spans = std::move(spans);
    step.sizes = plan_step(model, n_tokens, std::max(end_pos, widths_for), rank_end);
    step.progress.ran.assign(static_cast<std::size_t>(model.config().n_layers_total()), false);
    return step;
}

void Step::claim() noexcept {
    for (Span &span : spans) span.claim = span.seq->claim();
}

bool Step::is_over() const noexcept {
    return std::any_of(spans.begin(), spans.end(),
                       [](const Span &span) { return span.claim != span.seq->current_claim(); });
}

void Step::check_positions(int layer) const {
    for (std::size_t s = 0; s < spans.size(); ++s) {
        const std::int64_t position = spans[s].seq->layer(layer).position;
        DS41_CHECK(spans[s].start_pos == position, DS41_STATUS_INVALID_POSITION,
                   "start_pos is %lld in span %zu, need %lld, the tokens that layer %d of the sequence has seen",
                   static_cast<long long>(spans[s].start_pos), s, static_cast<long long>(position), layer);
    }
}

void Progress::check_order(const Config &config, int layer) const {
    const LayerRole &role = config.role(layer);
    DS41_CHECK(layer > last_layer, DS41_STATUS_WRONG_ORDER,
               "layer is %d, need more than %d, the last layer that this step has run", layer, last_layer);
    if (role.ratio == 0) return;
    DS41_CHECK(role.is_kv_source || ran[static_cast<std::size_t>(role.kv_source)], DS41_STATUS_WRONG_ORDER,
               "layer is %d, which reads the compressed rows of layer %d: that has not run in this step", layer,
               role.kv_source);
    DS41_CHECK(role.is_index_source || selection_of == role.index_source, DS41_STATUS_WRONG_ORDER,
               "layer is %d, which takes the selection of layer %d: that has not run in this step", layer,
               role.index_source);
    DS41_CHECK(!role.uses_candidates || has_blocks, DS41_STATUS_WRONG_ORDER,
               "layer is %d, which scores inside the candidate blocks of layer %d: that has not run in this step",
               layer, config.candidate_source_layer);
}

StepView Step::view(const Config &config, int layer) {
    const LayerRole &role = config.role(layer);
    for (std::size_t s = 0; s < spans.size(); ++s) {
        Sequence &seq = *spans[s].seq;
        SpanView &view = views[s];
        view.n_tokens = spans[s].n_tokens;
        view.start_pos = spans[s].start_pos;
        view.window = seq.layer(layer).window.view();
        view.group_state = seq.layer(layer).group_state.as<float>();
        view.n_rank_groups = 0;
        if (role.ratio > 0) {
            view.compressed = seq.layer(role.kv_source).compressed.view();
            view.index_keys = seq.layer(role.kv_source).index_keys.view();
            view.n_rank_groups = groups_among(std::max(spans[s].end_pos(), rank_end), role.ratio);
        }
    }
    return {views.data(), tokens.data(), static_cast<std::int32_t>(views.size()),
            static_cast<std::int32_t>(tokens.size())};
}

void Step::complete(const Config &config, int layer) noexcept {
    for (Span &span : spans) span.seq->layer(layer).position = span.end_pos();
    progress.complete(config, layer);
}

void Progress::complete(const Config &config, int layer) noexcept {
    const LayerRole &role = config.role(layer);
    ran[static_cast<std::size_t>(layer)] = true;
    last_layer = layer;
    if (role.is_index_source) selection_of = layer;
    if (role.is_candidate_source) has_blocks = true;
}

void check_span_range(const Config &config, const char *place, std::int64_t start_pos, std::int32_t n_tokens) {
    DS41_CHECK(n_tokens >= 1, DS41_STATUS_INVALID_ARGUMENT, "%sn_tokens is %d, need a value in [1, %lld]", place,
               n_tokens, static_cast<long long>(config.max_seq_len));
    DS41_CHECK(start_pos >= 0 && start_pos < config.max_seq_len, DS41_STATUS_INVALID_POSITION,
               "%sstart_pos is %lld, need a value in [0, %lld] (below max_seq_len)", place,
               static_cast<long long>(start_pos), static_cast<long long>(config.max_seq_len - 1));
    DS41_CHECK(n_tokens <= config.max_seq_len - start_pos, DS41_STATUS_INVALID_POSITION,
               "%sn_tokens is %d at start_pos %lld, need a value in [1, %lld] (max_seq_len is %lld)", place, n_tokens,
               static_cast<long long>(start_pos), static_cast<long long>(config.max_seq_len - start_pos),
               static_cast<long long>(config.max_seq_len));
}

} // namespace ds41
