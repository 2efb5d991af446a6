// Contexts and the steps that they run.
#include "forward/context.h"

#include "api/boundary.h"
#include "api/handles.h"

#include <cstdio>
#include <vector>

using namespace ds41;

namespace {

// A message about a sequence of another model can only name the argument: handles have no names.
void check_seq(const ds41_ctx &ctx, const ds41_seq *seq, const char *name) {
    check_argument(seq, name);
    DS41_CHECK(&seq->impl->model() == &ctx.impl->model(), DS41_STATUS_INVALID_ARGUMENT,
               "%s belongs to another model, need a sequence of the context's", name);
}

} // namespace

void ds41_ctx_options_init(ds41_ctx_options *options, size_t struct_size) {
    init_struct(options, struct_size);
}

ds41_status ds41_ctx_create(ds41_ctx **ctx, ds41_model *model, const ds41_ctx_options *options) {
    return guarded(__func__, [&] {
        check_argument(ctx, "ctx");
        check_argument(model, "model");
        ds41_ctx_options defaults;
        ds41_ctx_options_init(&defaults, sizeof(defaults));
        auto created = std::make_unique<ds41_ctx>();
        created->impl = std::make_shared<Context>(model->impl, options ? read_struct(options, "options") : defaults);
        model->impl->seal();
        *ctx = created.release();
    });
}

void ds41_ctx_destroy(ds41_ctx *ctx) {
    delete ctx;
}

ds41_status ds41_ctx_synchronize(ds41_ctx *ctx) {
    return guarded(__func__, [&] {
        check_argument(ctx, "ctx");
        ctx->impl->synchronize();
    });
}

uint64_t ds41_ctx_get_bytes(const ds41_ctx *ctx) {
    return ctx ? ctx->impl->n_bytes() : 0;
}

ds41_status ds41_layer_prefill(ds41_ctx *ctx, int32_t layer, ds41_seq *seq, const ds41_tensor *x, int32_t n_tokens,
                               int64_t start_pos, const ds41_tensor *out) {
    return guarded(__func__, [&] {
        check_argument(ctx, "ctx");
        check_seq(*ctx, seq, "seq");
        check_argument(x, "x");
        check_argument(out, "out");
        ctx->impl->prefill(layer, seq->impl, *x, n_tokens, start_pos, *out);
    });
}

ds41_status ds41_decode_prep(ds41_ctx *ctx, const ds41_span *spans, int32_t n_spans) {
    return guarded(__func__, [&] {
        check_argument(ctx, "ctx");
        check_argument(spans, "spans");
        DS41_CHECK(n_spans >= 1, DS41_STATUS_INVALID_ARGUMENT, "n_spans is %d, need 1 or more", n_spans);
        std::vector<Span> list;
        std::vector<const ds41_seq *> seen;
        for (int32_t i = 0; i < n_spans; ++i) {
            char name[32];
            std::snprintf(name, sizeof name, "spans[%d].seq", i);
            check_seq(*ctx, spans[i].seq, name);
            std::snprintf(name, sizeof name, "spans[%d].", i);
            DS41_CHECK(spans[i].reserved == 0, DS41_STATUS_INVALID_ARGUMENT, "%sreserved is %d, need 0", name,
                       spans[i].reserved);
            check_span_range(ctx->impl->model().config(), name, spans[i].start_pos, spans[i].n_tokens);
            list.push_back({spans[i].seq->impl, spans[i].start_pos, spans[i].n_tokens});
            seen.push_back(spans[i].seq);
        }
        std::sort(seen.begin(), seen.end());
        const auto twice = std::adjacent_find(seen.begin(), seen.end());
        if (twice != seen.end()) {
            int32_t first = 0, second;
            while (spans[first].seq != *twice) ++first;
            for (second = first + 1; spans[second].seq != *twice;) ++second;
            throw Error(DS41_STATUS_INVALID_ARGUMENT, "spans[%d].seq is spans[%d].seq again, need each sequence once",
                        second, first);
        }
        ctx->impl->prep(std::move(list));
    });
}

ds41_status ds41_decode_body(ds41_ctx *ctx, int32_t layer, const ds41_tensor *x, const ds41_tensor *out) {
    return guarded(__func__, [&] {
        check_argument(ctx, "ctx");
        check_argument(x, "x");
        check_argument(out, "out");
        ctx->impl->body(layer, *x, *out);
    });
}

ds41_status ds41_decode_capturable(const ds41_ctx *ctx, int32_t layer, int32_t *capturable) {
    return guarded(__func__, [&] {
        check_argument(ctx, "ctx");
        check_argument(capturable, "capturable");
        *capturable = ctx->impl->capturable(layer);
    });
}

ds41_status ds41_ctx_set_tap(ds41_ctx *ctx, const char *const *names, int32_t n_names, ds41_tap_fn tap, void *user) {
    return guarded(__func__, [&] {
        check_argument(ctx, "ctx");
        if (tap) {
            DS41_CHECK(n_names >= 0, DS41_STATUS_INVALID_ARGUMENT, "n_names is %d, need 0 or more", n_names);
            if (n_names > 0) check_argument(names, "names");
        }
        ctx->impl->set_tap(make_tap(names, n_names, tap, user));
    });
}
