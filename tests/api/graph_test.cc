// Captured decode steps: the bits of the layers one by one, at any position, for any sequences and fewer rows; what a
// capture leaves alone; what is refused. Needs the insides for the stream of a caller and for the simulated device's
// counts.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "failing_alloc.h"
#include "support.h"

#include "backend/cuda/plugin.h"

#include <algorithm>
#include <cstring>
#include <functional>

using namespace api_test;

namespace {

using Graph = std::unique_ptr<ds41_graph, Destroy<ds41_graph_destroy>>;

constexpr ds41_status kOrder = DS41_STATUS_WRONG_ORDER;
const Tape kTapeA{1}, kTapeB{2}, kTapeC{3};

const ds41::DeviceFunctions &device() {
    return is_simulated() ? *ds41::sim_plugin().functions() : *ds41::cuda_plugin().functions();
}

const TestModel &small_model() {
    static const TestModel model = random_model(small_config());
    return model;
}

std::vector<int32_t> all_layers(const TestModel &model) {
    std::vector<int32_t> layers;
    for (int32_t layer = 0; layer < model.config.n_compress_ratios; ++layer) layers.push_back(layer);
    return layers;
}

// Inputs and outputs of a step's layers, at addresses that stay.
class StepRows {
public:
    StepRows(const TestModel &model, int32_t n_rows) : model_(model), n_rows_(n_rows) {
        const auto n_values = static_cast<size_t>(n_rows * model.config.dim);
        for (int32_t layer = 0; layer < model.config.n_compress_ratios; ++layer) {
            x_.emplace_back(std::vector<uint16_t>(n_values, 0x7FC1)); // NaN behind the rows of a step
            out_.emplace_back(n_rows * model.config.dim);
        }
    }

    // What the layers of a step are given; nothing may be under way.
    void put(const std::vector<SpanRun> &spans) {
        for (size_t layer = 0; layer < x_.size(); ++layer) {
            int64_t at = 0;
            for (const SpanRun &span : spans) {
                x_[layer].put(
                    at, span.tape.rows(model_.config, static_cast<int32_t>(layer), span.start_pos, span.n_tokens));
                at += span.n_tokens * model_.config.dim;
            }
        }
    }

    // What came out of some layers: into the spans' records; behind them there are zeros.
    void take(const std::vector<SpanRun> &spans, const std::vector<int32_t> &layers) const {
        for (const int32_t layer : layers) {
            CAPTURE(layer);
            const Rows &out = out_[static_cast<size_t>(layer)];
            CHECK_MESSAGE(out.guards_intact(), "written beyond out");
            const std::vector<uint16_t> values = out.values();
            int64_t at = 0;
            for (const SpanRun &span : spans) {
                const int64_t n = span.n_tokens * model_.config.dim;
                if (span.record) span.record->append(layer, values.data() + at, n);
                at += n;
            }
            CHECK_MESSAGE(std::all_of(values.begin() + at, values.end(), [](uint16_t v) { return v == 0; }),
                          "rows behind the step's are not zeros");
        }
    }

    ds41_tensor x(int32_t layer, int32_t n_rows = 0) const { return rows(x_, layer, n_rows); }
    ds41_tensor out(int32_t layer, int32_t n_rows = 0) const { return rows(out_, layer, n_rows); }
    int32_t n_rows() const { return n_rows_; }

private:
    ds41_tensor rows(const std::vector<Rows> &of, int32_t layer, int32_t n_rows) const {
        return view(of[static_cast<size_t>(layer)].at(0), DS41_DTYPE_BF16,
                    {n_rows > 0 ? n_rows : n_rows_, model_.config.dim});
    }
    const TestModel &model_;
    int32_t n_rows_;
    std::vector<Rows> x_, out_;
};

ds41_status body(ds41_ctx *ctx, const StepRows &rows, int32_t layer) {
    const ds41_tensor x = rows.x(layer), out = rows.out(layer);
    return ds41_decode_body(ctx, layer, &x, &out);
}

// Layers of the step in flight.
Graph capture(ds41_ctx *ctx, const StepRows &rows, const std::vector<int32_t> &layers) {
    must(ds41_graph_begin(ctx, 0));
    for (const int32_t layer : layers) must(body(ctx, rows, layer));
    ds41_graph *graph = nullptr;
    must(ds41_graph_end(ctx, &graph));
    return Graph(graph);
}

// A step through graphs.
void replay(ds41_ctx *ctx, StepRows &rows, const std::vector<const Graph *> &graphs, const std::vector<SpanRun> &spans,
            const std::vector<int32_t> &layers) {
    rows.put(spans);
    prep(ctx, spans);
    for (const Graph *graph : graphs) must(ds41_graph_launch(graph->get()));
    must(ds41_ctx_synchronize(ctx));
    rows.take(spans, layers);
}

std::vector<int64_t> positions(ds41_seq *seq, const TestModel &model) {
    std::vector<int64_t> all;
    for (const int32_t layer : all_layers(model)) {
        all.push_back(-1);
        must(ds41_seq_get_position(seq, layer, &all.back()));
    }
    return all;
}

// Token after token without a graph, from the start.
Record eager(const TestModel &model, const Tape &tape, int32_t n_tokens) {
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    Record record;
    for (int32_t at = 0; at < n_tokens; ++at) decode(model, ctx.get(), {{seq.get(), tape, at, 1, &record}});
    return record;
}

// The first n tokens of a sequence, so that graphs take it from there.
void start(const TestModel &model, ds41_ctx *ctx, ds41_seq *seq, const Tape &tape, int32_t n, Record *record) {
    for (int32_t at = 0; at < n; ++at) decode(model, ctx, {{seq, tape, at, 1, record}});
}

ds41::DeviceCounts counted() {
    ds41::DeviceCounts counts{};
    device().take_counts(&counts, nullptr, nullptr);
    return counts;
}

// A scene for refusals: a graph of all layers, and a step for it.
struct Captured {
    const TestModel &model = small_model();
    std::vector<int32_t> layers = all_layers(model);
    Ctx ctx = new_ctx(model.get());
    Seq seq = new_seq(model.get());
    StepRows rows{model, 1};
    Record record;
    Graph graph;

