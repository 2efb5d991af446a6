// When a step begins, what ends it, and what a layer that was left out may still do.
#include "support.h"

using namespace api_test;

namespace {

constexpr ds41_status kOrder = DS41_STATUS_WRONG_ORDER;
constexpr ds41_status kPosition = DS41_STATUS_INVALID_POSITION;
constexpr ds41_status kMissing = DS41_STATUS_MISSING_WEIGHTS;
constexpr const char *kPrefill = "ds41_layer_prefill";
constexpr const char *kBody = "ds41_decode_body";
constexpr Tape kTapeA{1}, kTapeB{2};

const TestModel &model() {
    static const TestModel small = random_model(small_config());
    return small;
}

// Fixtures of a test: two contexts and two sequences, each with five tokens in every layer.
struct Pair {
    Ctx ctx = new_ctx(model().get()), other = new_ctx(model().get());
    Seq a = new_seq(model().get()), b = new_seq(model().get());
    Record record_a, record_b;
    Pair() {
        prefill(model(), ctx.get(), a.get(), kTapeA, 0, 5, &record_a);
        prefill(model(), ctx.get(), b.get(), kTapeB, 0, 5, &record_b);
    }
    std::vector<SpanRun> next_of_both() {
        return {{a.get(), kTapeA, 5, 1, &record_a}, {b.get(), kTapeB, 5, 2, &record_b}};
    }
};

std::vector<int64_t> positions(ds41_seq *seq) {
    std::vector<int64_t> all;
    for (int32_t layer = 0; layer < model().config.n_compress_ratios; layer++) {
        all.push_back(-1);
        must(ds41_seq_get_position(seq, layer, &all.back()));
    }
    return all;
}

ds41_status try_prefill(const TestModel &of, ds41_ctx *ctx, ds41_seq *seq, int32_t layer, int64_t start, int32_t n) {
    const Rows x(std::vector<uint16_t>(static_cast<size_t>(n * of.config.dim), 0x3F80));
    const Rows out(n * of.config.dim);
    const ds41_tensor x_view = view(x.at(0), DS41_DTYPE_BF16, {n, of.config.dim});
    const ds41_tensor out_view = view(out.at(0), DS41_DTYPE_BF16, {n, of.config.dim});
    const ds41_status status = ds41_layer_prefill(ctx, layer, seq, &x_view, n, start, &out_view);
    if (status != DS41_STATUS_OK) CHECK(out.untouched());
    return status;
}

ds41_status try_body(ds41_ctx *ctx, int32_t layer, int32_t n_rows) {
    const int64_t dim = model().config.dim;
    const Rows x(std::vector<uint16_t>(static_cast<size_t>(n_rows * dim), 0x3F80));
    const Rows out(n_rows * dim);
    const ds41_tensor x_view = view(x.at(0), DS41_DTYPE_BF16, {n_rows, dim});
    const ds41_tensor out_view = view(out.at(0), DS41_DTYPE_BF16, {n_rows, dim});
    const ds41_status status = ds41_decode_body(ctx, layer, &x_view, &out_view);
    if (status != DS41_STATUS_OK) CHECK(out.untouched());
    return status;
}

} // namespace

TEST_CASE("a step of another sequence ends a prefill") {
    Pair pair;
    for (int32_t layer = 0; layer < 3; layer++) {
        prefill_layer(model(), pair.ctx.get(), pair.a.get(), layer, kTapeA, 5, 2, nullptr);
    }
    prefill_layer(model(), pair.ctx.get(), pair.b.get(), 0, kTapeB, 5, 2, nullptr);
    check_refused(try_prefill(model(), pair.ctx.get(), pair.a.get(), 3, 5, 2), {kOrder}, kPrefill, {"layer", "3", "2"});
    CHECK(positions(pair.a.get()) == std::vector<int64_t>{7, 7, 7, 5, 5, 5, 5, 5});
    // A source of its own begins a step, so the upper half may still be run.
    for (int32_t layer = 4; layer < 8; layer++) {
        prefill_layer(model(), pair.ctx.get(), pair.a.get(), layer, kTapeA, 5, 2, nullptr);
    }
    CHECK(positions(pair.a.get()) == std::vector<int64_t>{7, 7, 7, 5, 7, 7, 7, 7});
}

