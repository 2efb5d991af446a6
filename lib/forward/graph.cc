// The captured step: what is recorded, what a launch compares before it runs, and what it changes.
#include "forward/graph.h"

#include "error.h"
#include "forward/context.h"
#include "forward/forward.h"

#include <algorithm>

namespace ds41 {

void Graph::check_selection(const Config &config, const Step &step) const {
    bool has_groups = false, has_blocks = false; // from a layer of the graph
    for (const int layer : layers) {
        const LayerRole &role = config.role(layer);
        if (role.ratio > 0 && !role.is_index_source && !has_groups)
            DS41_CHECK(
                step.published.groups == selection.groups && step.published.n_group_slots == selection.n_group_slots,
                DS41_STATUS_WRONG_ORDER,
                "the graph is stale: its layer %d takes a selection from a workspace that has grown since it was "
                "captured, need it captured again",
                layer);
        if (role.uses_candidates && !has_blocks)
            DS41_CHECK(
                step.published.blocks == selection.blocks && step.published.n_block_slots == selection.n_block_slots,
                DS41_STATUS_WRONG_ORDER,
                "the graph is stale: its layer %d takes candidate blocks from a workspace that has grown since it "
                "was captured, need it captured again",
                layer);
        has_groups = has_groups || role.is_index_source;
        has_blocks = has_blocks || role.is_candidate_source;
    }
}

Context::~Context() {
    if (recording_) stages_->abandon_capture();
    recording_.reset();
    free_retired();
}

const char *Context::why_not_capturable(int layer) const {
    if (!model_->backend().has_graphs) return "its backend has no graphs";
    if (model_->topk_rule() == DS41_TOPK_TORCH_CPU && model_->config().role(layer).is_index_source)
        return "DS41_TOPK_TORCH_CPU selects on the host";
    return tap_.wanted() ? "a tap is set" : nullptr;
}

bool Context::capturable(int layer) const {
    model_->config().check_layer(layer);
    return why_not_capturable(layer) == nullptr;
}

std::int64_t Context::widths_for() const {
    return has_fixed_widths_ ? model_->config().max_seq_len : 0;
}

void Context::check_not_capturing() const {
    DS41_CHECK(!recording_, DS41_STATUS_WRONG_ORDER, "a graph is being captured on ctx: ds41_graph_end() comes first");
    DS41_CHECK(!stages_->is_capturing(), DS41_STATUS_WRONG_ORDER,
               "the stream of ctx is being captured: only ds41_decode_body() may be, between ds41_graph_begin() with "
               "DS41_GRAPH_EXTERNAL and ds41_graph_end()");
}

void Context::begin_graph(bool by_caller) {
    const Config &config = model_->config();
    DS41_CHECK(model_->backend().has_graphs, DS41_STATUS_UNSUPPORTED, "backend %s has no graphs",
               model_->backend().name);
    DS41_CHECK(!recording_, DS41_STATUS_WRONG_ORDER, "a graph is being captured on ctx already");
    DS41_CHECK(!tap_.wanted(), DS41_STATUS_WRONG_ORDER,
               "a tap is set, need none: a graph delivers no intermediates (ds41_ctx_set_tap)");
    DS41_CHECK(step_.kind == Step::Kind::kDecode, DS41_STATUS_WRONG_ORDER,
               "no decode step is in flight on ctx: ds41_decode_prep comes first");
    DS41_CHECK(!step_.is_over(), DS41_STATUS_WRONG_ORDER,
               "the step on ctx is over: one of its sequences was reset, destroyed or taken by another step");
    DS41_CHECK(step_.progress.last_layer < 0, DS41_STATUS_WRONG_ORDER,
               "layer %d of the step has run, need a step of which none has", step_.progress.last_layer);

    // The capture has room for any position, so that it serves all of them; the step in flight gets it as well.
    Step step = Step::plan(*model_, Step::Kind::kDecode, step_.spans, 0, config.max_seq_len), recorded = step;
    Workspace grown = workspace_.grown_for(config, model_->memory(), step.sizes);
    stages_->prepare(config, step.sizes.stages);
    upload(step, layers_, stages_->n_slots());
    workspace_.adopt(std::move(grown));
    step_ = std::move(step);

    auto graph = std::make_unique<Graph>();
    graph->n_tokens = step_.sizes.n_tokens;
    graph->by_caller = by_caller;
    graph->selection = {workspace_.share(Workspace::kGroups), workspace_.share(Workspace::kBlocks),
                        step_.sizes.n_group_slots, step_.sizes.n_block_slots};
    for (int i = 0; i < Workspace::kBufferCount; ++i)
        graph->workspace.push_back(workspace_.share(static_cast<Workspace::Buffer>(i)));
    recorded.published = graph->selection;
    stages_->begin_capture(by_caller);
    has_fixed_widths_ = true;
    recorded_ = std::move(recorded);
    recording_ = std::move(graph);
}

void Context::record(int layer, const ds41_tensor &x, const ds41_tensor &out) {
    const char *why_not = why_not_capturable(layer);
    DS41_CHECK(!why_not, DS41_STATUS_UNSUPPORTED, "layer %d cannot be captured: %s", layer, why_not);
    DS41_CHECK(stages_->is_capturing(), DS41_STATUS_WRONG_ORDER,
               "the stream of ctx is not being captured: with DS41_GRAPH_EXTERNAL its owner begins that after "
               "ds41_graph_begin()");
    Graph &graph = *recording_;
    DS41_CHECK(!graph.is_broken, DS41_STATUS_WRONG_ORDER,
               "the capture is broken: a layer could not be recorded, need ds41_graph_end() and another capture");
    DS41_CHECK(graph.layers.empty() || layer > graph.layers.back(), DS41_STATUS_WRONG_ORDER,
               "layer is %d, need more than %d, the last layer of the graph", layer, graph.layers.back());
    const auto n_bytes =
        static_cast<std::size_t>(graph.n_tokens) * static_cast<std::size_t>(model_->config().dim) * sizeof(Bf16);
    const auto keep = [&](const void *data, const char *name) {
        const std::uint64_t allocation = model_->memory().allocation_id(data);
        const auto same = [&](const Graph::Rows &rows) {
            return allocation != 0 ? rows.allocation == allocation : rows.data == data;
        };
        if (std::none_of(graph.rows.begin(), graph.rows.end(), same))
            graph.rows.push_back({allocation, data, n_bytes, name, layer});
    };
    graph.is_broken = true; // until all of the layer is there
    keep(x.data, "x");
    keep(out.data, "out");
    graph.layers.push_back(layer);
    run_layer(*model_, *stages_, workspace_, recorded_, layer, static_cast<const Bf16 *>(x.data),
              static_cast<Bf16 *>(out.data), nullptr);
    graph.is_broken = false;
}

std::unique_ptr<Graph> Context::end_graph() {
    DS41_CHECK(recording_ != nullptr, DS41_STATUS_WRONG_ORDER,
               "no graph is being captured on ctx: ds41_graph_begin() comes first");
    DS41_CHECK(!recording_->by_caller || !stages_->is_capturing(), DS41_STATUS_WRONG_ORDER,
               "the stream of ctx is still being captured: its owner ends that before ds41_graph_end()");
    const std::unique_ptr<Graph> recorded = std::move(recording_);
    std::unique_ptr<Graph> graph;
    try {
        DS41_CHECK(!recorded->is_broken, DS41_STATUS_WRONG_ORDER,
                   "a layer of the graph could not be recorded, need another capture");
        DS41_CHECK(!recorded->layers.empty(), DS41_STATUS_WRONG_ORDER,
                   "the graph has no layer: ds41_decode_body() comes between ds41_graph_begin() and ds41_graph_end()");
        graph = std::make_unique<Graph>(std::move(*recorded));
        graph->captured = stages_->end_capture();
    } catch (...) {
        stages_->abandon_capture();
        free_retired();
        throw;
    }
    free_retired();
    return graph;
}

void Context::launch(const Graph &graph) {
    const Config &config = model_->config();
    check_not_capturing();
    DS41_CHECK(step_.kind == Step::Kind::kDecode, DS41_STATUS_WRONG_ORDER,
               "no decode step is in flight on ctx: ds41_decode_prep comes first");
    DS41_CHECK(!step_.is_over(), DS41_STATUS_WRONG_ORDER,
               "the step on ctx is over: one of its sequences was reset, destroyed or taken by another step");
    DS41_CHECK(step_.sizes.n_tokens <= graph.n_tokens, DS41_STATUS_INVALID_SHAPE,
               "the step has %d rows, need at most %d, for which the graph was captured", step_.sizes.n_tokens,
               graph.n_tokens);
    DS41_CHECK(!tap_.wanted(), DS41_STATUS_WRONG_ORDER,
               "a tap is set, need none: a graph delivers no intermediates (ds41_ctx_set_tap)");
    Progress progress = step_.progress;
    for (const int layer : graph.layers) {
        step_.check_positions(layer);
        progress.check_order(config, layer);
        progress.complete(config, layer);
    }
    graph.check_selection(config, step_);
    for (const Graph::Rows &rows : graph.rows)
        DS41_CHECK(
            rows.allocation != 0 ? model_->memory().allocation_id(rows.data) == rows.allocation
                                 : model_->memory().owns(rows.data, rows.n_bytes),
            DS41_STATUS_INVALID_ARGUMENT,
            "the graph is stale: %s of its layer %d was %zu bytes at %p, which have been freed; need it captured again",
            rows.name, rows.layer, rows.n_bytes, rows.data);

    graph_slots_ = graph.captured->n_slots();
    if (stages_->n_slots() != graph_slots_) upload(step_, layers_, graph_slots_);
    stages_->launch(*graph.captured);
    for (const int layer : graph.layers) {
        const LayerRole &role = config.role(layer);
        step_.complete(config, layer);
        if (role.is_index_source) {
            step_.published.groups = graph.selection.groups;
            step_.published.n_group_slots = graph.selection.n_group_slots;
        }
        if (role.is_candidate_source) {
            step_.published.blocks = graph.selection.blocks;
            step_.published.n_block_slots = graph.selection.n_block_slots;
        }
    }
}

void Context::retire(std::unique_ptr<Graph> graph) noexcept {
    try {
        retired_.push_back(std::move(graph));
    } catch (const std::bad_alloc &) { // it goes at once, where that can be
    }
    free_retired();
}

void Context::free_retired() noexcept {
    try {
        if (retired_.empty() || recording_ || stages_->is_capturing()) return;
        stages_->synchronize();
    } catch (const std::exception &) { // what the device reports is the next call's to tell
    }
    retired_.clear();
}

} // namespace ds41