    explicit Captured(int32_t n_tokens = 3) {
        start(model, ctx.get(), seq.get(), kTapeA, n_tokens, &record);
        at = n_tokens;
        prep_next();
        graph = capture(ctx.get(), rows, layers);
    }
    void prep_next() {
        rows.put({next()});
        prep(ctx.get(), {next()});
    }
    SpanRun next() { return {seq.get(), kTapeA, at, 1, &record}; }
    // The step that was prepared runs as if nothing had been.
    void check_goes_on() {
        must(ds41_graph_launch(graph.get()));
        must(ds41_ctx_synchronize(ctx.get()));
        rows.take({next()}, layers);
        ++at;
        check_same(record, eager(model, kTapeA, static_cast<int32_t>(at)), model.config);
    }
    int64_t at;
};

} // namespace

TEST_CASE("a captured step gives the bits of its layers one by one, wherever it is replayed") {
    for (const Format format : {Format::bf16, Format::f32, Format::fp8, Format::q2_k}) {
        CAPTURE(std::string(name_of(format)));
        const TestModel model = random_model(format);
        const int32_t n = format == Format::bf16 ? 40 : 12;
        const Ctx ctx = new_ctx(model.get());
        const Seq seq = new_seq(model.get());
        Record record;
        const std::vector<int32_t> layers = all_layers(model);
        StepRows rows(model, 1);
        rows.put({{seq.get(), kTapeA, 0, 1, nullptr}});
        prep(ctx.get(), {{seq.get(), kTapeA, 0, 1, nullptr}});
        const Graph graph = capture(ctx.get(), rows, layers);
        // The capture ran nothing and moved nothing.
        CHECK(positions(seq.get(), model) == std::vector<int64_t>(layers.size(), 0));
        for (int32_t at = 0; at < n; ++at)
            replay(ctx.get(), rows, {&graph}, {{seq.get(), kTapeA, at, 1, &record}}, layers);
        CHECK(positions(seq.get(), model) == std::vector<int64_t>(layers.size(), n));
        check_same(record, eager(model, kTapeA, n), model.config);
    }
}

TEST_CASE("two sequences take turns in one graph, and three share one") {
    const TestModel &model = small_model();
    constexpr int32_t kTokens = 20;
    const Record a_alone = eager(model, kTapeA, kTokens), b_alone = eager(model, kTapeB, kTokens);
    const Ctx ctx = new_ctx(model.get());
    const std::vector<int32_t> layers = all_layers(model);
    {
        const Seq a = new_seq(model.get()), b = new_seq(model.get());
        Record of_a, of_b;
        start(model, ctx.get(), b.get(), kTapeB, 7, &of_b);
        StepRows rows(model, 1);
        prep(ctx.get(), {{a.get(), kTapeA, 0, 1, nullptr}});
        const Graph graph = capture(ctx.get(), rows, layers);
        for (int32_t at = 0; at < kTokens - 7; ++at) {
            replay(ctx.get(), rows, {&graph}, {{a.get(), kTapeA, at, 1, &of_a}}, layers);
            replay(ctx.get(), rows, {&graph}, {{b.get(), kTapeB, 7 + at, 1, &of_b}}, layers);
        }
        for (int32_t at = kTokens - 7; at < kTokens; ++at)
            replay(ctx.get(), rows, {&graph}, {{a.get(), kTapeA, at, 1, &of_a}}, layers);
        check_same(of_a, a_alone, model.config);
        check_same(of_b, b_alone, model.config);
    }
    {
        const Seq a = new_seq(model.get()), b = new_seq(model.get()), c = new_seq(model.get());
        Record of_a, of_b, of_c;
        start(model, ctx.get(), b.get(), kTapeB, 5, &of_b);
        StepRows rows(model, 3);
        const auto spans = [&](int32_t at) {
            return std::vector<SpanRun>{
                {c.get(), kTapeC, at, 1, &of_c}, {b.get(), kTapeB, 5 + at, 1, &of_b}, {a.get(), kTapeA, at, 1, &of_a}};
        };
        prep(ctx.get(), spans(0));
        const Graph graph = capture(ctx.get(), rows, layers);
        for (int32_t at = 0; at < kTokens - 5; ++at) replay(ctx.get(), rows, {&graph}, spans(at), layers);
        check_same(of_b, b_alone, model.config);
        check_same(of_c, eager(model, kTapeC, kTokens - 5), model.config);
        Record first = a_alone;
        for (auto &values : first.layers) values.resize(static_cast<size_t>((kTokens - 5) * model.config.dim));
        check_same(of_a, first, model.config);
    }
}

TEST_CASE("a step of fewer rows than captured, or of rows otherwise shared out, writes what it has") {
    const TestModel &model = small_model();
    const Ctx ctx = new_ctx(model.get());
    const Seq a = new_seq(model.get()), b = new_seq(model.get());
    const std::vector<int32_t> layers = all_layers(model);
    Record of_a, of_b;
    StepRows rows(model, 4);
    prep(ctx.get(), {{a.get(), kTapeA, 0, 2, nullptr}, {b.get(), kTapeB, 0, 2, nullptr}});
    const Graph graph = capture(ctx.get(), rows, layers);
    int64_t at_a = 0, at_b = 0;
    // Of a and of b in each step.
    for (const auto &[n_a, n_b] : std::vector<std::pair<int32_t, int32_t>>{
             {2, 2}, {1, 0}, {0, 1}, {1, 1}, {3, 1}, {1, 3}, {4, 0}, {1, 1}, {0, 2}, {1, 2}, {2, 1}, {1, 0}, {3, 0}}) {
        std::vector<SpanRun> spans;
        if (n_a > 0) spans.push_back({a.get(), kTapeA, at_a, n_a, &of_a});
        if (n_b > 0) spans.push_back({b.get(), kTapeB, at_b, n_b, &of_b});
        replay(ctx.get(), rows, {&graph}, spans, layers);
        at_a += n_a;
        at_b += n_b;
    }
    check_same(of_a, eager(model, kTapeA, static_cast<int32_t>(at_a)), model.config);
    check_same(of_b, eager(model, kTapeB, static_cast<int32_t>(at_b)), model.config);
}