TEST_CASE("a prefill ends the step that was prepared, and a prep ends a prefill") {
    Pair pair;
    const std::vector<SpanRun> spans = pair.next_of_both();
    prep(pair.ctx.get(), spans);
    for (int32_t layer = 0; layer < 3; layer++) decode_layer(model(), pair.ctx.get(), layer, spans);
    const Seq c = new_seq(model().get());
    prefill_layer(model(), pair.ctx.get(), c.get(), 0, kTapeA, 0, 3, nullptr);
    check_refused(try_body(pair.ctx.get(), 3, 3), {kOrder}, kBody, {"prefill|prepared|over|ds41_decode_prep"});
    CHECK(positions(pair.a.get())[3] == 5);

    prefill_layer(model(), pair.ctx.get(), c.get(), 1, kTapeA, 0, 3, nullptr);
    prefill_layer(model(), pair.ctx.get(), c.get(), 2, kTapeA, 0, 3, nullptr);
    prep(pair.ctx.get(), {{pair.a.get(), kTapeA, 5, 1, nullptr}}); // its upper layers stand there
    check_refused(try_prefill(model(), pair.ctx.get(), c.get(), 3, 0, 3), {kOrder}, kPrefill, {"layer", "3", "2"});
}

TEST_CASE("a prep ends the step before it, even of the same spans") {
    Pair pair;
    const std::vector<SpanRun> spans = pair.next_of_both();
    prep(pair.ctx.get(), spans);
    for (int32_t layer = 0; layer < 3; layer++) decode_layer(model(), pair.ctx.get(), layer, spans);
    prep(pair.ctx.get(), spans);
    check_refused(try_body(pair.ctx.get(), 3, 3), {kOrder}, kBody, {"layer", "3", "2"});
    check_refused(try_body(pair.ctx.get(), 0, 3), {kPosition}, kBody, {"layer", "0"}); // has run
    for (int32_t layer = 4; layer < 8; layer++) decode_layer(model(), pair.ctx.get(), layer, spans);
}

TEST_CASE("a consumer needs its source in the same step, and a refusal does not end the step") {
    Pair pair;
    const std::vector<SpanRun> spans = pair.next_of_both();
    prep(pair.ctx.get(), spans);
    for (const int32_t layer : {3, 5, 6}) {
        check_refused(try_body(pair.ctx.get(), layer, 3), {kOrder}, kBody,
                      {"layer", std::to_string(layer), layer == 3 ? "2" : "4"});
    }
    decode_layer(model(), pair.ctx.get(), 2, spans);
    check_refused(try_body(pair.ctx.get(), 5, 3), {kOrder}, kBody, {"layer", "5", "4"});
    decode_layer(model(), pair.ctx.get(), 3, spans);
    check_refused(try_body(pair.ctx.get(), 1, 3), {kOrder}, kBody, {"layer", "1", "3"});
    decode_layer(model(), pair.ctx.get(), 4, spans);
    decode_layer(model(), pair.ctx.get(), 6, spans);
    check_refused(try_body(pair.ctx.get(), 5, 3), {kOrder}, kBody, {"layer", "5", "6"});
    decode_layer(model(), pair.ctx.get(), 7, spans);
    CHECK(positions(pair.a.get()) == std::vector<int64_t>{5, 5, 6, 6, 6, 5, 6, 6});
}

TEST_CASE("rows, selection and candidates are each looked for in the step") {
    const TestModel chained = random_model(chained_config());
    const Ctx ctx = new_ctx(chained.get());
    const Record whole = whole_prefill(chained, kTapeA, 9);
    struct Row {
        std::vector<int32_t> ran;
        int32_t layer, missing;
    };
    const Row rows[] = {
        {{}, 1, 0},     // rows and selection
        {{}, 2, 0},     // rows and candidates
        {{}, 3, 0},     // candidates: the rows are its own
        {{0}, 4, 3},    // rows: the candidates are there
        {{0, 3}, 5, 4}, // selection: that of layer 3 will not do
        {{0, 2}, 5, 3}, // rows and selection
    };
    for (const Row &row : rows) {
        CAPTURE(row.layer);
        const Seq seq = new_seq(chained.get());
        for (const int32_t layer : row.ran) prefill_layer(chained, ctx.get(), seq.get(), layer, kTapeA, 0, 9, nullptr);
        check_refused(try_prefill(chained, ctx.get(), seq.get(), row.layer, 0, 9), {kOrder}, kPrefill,
                      {"layer", std::to_string(row.layer), std::to_string(row.missing)});
        Record rest;
        for (int32_t layer = row.ran.empty() ? 0 : row.ran.back() + 1; layer < 6; layer++) {
            prefill_layer(chained, ctx.get(), seq.get(), layer, kTapeA, 0, 9, &rest);
            CHECK(rest.layers.back() == whole.layers[static_cast<size_t>(layer)]);
        }
    }
    // A step without layers 1 and 2 leaves the others the same.
    const Seq seq = new_seq(chained.get());
    for (const int32_t layer : {0, 3, 4, 5}) {
        Record one;
        prefill_layer(chained, ctx.get(), seq.get(), layer, kTapeA, 0, 9, &one);
        CHECK(one.layers.back() == whole.layers[static_cast<size_t>(layer)]);
    }
}

