// Checks of a call against the step in flight, and the step's installation: everything that can fail comes before
// anything that the caller could see.
#include "forward/context.h"

#include "error.h"
#include "forward/forward.h"
#include "model/tensor.h"

#include <algorithm>

namespace ds41 {

namespace {

void check_activations(const char *name, const ds41_tensor &t, std::int64_t n_tokens, int dim, const Model &model) {
    DS41_CHECK(t.dtype == DS41_DTYPE_BF16, DS41_STATUS_INVALID_DTYPE, "%s has dtype %s, need BF16", name,
               ds41_dtype_name(t.dtype));
    const std::int64_t shape[] = {n_tokens, dim};
    check_tensor_shape(t, shape, 2, "%s", name);
    check_tensor_data(t, 0, "%s", name);
    check_tensor_alignment(t, "%s", name);
    DS41_CHECK(t.scales == nullptr, DS41_STATUS_INVALID_ARGUMENT, "%s has scales, need NULL for dtype BF16", name);
    const auto n_bytes = static_cast<std::size_t>(n_tokens) * static_cast<std::size_t>(dim) * sizeof(Bf16);
    DS41_CHECK(model.memory().owns(t.data, n_bytes), DS41_STATUS_INVALID_ARGUMENT,
               "%s.data is %p, need %zu bytes of device memory: the model is on backend %s", name, t.data, n_bytes,
               model.backend().name);
}

void check_io(const ds41_tensor &x, const ds41_tensor &out, std::int64_t n_tokens, const Model &model) {
    const int dim = model.config().dim;
    check_activations("x", x, n_tokens, dim, model);
    check_activations("out", out, n_tokens, dim, model);
    const auto n_bytes = static_cast<std::uintptr_t>(n_tokens) * static_cast<std::uintptr_t>(dim) * sizeof(Bf16);
    const auto a = reinterpret_cast<std::uintptr_t>(x.data), b = reinterpret_cast<std::uintptr_t>(out.data);
    const std::uintptr_t distance = a > b ? a - b : b - a;
    DS41_CHECK(distance == 0 || distance >= n_bytes, DS41_STATUS_INVALID_ARGUMENT,
               "out overlaps x at a distance of %llu bytes, need 0 (the same memory) or at least %llu",
               static_cast<unsigned long long>(distance), static_cast<unsigned long long>(n_bytes));
}

} // namespace

namespace {

std::unique_ptr<Stages> create_stages(const Model &model, const ds41_ctx_options &options) {
    DS41_CHECK(options.stream == nullptr || model.backend().has_streams, DS41_STATUS_INVALID_ARGUMENT,
               "options.stream is set, need NULL: backend %s has no streams", model.backend().name);
    DS41_CHECK(options.attention_split >= 0 && options.attention_split <= 8, DS41_STATUS_INVALID_ARGUMENT,
               "options.attention_split is %d, need a value in [0, 8]", options.attention_split);
    DS41_CHECK(options.n_threads >= 0 && options.n_threads <= DS41_MAX_THREADS, DS41_STATUS_INVALID_ARGUMENT,
               "options.n_threads is %d, need a value in [0, %d]", options.n_threads, DS41_MAX_THREADS);
    DS41_CHECK((options.flags & ~DS41_CTX_PIN_THREADS) == 0, DS41_STATUS_INVALID_ARGUMENT,
               "options.flags is 0x%x, need bits of DS41_CTX_PIN_THREADS (0x%x)", options.flags, DS41_CTX_PIN_THREADS);
    DS41_CHECK(options.parallel != nullptr || options.parallel_user == nullptr, DS41_STATUS_INVALID_ARGUMENT,
               "options.parallel_user is set but options.parallel is NULL, need both or NULL");
    StageOptions stage_options;
    stage_options.n_threads = options.n_threads;
    stage_options.pin_threads = (options.flags & DS41_CTX_PIN_THREADS) != 0;
    stage_options.parallel = options.parallel;
    stage_options.parallel_user = options.parallel_user;
    stage_options.stream = options.stream;
    stage_options.attention_split = options.attention_split;
    return model.backend().create_stages(stage_options);
}

} // namespace

Context::Context(std::shared_ptr<const Model> model, const ds41_ctx_options &options)
    : model_(std::move(model)), stages_(create_stages(*model_, options)),
      rank_end_(model_->topk_rule() == DS41_TOPK_TORCH_CPU ? options.topk_end_pos : 0) {
    for (int layer = 0; layer < model_->config().n_layers_total(); ++layer)
        if (model_->has_layer(layer)) layers_.push_back(layer);
    DS41_CHECK(options.topk_end_pos >= 0 && options.topk_end_pos <= model_->config().max_seq_len,
               DS41_STATUS_INVALID_ARGUMENT, "options.topk_end_pos is %lld, need a value in [0, %lld] (max_seq_len)",
               static_cast<long long>(options.topk_end_pos), static_cast<long long>(model_->config().max_seq_len));
}

void Context::install(Step &&step, Workspace &&grown) noexcept {
    workspace_.adopt(std::move(grown));
    step_ = std::move(step);
}

void Context::upload(Step &step, const std::vector<int> &layers, int n_slots) {
    if (!stages_->wants_upload()) return;
    // Few pages are new in a decode step: their addresses go with a launch. Those of a prefill are copied.
    constexpr std::size_t kFewPages = 16;
    std::vector<PageWrite> page_writes;
    for (const Span &span : step.spans)
        span.seq->visit_unwritten([&](PagedRows &rows) {
            if (rows.n_unwritten() > kFewPages)
                rows.write_now();
            else
                rows.append_unwritten(page_writes);
        });
    const Config &config = model_->config();
    std::vector<SpanView> views;
    views.reserve(layers.size() * step.spans.size());
    for (const int layer : layers) {
        const StepView view = step.view(config, layer);
        views.insert(views.end(), view.spans, view.spans + view.n_spans);
    }
    stages_->upload_step({&config, &model_->rope_plain(), &model_->rope_compressed(), step.tokens.data(),
                          static_cast<std::int32_t>(step.tokens.size()), static_cast<std::int32_t>(step.spans.size()),
                          layers.data(), views.data(), static_cast<int>(layers.size()),
                          step.kind == Step::Kind::kPrefill, &step.sizes.stages, page_writes.data(),
                          static_cast<int>(page_writes.size()), n_slots});
    for (const Span &span : step.spans) span.seq->visit_unwritten([](PagedRows &rows) { rows.note_written(); });
}

void Context::run(Step &step, Workspace *grown, int layer, const ds41_tensor &x, const ds41_tensor &out) {
    for (const Span &span : step.spans) span.seq->reserve(layer, span.end_pos());
    TapRun tap_run(tap_, *model_, step, layer);
    if (step.kind == Step::Kind::kPrefill) upload(step, {layer});
    if (grown) {
        install(std::move(step), std::move(*grown));
        step_.claim();
    }
    run_layer(*model_, *stages_, workspace_, step_, layer, static_cast<const Bf16 *>(x.data),
              static_cast<Bf16 *>(out.data), tap_.wanted() ? &tap_run : nullptr);
    step_.complete(model_->config(), layer);
    tap_run.deliver();
}

void Context::prefill(int layer, const std::shared_ptr<Sequence> &seq, const ds41_tensor &x, std::int32_t n_tokens,
                      std::int64_t start_pos, const ds41_tensor &out) {
    const Config &config = model_->config();
    check_not_capturing();
    model_->weights(layer);
    check_span_range(config, "", start_pos, n_tokens);
    check_io(x, out, n_tokens, *model_);

    const bool continues = step_.kind == Step::Kind::kPrefill && !step_.is_over() && step_.spans[0].seq == seq &&
                           step_.spans[0].start_pos == start_pos && step_.spans[0].n_tokens == n_tokens;
    if (continues) {
        step_.check_positions(layer);
        step_.progress.check_order(config, layer);
        run(step_, nullptr, layer, x, out);
        return;
    }
    std::vector<Span> spans;
    spans.push_back({seq, start_pos, n_tokens});
    Step step = Step::plan(*model_, Step::Kind::kPrefill, std::move(spans), rank_end_);
    step.check_positions(layer);
    step.progress.check_order(config, layer);
    Workspace grown = workspace_.grown_for(config, model_->memory(), step.sizes);
    stages_->prepare(config, step.sizes.stages);
    run(step, &grown, layer, x, out);
}

void Context::prep(std::vector<Span> spans) {
    const Config &config = model_->config();
    check_not_capturing();
    free_retired();
    Step step = Step::plan(*model_, Step::Kind::kDecode, std::move(spans), 0, widths_for());
    const auto stands_at = [&](const Span &span, int layer) {
        return model_->has_layer(layer) && span.seq->layer(layer).position == span.start_pos;
    };
    DS41_CHECK(!layers_.empty(), DS41_STATUS_MISSING_WEIGHTS,
               "the model has no layer with weights: ds41_model_set_layer was not called");
    for (std::size_t s = 0; s < step.spans.size(); ++s) {
        const Span &span = step.spans[s];
        bool stands = false;
        std::int64_t furthest = 0;
        for (int layer = 0; layer < config.n_layers_total(); ++layer) {
            stands = stands || stands_at(span, layer);
            furthest = std::max(furthest, span.seq->layer(layer).position);
        }
        DS41_CHECK(stands, DS41_STATUS_INVALID_POSITION,
                   "spans[%zu].start_pos is %lld, need %lld, the tokens that the sequence has seen", s,
                   static_cast<long long>(span.start_pos), static_cast<long long>(furthest));
    }
    // Nothing is taken before everything is checked. Layers that do not stand there will be refused.
    for (const int layer : layers_)
        for (const Span &span : step.spans)
            if (stands_at(span, layer)) span.seq->reserve(layer, span.end_pos());
    Workspace grown = workspace_.grown_for(config, model_->memory(), step.sizes);
    stages_->prepare(config, step.sizes.stages);
    upload(step, layers_, graph_slots_);
    install(std::move(step), std::move(grown));
    step_.claim();
}

void Context::body(int layer, const ds41_tensor &x, const ds41_tensor &out) {
    model_->weights(layer);
    DS41_CHECK(step_.kind == Step::Kind::kDecode, DS41_STATUS_WRONG_ORDER,
               "no decode step is in flight on ctx: ds41_decode_prep comes first");
    DS41_CHECK(!step_.is_over(), DS41_STATUS_WRONG_ORDER,
               "the step on ctx is over: one of its sequences was reset, destroyed or taken by another step");
    check_io(x, out, step_.sizes.n_tokens, *model_);
    if (recording_) {
        record(layer, x, out);
        return;
    }
    check_not_capturing();
    step_.check_positions(layer);
    step_.progress.check_order(model_->config(), layer);
    run(step_, nullptr, layer, x, out);
}

void Context::set_tap(Tap tap) {
    DS41_CHECK(!recording_, DS41_STATUS_WRONG_ORDER,
               "a graph is being captured, which delivers no intermediates: ds41_graph_end() comes first");
    tap_ = std::move(tap);
}

void Context::synchronize() {
    check_not_capturing();
    stages_->synchronize();
}

std::size_t context_bytes_for(const Model &model, std::int64_t n_tokens, std::int64_t end_pos) {
    const StepSizes sizes = plan_step(model, n_tokens, end_pos, 0);
    StageOptions options;
    options.n_threads = 0; // as ds41_ctx_options has it
    std::size_t sum = model.backend().create_stages(options)->needed_bytes(model.config(), sizes.stages);
    for (const std::size_t bytes : Workspace::buffer_bytes(model.config(), sizes)) sum += bytes;
    return sum;
}

} // namespace ds41