TEST_CASE("graphs of some layers, and layers without one, share a step") {
    const TestModel &model = small_model();
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    StepRows rows(model, 1);
    Record record;
    prep(ctx.get(), {{seq.get(), kTapeA, 0, 1, nullptr}});
    const Graph first = capture(ctx.get(), rows, {0, 1, 2}), consumer = capture(ctx.get(), rows, {3});
    const Graph middle = capture(ctx.get(), rows, {4, 5}), last = capture(ctx.get(), rows, {6, 7});
    for (int32_t at = 0; at < 24; ++at) {
        const std::vector<SpanRun> spans = {{seq.get(), kTapeA, at, 1, &record}};
        rows.put(spans);
        prep(ctx.get(), spans);
        // Each part with and without a graph, in all combinations.
        const auto part = [&](int bit, const Graph &graph, const std::vector<int32_t> &layers) {
            if (at >> bit & 1) {
                must(ds41_graph_launch(graph.get()));
            } else {
                for (const int32_t layer : layers) must(body(ctx.get(), rows, layer));
            }
        };
        part(0, first, {0, 1, 2});
        part(1, consumer, {3});
        part(2, middle, {4, 5});
        part(3, last, {6, 7});
        must(ds41_ctx_synchronize(ctx.get()));
        rows.take(spans, all_layers(model));
    }
    check_same(record, eager(model, kTapeA, 24), model.config);
}

TEST_CASE("a graph outlives growth: of workspaces by longer prompts and larger steps, of caches, of page tables") {
    ds41_config config = small_config();
    config.max_seq_len = 8192;
    const TestModel model = random_model(config);
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    const std::vector<int32_t> layers = all_layers(model);
    StepRows rows(model, 1);
    Record record;
    prep(ctx.get(), {{seq.get(), kTapeA, 0, 1, nullptr}});
    const Graph graph = capture(ctx.get(), rows, layers);
    const auto run = [&](int32_t at) {
        replay(ctx.get(), rows, {&graph}, {{seq.get(), kTapeA, at, 1, &record}}, layers);
    };
    for (int32_t at = 0; at < 5; ++at) run(at);
    { // All buffers of the context grow, and prompts stand where steps stood.
        const Seq other = new_seq(model.get());
        prefill(model, ctx.get(), other.get(), kTapeB, 0, 40, nullptr);
        run(5);
        const std::vector<SpanRun> wide = {{other.get(), kTapeB, 40, 9, nullptr}};
        decode(model, ctx.get(), wide);
    }
    for (int32_t at = 6; at < 9; ++at) run(at);
    { // A graph of more rows does not disturb that of fewer.
        const Seq other = new_seq(model.get());
        StepRows more(model, 5);
        prep(ctx.get(), {{other.get(), kTapeB, 0, 5, nullptr}});
        const Graph larger = capture(ctx.get(), more, layers);
        Record of_other;
        replay(ctx.get(), more, {&larger}, {{other.get(), kTapeB, 0, 5, &of_other}}, layers);
        run(9);
        replay(ctx.get(), more, {&larger}, {{other.get(), kTapeB, 5, 3, &of_other}}, layers);
        run(10);
        check_same(of_other, eager(model, kTapeB, 8), model.config);
    }
    // Tables of pages move when there are more of them.
    const uint64_t before = ds41_seq_get_bytes(seq.get());
    must(ds41_seq_reserve(seq.get(), 6000));
    CHECK(ds41_seq_get_bytes(seq.get()) > before);
    for (int32_t at = 11; at < 20; ++at) run(at);
    // Also between the two halves of a step, with a graph and without.
    for (const int32_t n_positions : {6500, 8000}) {
        const std::vector<SpanRun> spans = {{seq.get(), kTapeA, n_positions == 6500 ? 20 : 21, 1, &record}};
        rows.put(spans);
        prep(ctx.get(), spans);
        must(ds41_seq_reserve(seq.get(), n_positions));
        if (n_positions == 6500) {
            must(ds41_graph_launch(graph.get()));
        } else {
            for (const int32_t layer : layers) must(body(ctx.get(), rows, layer));
        }
        must(ds41_ctx_synchronize(ctx.get()));
        rows.take(spans, layers);
    }
    check_same(record, eager(model, kTapeA, 22), model.config);
}