TEST_CASE("resetting or destroying a sequence ends the steps that use it") {
    for (const bool destroy : {true, false}) {
        CAPTURE(destroy);
        Pair pair;
        const std::vector<SpanRun> spans = pair.next_of_both();
        prep(pair.ctx.get(), spans);
        for (int32_t layer = 0; layer < 3; layer++) decode_layer(model(), pair.ctx.get(), layer, spans);
        if (destroy) pair.b.reset();
        if (!destroy) must(ds41_seq_reset(pair.b.get()));
        for (const int32_t layer : {3, 4, 0}) {
            check_refused(try_body(pair.ctx.get(), layer, 3), {kOrder}, kBody, {"sequence|seq|step|ds41_decode_prep"});
        }
        CHECK(positions(pair.a.get())[3] == 5);
        if (!destroy) CHECK(positions(pair.b.get()) == std::vector<int64_t>(8, 0));
        // The context is free for another step.
        must(ds41_seq_reset(pair.a.get()));
        Record record;
        prefill(model(), pair.ctx.get(), pair.a.get(), kTapeA, 0, 5, &record);
        check_same(record, whole_prefill(model(), kTapeA, 5), model().config);
    }
    // The same for a prefill.
    Pair pair;
    must(ds41_seq_reset(pair.a.get()));
    for (int32_t layer = 0; layer < 3; layer++) {
        prefill_layer(model(), pair.ctx.get(), pair.a.get(), layer, kTapeA, 0, 5, nullptr);
    }
    must(ds41_seq_reset(pair.a.get()));
    check_refused(try_prefill(model(), pair.ctx.get(), pair.a.get(), 3, 0, 5), {kOrder}, kPrefill, {"layer", "3", "2"});
    Record record;
    prefill(model(), pair.ctx.get(), pair.a.get(), kTapeA, 0, 5, &record);
    check_same(record, pair.record_a, model().config);
}

TEST_CASE("another context that advances a sequence ends the step") {
    for (const bool by_prep : {true, false}) {
        CAPTURE(by_prep);
        Pair pair;
        const std::vector<SpanRun> spans = pair.next_of_both();
        prep(pair.ctx.get(), spans);
        for (int32_t layer = 0; layer < 3; layer++) decode_layer(model(), pair.ctx.get(), layer, spans);
        const std::vector<SpanRun> theirs = {{pair.b.get(), kTapeB, 7, 1, nullptr}};
        if (by_prep) prep(pair.other.get(), theirs);
        if (by_prep) decode_layer(model(), pair.other.get(), 0, theirs);
        if (!by_prep) prefill_layer(model(), pair.other.get(), pair.b.get(), 0, kTapeB, 7, 1, nullptr);
        check_refused(try_body(pair.ctx.get(), 3, 3), {kOrder}, kBody, {"sequence|seq|step|context|ds41_decode_prep"});
        CHECK(positions(pair.b.get()) == std::vector<int64_t>{8, 7, 7, 5, 5, 5, 5, 5});
    }
}

TEST_CASE("a layer that was left out falls behind and refuses to continue") {
    Pair pair;
    const std::vector<SpanRun> both = pair.next_of_both();
    prep(pair.ctx.get(), both);
    decode_layer(model(), pair.ctx.get(), 0, both);
    CHECK(positions(pair.a.get()) == std::vector<int64_t>{6, 5, 5, 5, 5, 5, 5, 5});
    int64_t furthest = -1;
    must(ds41_seq_get_position(pair.a.get(), DS41_ALL_LAYERS, &furthest));
    CHECK(furthest == 6);

    const std::vector<SpanRun> next = {{pair.a.get(), kTapeA, 6, 1, nullptr}};
    prep(pair.ctx.get(), next); // layer 0 stands there
    for (const int32_t layer : {1, 2, 4, 7}) {
        check_refused(try_body(pair.ctx.get(), layer, 1), {kPosition}, kBody,
                      {"layer", std::to_string(layer), "5", "6"});
    }
    decode_layer(model(), pair.ctx.get(), 0, next);
    check_refused(try_prefill(model(), pair.ctx.get(), pair.a.get(), 1, 7, 1), {kPosition}, kPrefill,
                  {"start_pos", "7", "5"});
    const ds41_span nowhere = {pair.a.get(), 6, 1, 0};
    check_refused(ds41_decode_prep(pair.ctx.get(), &nowhere, 1), {kPosition}, "ds41_decode_prep", {"start_pos", "6"});
    // It catches up from where it stands.
    prefill_layer(model(), pair.ctx.get(), pair.a.get(), 1, kTapeA, 5, 2, nullptr);
    CHECK(positions(pair.a.get()) == std::vector<int64_t>{7, 7, 5, 5, 5, 5, 5, 5});
}

