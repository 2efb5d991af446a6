// Captured decode steps.
#include "api/boundary.h"
#include "api/handles.h"

using namespace ds41;

ds41_status ds41_graph_begin(ds41_ctx *ctx, uint32_t flags) {
    return guarded(__func__, [&] {
        check_argument(ctx, "ctx");
        DS41_CHECK((flags & ~DS41_GRAPH_EXTERNAL) == 0, DS41_STATUS_INVALID_ARGUMENT,
                   "flags is 0x%x, need bits of DS41_GRAPH_EXTERNAL (0x%x)", flags, DS41_GRAPH_EXTERNAL);
        ctx->impl->begin_graph((flags & DS41_GRAPH_EXTERNAL) != 0);
    });
}

ds41_status ds41_graph_end(ds41_ctx *ctx, ds41_graph **graph) {
    return guarded(__func__, [&] {
        check_argument(ctx, "ctx");
        check_argument(graph, "graph");
        auto handle = std::make_unique<ds41_graph>();
        handle->ctx = ctx->impl;
        handle->impl = ctx->impl->end_graph();
        *graph = handle.release();
    });
}

ds41_status ds41_graph_launch(ds41_graph *graph) {
    return guarded(__func__, [&] {
        check_argument(graph, "graph");
        const std::shared_ptr<Context> ctx = graph->ctx.lock();
        DS41_CHECK(ctx != nullptr, DS41_STATUS_WRONG_ORDER, "the context of the graph was destroyed");
        ctx->launch(*graph->impl);
    });
}

void ds41_graph_destroy(ds41_graph *graph) {
    if (!graph) return;
    if (const std::shared_ptr<Context> ctx = graph->ctx.lock()) ctx->retire(std::move(graph->impl));
    delete graph;
}