TEST_CASE("a selection that lies elsewhere makes a graph stale, and it can be captured again") {
    const TestModel &model = small_model();
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get()), other = new_seq(model.get());
    StepRows rows(model, 1);
    Record record;
    prep(ctx.get(), {{seq.get(), kTapeA, 0, 1, nullptr}});
    Graph consumer = capture(ctx.get(), rows, {3}), inside = capture(ctx.get(), rows, {6});
    Graph whole = capture(ctx.get(), rows, all_layers(model));
    decode(model, ctx.get(), {{other.get(), kTapeB, 0, 9, nullptr}}); // selections of nine rows

    rows.put({{seq.get(), kTapeA, 0, 1, nullptr}});
    prep(ctx.get(), {{seq.get(), kTapeA, 0, 1, nullptr}});
    for (const int32_t layer : {0, 1, 2}) must(body(ctx.get(), rows, layer));
    check_refused(ds41_graph_launch(consumer.get()), {kOrder}, "ds41_graph_launch",
                  {"stale", "layer 3", "selection", "captured again"});
    for (const int32_t layer : {3, 4, 5}) must(body(ctx.get(), rows, layer));
    check_refused(ds41_graph_launch(inside.get()), {kOrder}, "ds41_graph_launch",
                  {"stale", "layer 6", "candidate", "captured again"});
    for (const int32_t layer : {6, 7}) must(body(ctx.get(), rows, layer));
    must(ds41_ctx_synchronize(ctx.get()));
    rows.take({{seq.get(), kTapeA, 0, 1, &record}}, all_layers(model));

    // What needs nothing from outside still runs.
    replay(ctx.get(), rows, {&whole}, {{seq.get(), kTapeA, 1, 1, &record}}, all_layers(model));
    prep(ctx.get(), {{seq.get(), kTapeA, 2, 1, nullptr}});
    consumer = capture(ctx.get(), rows, {3});
    rows.put({{seq.get(), kTapeA, 2, 1, nullptr}});
    for (const int32_t layer : {0, 1, 2}) must(body(ctx.get(), rows, layer));
    must(ds41_graph_launch(consumer.get()));
    for (const int32_t layer : {4, 5, 6, 7}) must(body(ctx.get(), rows, layer));
    must(ds41_ctx_synchronize(ctx.get()));
    rows.take({{seq.get(), kTapeA, 2, 1, &record}}, all_layers(model));
    check_same(record, eager(model, kTapeA, 3), model.config);
}

TEST_CASE("rows that were freed make a graph stale") {
    Captured scene;
    Buffer x, out;
    const uint64_t n_bytes = static_cast<uint64_t>(scene.model.config.dim) * 2;
    ds41_buffer *buffer = nullptr;
    must(ds41_buffer_create(&buffer, scene.model.get(), n_bytes));
    x.reset(buffer);
    must(ds41_buffer_create(&buffer, scene.model.get(), n_bytes));
    out.reset(buffer);
    const auto rows = [&](const Buffer &of) {
        return view(ds41_buffer_get_data(of.get()), DS41_DTYPE_BF16, {1, scene.model.config.dim});
    };
    const ds41_tensor x_rows = rows(x), out_rows = rows(out);
    must(ds41_graph_begin(scene.ctx.get(), 0));
    must(ds41_decode_body(scene.ctx.get(), 0, &x_rows, &out_rows));
    ds41_graph *handle = nullptr;
    must(ds41_graph_end(scene.ctx.get(), &handle));
    const Graph graph(handle);
    out.reset();
    check_refused(ds41_graph_launch(graph.get()), {DS41_STATUS_INVALID_ARGUMENT}, "ds41_graph_launch",
                  {"stale", "out of its layer 0", "captured again"});
    { // Other memory at the same place is other memory.
        must(ds41_buffer_create(&buffer, scene.model.get(), n_bytes));
        const Buffer other(buffer);
        check_refused(ds41_graph_launch(graph.get()), {DS41_STATUS_INVALID_ARGUMENT}, "ds41_graph_launch",
                      {"stale", "out of its layer 0", "freed"});
    }
    x.reset();
    check_refused(ds41_graph_launch(graph.get()), {DS41_STATUS_INVALID_ARGUMENT}, "ds41_graph_launch",
                  {"stale", "x of its layer 0", "captured again"});
    CHECK(positions(scene.seq.get(), scene.model) == std::vector<int64_t>(scene.layers.size(), 3));
    scene.check_goes_on();
}

TEST_CASE("while a graph is captured nothing else runs, waits, allocates or copies") {
    Captured scene;
    const Buffer held = [&] {
        ds41_buffer *buffer = nullptr;
        must(ds41_buffer_create(&buffer, scene.model.get(), 64));
        return Buffer(buffer);
    }();
    Buffer freed = [&] {
        ds41_buffer *buffer = nullptr;
        must(ds41_buffer_create(&buffer, scene.model.get(), 64));
        return Buffer(buffer);
    }();
    Seq closed = new_seq(scene.model.get());
    must(ds41_seq_reserve(closed.get(), 20));
    ds41_ctx *const ctx = scene.ctx.get();
    must(ds41_graph_begin(ctx, 0));
    const ds41_span span = {scene.seq.get(), 3, 1, 0};
    check_refused(ds41_decode_prep(ctx, &span, 1), {kOrder}, "ds41_decode_prep", {"captured", "ds41_graph_end"});
    const ds41_tensor x = scene.rows.x(0), out = scene.rows.out(0);
    check_refused(ds41_layer_prefill(ctx, 0, scene.seq.get(), &x, 1, 3, &out), {kOrder}, "ds41_layer_prefill",
                  {"captured", "ds41_graph_end"});
    check_refused(ds41_ctx_synchronize(ctx), {kOrder}, "ds41_ctx_synchronize", {"captured", "ds41_graph_end"});
    check_refused(ds41_ctx_set_tap(
                      ctx, nullptr, 0, [](const ds41_tap *, void *) {}, nullptr),
                  {kOrder}, "ds41_ctx_set_tap", {"captured", "ds41_graph_end"});
    check_refused(ds41_graph_begin(ctx, 0), {kOrder}, "ds41_graph_begin", {"captured"});
    check_refused(ds41_graph_launch(scene.graph.get()), {kOrder}, "ds41_graph_launch", {"captured", "ds41_graph_end"});
    ds41_buffer *made = nullptr;
    check_refused(ds41_buffer_create(&made, scene.model.get(), 64), {kOrder}, "ds41_buffer_create",
                  {"allocating", "captures", "ds41_graph_end"});
    uint16_t word = 0;
    check_refused(ds41_buffer_upload(held.get(), 0, &word, 2), {kOrder}, "ds41_buffer_upload", {"captures"});
    check_refused(ds41_buffer_download(held.get(), 0, &word, 2), {kOrder}, "ds41_buffer_download", {"captures"});
    check_refused(ds41_seq_reserve(scene.seq.get(), 100), {kOrder}, "ds41_seq_reserve", {"captures"});
    // What is freed now goes when the capture is over.
    freed.reset();
    closed.reset();
    must(body(ctx, scene.rows, 0));
    ds41_graph *graph = nullptr;
    must(ds41_graph_end(ctx, &graph));
    const Graph captured(graph);
    CHECK(positions(scene.seq.get(), scene.model) == std::vector<int64_t>(scene.layers.size(), 3));
    scene.check_goes_on();
}