TEST_CASE("positions are those of a layer, in range") {
    Pair pair;
    for (const int32_t layer : {-2, 8, INT32_MAX, INT32_MIN}) {
        int64_t position = 77;
        check_refused(ds41_seq_get_position(pair.a.get(), layer, &position), {DS41_STATUS_INVALID_LAYER},
                      "ds41_seq_get_position", {"layer", std::to_string(layer), "7|8"});
        CHECK(position == 77);
        int32_t capturable = 77;
        check_refused(ds41_decode_capturable(pair.ctx.get(), layer, &capturable), {DS41_STATUS_INVALID_LAYER},
                      "ds41_decode_capturable", {"layer", std::to_string(layer), "7|8"});
        CHECK(capturable == 77);
    }
    int32_t capturable = 77;
    must(ds41_decode_capturable(pair.ctx.get(), 0, &capturable));
    CHECK(capturable == (on_device() ? 1 : 0));
}

TEST_CASE("layers without weights are refused by name of the layer") {
    const ds41_config config = small_config();
    TestModel part = empty_model(config);
    for (const int32_t layer : {0, 3, 4}) {
        part.layers.push_back(random_layer(config, layer, Format::bf16, kSeed));
        must(ds41_model_set_layer(part.get(), layer, &part.layers.back().weights));
    }
    const Ctx ctx = new_ctx(part.get());
    const Seq seq = new_seq(part.get());
    check_refused(try_prefill(part, ctx.get(), seq.get(), 1, 0, 2), {kMissing}, kPrefill, {"layer", "1"});
    check_refused(try_prefill(part, ctx.get(), seq.get(), 3, 0, 2), {kOrder}, kPrefill, {"layer", "3", "2"});
    prefill_layer(part, ctx.get(), seq.get(), 0, kTapeA, 0, 2, nullptr);
    check_refused(try_prefill(part, ctx.get(), seq.get(), 7, 0, 2), {kMissing}, kPrefill, {"layer", "7"});
    prefill_layer(part, ctx.get(), seq.get(), 4, kTapeA, 0, 2, nullptr);
    const std::vector<SpanRun> spans = {{seq.get(), kTapeA, 2, 1, nullptr}};
    prep(ctx.get(), spans);
    check_refused(try_body(ctx.get(), 1, 1), {kMissing}, kBody, {"layer", "1"});
    decode_layer(part, ctx.get(), 4, spans);

    const TestModel empty = empty_model(config);
    const Ctx no_ctx = new_ctx(empty.get());
    const Seq no_seq = new_seq(empty.get());
    const ds41_span span = {no_seq.get(), 0, 1, 0};
    check_refused(ds41_decode_prep(no_ctx.get(), &span, 1), {kMissing}, "ds41_decode_prep", {"weights"});
    must(ds41_seq_reserve(no_seq.get(), 100));
    CHECK(ds41_seq_get_bytes(no_seq.get()) == 0);
}

TEST_CASE("any object of a step may go before the others") {
    Pair pair;
    const std::vector<SpanRun> spans = pair.next_of_both();
    prep(pair.ctx.get(), spans);
    decode_layer(model(), pair.ctx.get(), 0, spans);
    pair.ctx.reset(); // the step with it
    const std::vector<SpanRun> again = {{pair.a.get(), kTapeA, 5, 1, nullptr}};
    prep(pair.other.get(), again);
    for (int32_t layer = 1; layer < 8; layer++) decode_layer(model(), pair.other.get(), layer, again);
    pair.a.reset();
    pair.b.reset();
    must(ds41_ctx_synchronize(pair.other.get()));
    pair.other.reset();
}