TEST_CASE("memory that runs out breaks a capture, and nothing else") {
    Captured scene;
    ds41_ctx *const ctx = scene.ctx.get();
    int64_t n = 0;
    for (bool goes_on = true; goes_on; ++n) { // the n-th allocation of begin is refused
        ds41_status status;
        {
            const AllocationScope scope(n);
            status = ds41_graph_begin(ctx, 0);
        }
        goes_on = status != DS41_STATUS_OK;
        if (goes_on) check_refused(status, {DS41_STATUS_OUT_OF_MEMORY}, "ds41_graph_begin", {"memory"});
    }
    CHECK(n > 3);
    n = 0;
    ds41_graph *graph = nullptr;
    for (bool goes_on = true; goes_on; ++n) { // that of a layer
        CAPTURE(n);
        ds41_status status;
        {
            const AllocationScope scope(n);
            status = body(ctx, scene.rows, 2);
        }
        goes_on = status != DS41_STATUS_OK;
        if (!goes_on) break;
        check_refused(status, {DS41_STATUS_OUT_OF_MEMORY}, "ds41_decode_body", {"memory"});
        check_refused(body(ctx, scene.rows, 3), {kOrder}, "ds41_decode_body", {"broken", "ds41_graph_end"});
        check_refused(ds41_graph_end(ctx, &graph), {kOrder}, "ds41_graph_end", {"layer", "could not be recorded"});
        CHECK(graph == nullptr);
        must(ds41_graph_begin(ctx, 0));
    }
    CHECK(n > 10);
    must(ds41_graph_end(ctx, &graph));
    const Graph source(graph);
    CHECK(positions(scene.seq.get(), scene.model) == std::vector<int64_t>(scene.layers.size(), 3));
    scene.check_goes_on();
}

TEST_CASE("captures and launches out of turn are refused, and change nothing") {
    Captured scene;
    ds41_ctx *const ctx = scene.ctx.get();
    ds41_graph *graph = nullptr;
    const char *const kBegin = "ds41_graph_begin", *const kEnd = "ds41_graph_end", *const kLaunch = "ds41_graph_launch";
    check_refused(ds41_graph_end(ctx, &graph), {kOrder}, kEnd, {"no graph", "ds41_graph_begin"});
    check_refused(ds41_graph_begin(ctx, 2), {DS41_STATUS_INVALID_ARGUMENT}, kBegin, {"flags", "0x2"});
    const Ctx idle = new_ctx(scene.model.get());
    check_refused(ds41_graph_begin(idle.get(), 0), {kOrder}, kBegin, {"ds41_decode_prep"});

    const StepRows two(small_model(), 1);
    // Without a layer, twice a layer, layers in descending order, rows of another shape, no such layer.
    must(ds41_graph_begin(ctx, 0));
    check_refused(ds41_graph_end(ctx, &graph), {kOrder}, kEnd, {"no layer", "ds41_decode_body"});
    CHECK(graph == nullptr);
    must(ds41_graph_begin(ctx, 0));
    must(body(ctx, scene.rows, 3));
    for (const int32_t layer : {3, 0})
        check_refused(body(ctx, scene.rows, layer), {kOrder}, "ds41_decode_body",
                      {"layer", std::to_string(layer), "3"});
    const ds41_tensor wide = view(two.x(0).data, DS41_DTYPE_BF16, {2, scene.model.config.dim}), out = two.out(4);
    check_refused(ds41_decode_body(ctx, 4, &wide, &out), {DS41_STATUS_INVALID_SHAPE}, "ds41_decode_body", {"x", "2"});
    check_refused(ds41_decode_body(ctx, 8, &out, &out), {DS41_STATUS_INVALID_LAYER}, "ds41_decode_body", {"8"});
    must(ds41_graph_end(ctx, &graph));
    const Graph consumer(graph);
    check_refused(ds41_graph_launch(consumer.get()), {kOrder}, kLaunch, {"layer", "3", "2"});

    // More rows than captured.
    const Seq other = new_seq(scene.model.get());
    prep(ctx, {{scene.seq.get(), kTapeA, 3, 1, nullptr}, {other.get(), kTapeB, 0, 1, nullptr}});
    check_refused(ds41_graph_launch(scene.graph.get()), {DS41_STATUS_INVALID_SHAPE}, kLaunch, {"2", "1"});
    // A layer that does not stand there.
    const std::vector<SpanRun> ahead = {{other.get(), kTapeB, 0, 1, nullptr}};
    decode_layer(scene.model, ctx, 0, {{scene.seq.get(), kTapeA, 3, 1, nullptr}, {other.get(), kTapeB, 0, 1, nullptr}});
    check_refused(ds41_graph_launch(scene.graph.get()), {DS41_STATUS_INVALID_SHAPE}, kLaunch, {"2", "1"});
    prep(ctx, ahead);
    check_refused(ds41_graph_launch(scene.graph.get()), {DS41_STATUS_INVALID_POSITION}, kLaunch,
                  {"start_pos", "0", "1"});
    check_refused(ds41_graph_launch(nullptr), {DS41_STATUS_INVALID_ARGUMENT}, kLaunch, {"graph", "NULL"});

    // A step that is over, a tap, a layer that has run.
    must(ds41_seq_reset(other.get()));
    check_refused(ds41_graph_launch(scene.graph.get()), {kOrder}, kLaunch, {"over"});
    check_refused(ds41_graph_begin(ctx, 0), {kOrder}, kBegin, {"over"});
    prep(ctx, ahead);
    must(ds41_ctx_set_tap(
        ctx, nullptr, 0, [](const ds41_tap *, void *) {}, nullptr));
    check_refused(ds41_graph_launch(scene.graph.get()), {kOrder}, kLaunch, {"tap"});
    check_refused(ds41_graph_begin(ctx, 0), {kOrder}, kBegin, {"tap"});
    must(ds41_ctx_set_tap(ctx, nullptr, 0, nullptr, nullptr));
    decode_layer(scene.model, ctx, 0, ahead);
    check_refused(ds41_graph_begin(ctx, 0), {kOrder}, kBegin, {"layer 0", "run"});
    check_refused(ds41_graph_launch(scene.graph.get()), {DS41_STATUS_INVALID_POSITION}, kLaunch, {"start_pos"});

    // A prefill is no step for a graph; twice is once too often.
    prefill_layer(scene.model, ctx, new_seq(scene.model.get()).get(), 0, kTapeC, 0, 1, nullptr);
    check_refused(ds41_graph_launch(scene.graph.get()), {kOrder}, kLaunch, {"ds41_decode_prep"});
    check_refused(ds41_graph_begin(ctx, 0), {kOrder}, kBegin, {"ds41_decode_prep"});
    const Seq fresh = new_seq(scene.model.get());
    StepRows rows(scene.model, 1);
    Record record;
    prep(ctx, {{fresh.get(), kTapeC, 0, 1, nullptr}});
    const Graph whole = capture(ctx, rows, scene.layers);
    replay(ctx, rows, {&whole}, {{fresh.get(), kTapeC, 0, 1, &record}}, scene.layers);
    check_refused(ds41_graph_launch(whole.get()), {DS41_STATUS_INVALID_POSITION}, kLaunch, {"start_pos", "0", "1"});
    replay(ctx, rows, {&whole}, {{fresh.get(), kTapeC, 1, 1, &record}}, scene.layers);
    check_same(record, eager(scene.model, kTapeC, 2), scene.model.config);
}

TEST_CASE("what cannot be captured says so") {
    const TestModel torch = random_model(small_config(), Format::bf16, kSeed, DS41_OWNERSHIP_COPY, DS41_TOPK_TORCH_CPU);
    const Ctx ctx = new_ctx(torch.get());
    const Seq seq = new_seq(torch.get());
    for (int32_t layer = 0; layer < 8; ++layer) {
        int32_t capturable = 77;
        must(ds41_decode_capturable(ctx.get(), layer, &capturable));
        CHECK(capturable == (layer == 1 || layer == 2 || layer == 4 || layer == 6 ? 0 : 1));
    }
    const StepRows rows(torch, 1);
    prep(ctx.get(), {{seq.get(), kTapeA, 0, 1, nullptr}});
    must(ds41_graph_begin(ctx.get(), 0));
    must(body(ctx.get(), rows, 0));
    check_refused(body(ctx.get(), rows, 1), {DS41_STATUS_UNSUPPORTED}, "ds41_decode_body",
                  {"layer 1", "DS41_TOPK_TORCH_CPU"});
    must(body(ctx.get(), rows, 3)); // between sources that run without a graph
    ds41_graph *graph = nullptr;
    must(ds41_graph_end(ctx.get(), &graph));
    ds41_graph_destroy(graph);

    const Ctx stable = new_ctx(small_model().get());
    int32_t capturable = 77;
    must(ds41_decode_capturable(stable.get(), 4, &capturable));
    CHECK(capturable == 1);
    must(ds41_ctx_set_tap(
        stable.get(), nullptr, 0, [](const ds41_tap *, void *) {}, nullptr));
    must(ds41_decode_capturable(stable.get(), 4, &capturable));
    CHECK(capturable == 0);

    ds41_model_options options = tested_options();
    options.backend = "reference";
    ds41_model *handle = nullptr;
    const ds41_config config = small_config();
    must(ds41_model_create(&handle, &config, &options));
    const Model host(handle);
    const Ctx host_ctx = new_ctx(host.get());
    check_refused(ds41_graph_begin(host_ctx.get(), 0), {DS41_STATUS_UNSUPPORTED}, "ds41_graph_begin",
                  {"reference", "graphs"});
}

TEST_CASE("other contexts of the thread go on while one is captured") {
    Captured scene;
    const Ctx other = new_ctx(scene.model.get());
    const Seq seq = new_seq(scene.model.get());
    Record record;
    start(scene.model, other.get(), seq.get(), kTapeB, 5, &record); // its memory is there
    must(ds41_seq_reserve(seq.get(), 10));
    StepRows rows(scene.model, 1);
    const std::vector<SpanRun> spans = {{seq.get(), kTapeB, 5, 1, &record}};
    rows.put(spans);
    must(ds41_graph_begin(scene.ctx.get(), 0));
    must(body(scene.ctx.get(), scene.rows, 0));
    prep(other.get(), spans);
    for (const int32_t layer : scene.layers) must(body(other.get(), rows, layer));
    must(ds41_ctx_synchronize(other.get()));
    ds41_graph *graph = nullptr;
    must(ds41_graph_end(scene.ctx.get(), &graph));
    const Graph captured(graph);
    rows.take(spans, scene.layers);
    check_same(record, eager(scene.model, kTapeB, 6), scene.model.config);
    scene.check_goes_on();
}

TEST_CASE("objects may go in any order, in the middle of a capture too") {
    Captured scene;
    must(ds41_graph_begin(scene.ctx.get(), 0));
    must(body(scene.ctx.get(), scene.rows, 0));
    scene.graph.reset(); // waits for the end of the capture
    ds41_graph *graph = nullptr;
    must(ds41_graph_end(scene.ctx.get(), &graph));
    scene.graph.reset(graph);
    must(ds41_graph_launch(graph));
    prep(scene.ctx.get(), {{new_seq(scene.model.get()).get(), kTapeB, 0, 1, nullptr}}); // its sequence is gone
    check_refused(ds41_graph_begin(scene.ctx.get(), 0), {kOrder}, "ds41_graph_begin", {"over"});
    const Seq other = new_seq(scene.model.get());
    prep(scene.ctx.get(), {{other.get(), kTapeB, 0, 1, nullptr}});
    must(ds41_graph_begin(scene.ctx.get(), 0));
    must(body(scene.ctx.get(), scene.rows, 0));
    scene.ctx.reset(); // with its capture
    check_refused(ds41_graph_launch(graph), {kOrder}, "ds41_graph_launch", {"context", "destroyed"});
    // The thread is free to allocate again.
    const Ctx ctx = new_ctx(scene.model.get());
    decode(scene.model, ctx.get(), {{other.get(), kTapeB, 0, 1, nullptr}});
    scene.graph.reset();
}

TEST_CASE("the owner of a stream captures layers together with work of its own") {
    const TestModel &model = small_model();
    ds41::DeviceStream stream = nullptr;
    REQUIRE(device().create_stream(&stream) == 0);
    {
        ds41_ctx_options options;
        ds41_ctx_options_init(&options, sizeof options);
        options.stream = stream;
        ds41_ctx *handle = nullptr;
        must(ds41_ctx_create(&handle, model.get(), &options));
        const Ctx ctx(handle);
        const Seq seq = new_seq(model.get());
        StepRows rows(model, 1);
        const Rows inputs(model.config.dim * 8);
        const auto n_bytes = static_cast<size_t>(model.config.dim) * 2;
        prep(ctx.get(), {{seq.get(), kTapeA, 0, 1, nullptr}});

        Graph other = capture(ctx.get(), rows, {0});
        Graph another = capture(ctx.get(), rows, {0});
        // Without a word nothing may be captured, and nothing is touched by the attempt.
        REQUIRE(device().begin_capture(stream) == 0);
        const ds41_span span = {seq.get(), 0, 1, 0};
        check_refused(ds41_decode_prep(ctx.get(), &span, 1), {kOrder}, "ds41_decode_prep",
                      {"captured", "DS41_GRAPH_EXTERNAL"});
        check_refused(body(ctx.get(), rows, 0), {kOrder}, "ds41_decode_body", {"captured", "DS41_GRAPH_EXTERNAL"});
        check_refused(ds41_ctx_synchronize(ctx.get()), {kOrder}, "ds41_ctx_synchronize", {"captured"});
        for (const uint32_t flags : {0u, DS41_GRAPH_EXTERNAL})
            check_refused(ds41_graph_begin(ctx.get(), flags), {kOrder}, "ds41_graph_begin",
                          {"captured already", "ds41_graph_begin"});
        another.reset(); // waits as well
        ds41::DeviceGraph nothing = nullptr;
        REQUIRE(device().end_capture(stream, &nothing) == 0);
        device().destroy_graph(nothing);

        must(ds41_graph_begin(ctx.get(), DS41_GRAPH_EXTERNAL));
        check_refused(body(ctx.get(), rows, 0), {kOrder}, "ds41_decode_body", {"not being captured"});
        REQUIRE(device().begin_capture(stream) == 0);
        for (int32_t layer = 0; layer < 8; ++layer) {
            REQUIRE(device().copy(stream, rows.x(layer).data, inputs.at(layer * model.config.dim), n_bytes) == 0);
            must(body(ctx.get(), rows, layer));
        }
        other.reset(); // waits for the end of the capture
        ds41_graph *graph_handle = nullptr;
        check_refused(ds41_graph_end(ctx.get(), &graph_handle), {kOrder}, "ds41_graph_end", {"still being captured"});
        ds41::DeviceGraph owners = nullptr;
        REQUIRE(device().end_capture(stream, &owners) == 0);
        must(ds41_graph_end(ctx.get(), &graph_handle));
        const Graph graph(graph_handle);

        Record record;
        for (int32_t at = 0; at < 12; ++at) {
            for (int32_t layer = 0; layer < 8; ++layer)
                const_cast<Rows &>(inputs).put(layer * model.config.dim, kTapeA.rows(model.config, layer, at, 1));
            prep(ctx.get(), {{seq.get(), kTapeA, at, 1, nullptr}});
            must(ds41_graph_launch(graph.get()));
            REQUIRE(device().launch_graph(owners, stream) == 0);
            must(ds41_ctx_synchronize(ctx.get()));
            rows.take({{seq.get(), kTapeA, at, 1, &record}}, all_layers(model));
        }
        check_same(record, eager(model, kTapeA, 12), model.config);
        device().destroy_graph(owners);
    }
    device().destroy_stream(stream);
}

TEST_CASE("every split of the attention gives the same bits, captured and not") {
    const TestModel &model = small_model();
    const Record expected = eager(model, kTapeA, 14);
    for (const int32_t split : {1, 2, 3, 8}) {
        CAPTURE(split);
        ds41_ctx_options options;
        ds41_ctx_options_init(&options, sizeof options);
        options.attention_split = split;
        ds41_ctx *handle = nullptr;
        must(ds41_ctx_create(&handle, model.get(), &options));
        const Ctx ctx(handle);
        const Seq seq = new_seq(model.get());
        Record record;
        start(model, ctx.get(), seq.get(), kTapeA, 7, &record);
        StepRows rows(model, 1);
        prep(ctx.get(), {{seq.get(), kTapeA, 7, 1, nullptr}});
        const Graph graph = capture(ctx.get(), rows, all_layers(model));
        for (int32_t at = 7; at < 14; ++at)
            replay(ctx.get(), rows, {&graph}, {{seq.get(), kTapeA, at, 1, &record}}, all_layers(model));
        check_same(record, expected, model.config);
    }
}

TEST_CASE("a captured step is one launch after one upload, and nothing is waited for") {
    if (!is_simulated()) return; // only there is anything counted
    const TestModel &model = small_model();
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    StepRows rows(model, 1);
    prep(ctx.get(), {{seq.get(), kTapeA, 0, 1, nullptr}});
    const Graph graph = capture(ctx.get(), rows, all_layers(model));
    for (int32_t at = 0; at < 140; ++at) { // pages end at 64 rows and at 128
        CAPTURE(at);
        const std::vector<SpanRun> spans = {{seq.get(), kTapeA, at, 1, nullptr}};
        rows.put(spans);
        counted();
        prep(ctx.get(), spans);
        prep(ctx.get(), spans); // the same again: nothing changed
        must(ds41_graph_launch(graph.get()));
        const ds41::DeviceCounts counts = counted();
        CHECK(counts.uploads == (at == 0 ? 0 : 1)); // the capture had the first step uploaded
        CHECK(counts.uploaded_bytes < 4096);
        CHECK(counts.synchronisations == 0);
        CHECK(counts.graph_launches == 1);
        must(ds41_ctx_synchronize(ctx.get()));
    }
}

namespace {

// The production schedule at small width: sources, consumers and candidates where DeepSeek-V4.1 has them.
ds41_config stack_config() {
    ds41_config config = small_config();
    ds41_config flash;
    ds41_config_flash(&flash, sizeof flash);
    config.n_layers = 40;
    config.n_compress_ratios = 40;
    config.n_kv_source_layers = flash.n_kv_source_layers;
    config.n_index_source_layers = flash.n_index_source_layers;
    config.candidate_source_layer = flash.candidate_source_layer;
    std::memcpy(config.compress_ratios, flash.compress_ratios, sizeof config.compress_ratios);
    std::memcpy(config.kv_source_layers, flash.kv_source_layers, sizeof config.kv_source_layers);
    std::memcpy(config.index_source_layers, flash.index_source_layers, sizeof config.index_source_layers);
    config.dim = 32;
    config.n_heads = 2;
    config.q_lora_rank = 16;
    config.o_lora_rank = 8;
    config.window_size = 24;
    config.index_topk = 16;
    config.candidate_topk_blocks = 6;
    config.max_seq_len = 256;
    return config;
}

} // namespace

TEST_CASE("the whole stack as one graph, 200 tokens long") {
    const TestModel model = random_model(stack_config());
    constexpr int32_t kTokens = 200, kFirst = 20; // before the ring's wrap
    const Record alone = eager(model, kTapeA, kTokens);
    const Ctx ctx = new_ctx(model.get());
    const std::vector<int32_t> layers = all_layers(model);
    const Seq a = new_seq(model.get());
    Record of_a;
    start(model, ctx.get(), a.get(), kTapeA, kFirst, &of_a);
    StepRows rows(model, 1), three(model, 3);
    prep(ctx.get(), {{a.get(), kTapeA, kFirst, 1, nullptr}});
    const Graph graph = capture(ctx.get(), rows, layers);
    for (int32_t at = kFirst; at < kTokens; ++at) {
        const std::vector<SpanRun> spans = {{a.get(), kTapeA, at, 1, &of_a}};
        rows.put(spans);
        if (is_simulated()) counted();
        prep(ctx.get(), spans);
        must(ds41_graph_launch(graph.get()));
        if (is_simulated()) {
            const ds41::DeviceCounts counts = counted();
            CHECK(counts.graph_launches == 1);
            CHECK(counts.uploads == (at == kFirst ? 0 : 1)); // the capture had the first one uploaded
            CHECK(counts.synchronisations == 0);
        }
        must(ds41_ctx_synchronize(ctx.get()));
        rows.take(spans, layers);
    }
    check_same(of_a, alone, model.config);

    // Two sequences in turns through that graph, and three in one of three rows, each at another place.
    const auto first = [&](int32_t n) {
        Record record = alone;
        for (auto &values : record.layers) values.resize(static_cast<size_t>(n * model.config.dim));
        return record;
    };
    const Seq b = new_seq(model.get()), c = new_seq(model.get()), d = new_seq(model.get());
    Record of_b, of_c, of_d;
    start(model, ctx.get(), c.get(), kTapeA, 21, &of_c);
    for (int32_t at = 0; at < 30; ++at) {
        replay(ctx.get(), rows, {&graph}, {{b.get(), kTapeA, at, 1, &of_b}}, layers);
        replay(ctx.get(), rows, {&graph}, {{c.get(), kTapeA, 21 + at, 1, &of_c}}, layers);
    }
    prep(ctx.get(),
         {{b.get(), kTapeA, 30, 1, nullptr}, {c.get(), kTapeA, 51, 1, nullptr}, {d.get(), kTapeA, 0, 1, nullptr}});
    const Graph of_three = capture(ctx.get(), three, layers);
    for (int32_t at = 0; at < 30; ++at)
        replay(ctx.get(), three, {&of_three},
               {{b.get(), kTapeA, 30 + at, 1, &of_b},
                {c.get(), kTapeA, 51 + at, 1, &of_c},
                {d.get(), kTapeA, at, 1, &of_d}},
               layers);
    check_same(of_b, first(60), model.config);
    check_same(of_c, first(81), model.config);
    check_same(of_d, first(30), model.config);
}
