// The same tokens give the same bits, however they are run: whole or in chunks of any size, one by one, a few at a
// time, beside other sequences, on other threads, on a sequence that was used before, into its own input.
#include "support.h"

#include <algorithm>
#include <thread>

using namespace api_test;

namespace {

// Past everything that bends: the ring wraps at 8, groups of 4 end often, more than index_topk (6) groups at every
// ratio, more than the candidate blocks hold (12 groups), an odd end.
const int32_t kTokens = is_simulated() ? 29 : 43;

constexpr Format kFormats[] = {Format::bf16,      Format::f32,  Format::fp8,
                               Format::fp8_plain, Format::q2_k, Format::q2_k_plain};

// Wide models cost sixty times as much and bend no later. On the simulated device, all cost that.
bool is_costly(Format format) {
    return config_for(format).dim > 64 || (is_simulated() && format != Format::bf16);
}

int32_t tokens_for(Format format) {
    return !is_costly(format) ? kTokens : is_simulated() ? 9 : 15;
}

std::vector<int32_t> few_or_all(const std::vector<int32_t> &few, const std::vector<int32_t> &all) {
    return is_simulated() ? few : all;
}

Record in_chunks(const TestModel &model, const Tape &tape, int32_t n_tokens, const std::vector<int32_t> &sizes) {
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    Record record;
    int32_t at = 0;
    for (size_t i = 0; at < n_tokens; i++) {
        const int32_t n = std::min(sizes[i % sizes.size()], n_tokens - at);
        prefill(model, ctx.get(), seq.get(), tape, at, n, &record);
        at += n;
    }
    return record;
}

Record decoded(const TestModel &model, const Tape &tape, int32_t n_prefill, int32_t n_tokens,
               const std::vector<int32_t> &sizes, bool in_place = false) {
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    Record record;
    if (n_prefill > 0) prefill(model, ctx.get(), seq.get(), tape, 0, n_prefill, &record);
    int32_t at = n_prefill;
    for (size_t i = 0; at < n_tokens; i++) {
        const int32_t n = std::min(sizes[i % sizes.size()], n_tokens - at);
        decode(model, ctx.get(), {{seq.get(), tape, at, n, &record}}, in_place);
        at += n;
    }
    return record;
}

} // namespace

TEST_CASE("chunks of a prompt give the bits of the whole") {
    for (const Format format : kFormats) {
        CAPTURE(std::string(name_of(format)));
        const TestModel model = random_model(format);
        const int32_t n = tokens_for(format);
        const Record whole = whole_prefill(model, {7}, n);
        for (const int32_t size : few_or_all({3, 9, 31}, {1, 2, 3, 7, 8, 9, 31})) {
            if (size >= n || (is_costly(format) && size != 3 && size != 9)) continue;
            CAPTURE(size);
            check_same(in_chunks(model, {7}, n, {std::min(size, n_same_rows(model))}), whole, model.config);
        }
        check_same(in_chunks(model, {7}, n, {5, 1, 11, 2, 1, 9}), whole, model.config);
    }
}

TEST_CASE("a prompt in the same chunks gives the same bits again, however large they are") {
    const TestModel model = random_model(small_config());
    for (const int32_t size : few_or_all({kTokens, 17}, {kTokens, 31, 17})) {
        CAPTURE(size);
        const Record once = in_chunks(model, {7}, kTokens, {size});
        check_same(in_chunks(model, {7}, kTokens, {size}), once, model.config);
    }
}

TEST_CASE("the same where rows, selection and candidates come from different layers, and without candidates") {
    ds41_config without = small_config();
    without.candidate_source_layer = -1;
    const int32_t n = is_simulated() ? 17 : kTokens;
    for (const ds41_config &config : {chained_config(), without}) {
        const TestModel model = random_model(config);
        const Record whole = whole_prefill(model, {7}, n);
        check_same(in_chunks(model, {7}, n, {3}), whole, config);
        check_same(in_chunks(model, {7}, n, {8}), whole, config);
        check_same(decoded(model, {7}, 9, n, {1, 2}), whole, config);
    }
}

TEST_CASE("decoded tokens give the bits of a prefill, one by one or a few at a time, from odd and even starts") {
    for (const Format format : kFormats) {
        CAPTURE(std::string(name_of(format)));
        const TestModel model = random_model(format);
        const int32_t n = tokens_for(format);
        const Record whole = whole_prefill(model, {7}, n);
        check_same(decoded(model, {7}, 0, n, {1}), whole, model.config);
        check_same(decoded(model, {7}, std::min(9, n / 2), n, {1}, true), whole, model.config);
        if (is_costly(format)) {
            check_same(decoded(model, {7}, 4, n, {2, 3}), whole, model.config);
            continue;
        }
        for (const int32_t start : few_or_all({7}, {0, 1, 7, 8, 11, 12})) {
            CAPTURE(start);
            if (!is_simulated()) check_same(decoded(model, {7}, start, n, {2}), whole, model.config);
            check_same(decoded(model, {7}, start, n, {3}), whole, model.config);
            check_same(decoded(model, {7}, start, n, {1, 4, 2, 9}, true), whole, model.config);
        }
    }
}

TEST_CASE("a sequence gives the same bits alone and among others of any length and position") {
    for (const Format format : {Format::bf16, Format::fp8, Format::q2_k}) {
        CAPTURE(std::string(name_of(format)));
        const TestModel model = random_model(format);
        const Ctx ctx = new_ctx(model.get());
        const int32_t n_steps = (is_costly(format) ? 4 : 12) / (is_simulated() ? 2 : 1);
        struct One {
            Seq seq;
            Tape tape;
            int64_t at;
            Record record;
        };
        std::vector<One> all;
        for (const int32_t n_prefill : few_or_all({0, 5, 9}, {0, 5, 19})) {
            all.push_back({new_seq(model.get()), {static_cast<uint64_t>(100 + n_prefill)}, n_prefill, {}});
            One &one = all.back();
            if (n_prefill > 0) prefill(model, ctx.get(), one.seq.get(), one.tape, 0, n_prefill, &one.record);
        }
        for (int32_t step = 0; step < n_steps; step++) {
            std::vector<SpanRun> spans;
            for (size_t i = 0; i < all.size(); i++) {
                One &one = all[(i + static_cast<size_t>(step)) % all.size()];
                if (step % 4 == 3 && i == 1) continue; // batches of two as well
                const int32_t n = 1 + (step + static_cast<int32_t>(i)) % 3;
                spans.push_back({one.seq.get(), one.tape, one.at, n, &one.record});
                one.at += n;
            }
            decode(model, ctx.get(), spans, step % 2 == 1);
        }
        for (const One &one : all) {
            CAPTURE(one.tape.seed);
            check_same(one.record, whole_prefill(model, one.tape, static_cast<int32_t>(one.at)), model.config);
        }
    }
}

TEST_CASE("many sequences in one step, and x and out side by side") {
    for (const Format format : {Format::bf16, Format::f32}) {
        CAPTURE(std::string(name_of(format)));
        const TestModel model = random_model(format);
        const int64_t dim = model.config.dim;
        const int32_t n_seqs = std::min(17, n_same_rows(model));
        const Ctx ctx = new_ctx(model.get());
        std::vector<Seq> seqs;
        std::vector<Record> records(static_cast<size_t>(n_seqs));
        std::vector<SpanRun> spans;
        const auto length = [](int32_t i) { return is_simulated() ? 1 + i % 3 : 1 + i; };
        for (int32_t i = 0; i < n_seqs; i++) {
            const Tape tape{static_cast<uint64_t>(i)};
            Record &record = records[static_cast<size_t>(i)];
            seqs.push_back(new_seq(model.get()));
            prefill(model, ctx.get(), seqs.back().get(), tape, 0, length(i), &record);
            spans.push_back({seqs.back().get(), tape, length(i), 1, &record});
        }
        prep(ctx.get(), spans);
        for (int32_t layer = 0; layer < model.config.n_compress_ratios; layer++) {
            if (layer != 5) {
                decode_layer(model, ctx.get(), layer, spans);
                continue;
            }
            Rows both(2 * n_seqs * dim); // x first, out right behind it
            for (int32_t i = 0; i < n_seqs; i++) {
                const SpanRun &span = spans[static_cast<size_t>(i)];
                both.put(i * dim, span.tape.rows(model.config, layer, span.start_pos, 1));
            }
            const ds41_tensor x = view(both.at(0), DS41_DTYPE_BF16, {n_seqs, dim});
            const ds41_tensor out = view(both.at(n_seqs * dim), DS41_DTYPE_BF16, {n_seqs, dim});
            must(ds41_decode_body(ctx.get(), layer, &x, &out));
            must(ds41_ctx_synchronize(ctx.get()));
            CHECK(both.guards_intact());
            const std::vector<uint16_t> values = both.values();
            for (int32_t i = 0; i < n_seqs; i++) {
                records[static_cast<size_t>(i)].append(layer, values.data() + (n_seqs + i) * dim, dim);
            }
        }
        for (int32_t i = 0; i < n_seqs; i++) {
            CAPTURE(i);
            check_same(records[static_cast<size_t>(i)], whole_prefill(model, {static_cast<uint64_t>(i)}, length(i) + 1),
                       model.config);
        }
    }
}

TEST_CASE("rows that are aligned to their elements and no further") {
    for (const Format format : {Format::bf16, Format::fp8}) {
        CAPTURE(std::string(name_of(format)));
        const TestModel model = random_model(format);
        const int64_t dim = model.config.dim;
        const Ctx ctx = new_ctx(model.get());
        const Seq seq = new_seq(model.get());
        Record record;
        for (int32_t at = 0, n = 5; at < 7; at += n, n = 2) {
            const ds41_span span = {seq.get(), at, n, 0};
            if (at > 0) must(ds41_decode_prep(ctx.get(), &span, 1));
            for (int32_t layer = 0; layer < model.config.n_compress_ratios; layer++) {
                CAPTURE(layer);
                Rows x(n * dim + 1);
                const Rows out(n * dim + 1);
                x.put(1, Tape{7}.rows(model.config, layer, at, n));
                const ds41_tensor x_view = view(x.at(1), DS41_DTYPE_BF16, {n, dim});
                const ds41_tensor out_view = view(out.at(1), DS41_DTYPE_BF16, {n, dim});
                const uint16_t before = out.values()[0];
                must(at > 0 ? ds41_decode_body(ctx.get(), layer, &x_view, &out_view)
                            : ds41_layer_prefill(ctx.get(), layer, seq.get(), &x_view, n, at, &out_view));
                must(ds41_ctx_synchronize(ctx.get()));
                const std::vector<uint16_t> values = out.values();
                CHECK(x.untouched());
                CHECK(out.guards_intact());
                CHECK(values[0] == before);
                record.append(layer, values.data() + 1, n * dim);
            }
        }
        check_same(record, whole_prefill(model, {7}, 7), model.config);
    }
}

TEST_CASE("what a context is told about threads changes no bit, and is ignored where there are none") {
    const TestModel model = random_model(small_config());
    const Record expected = whole_prefill(model, {7}, 7);
    int n_calls = 0;
    for (const int32_t n_threads : {0, 1, 3}) {
        CAPTURE(n_threads);
        ds41_ctx_options options;
        ds41_ctx_options_init(&options, sizeof(options));
        options.n_threads = n_threads;
        if (n_threads == 1) options.flags = DS41_CTX_PIN_THREADS;
        if (n_threads == 3) {
            options.parallel = [](int32_t n, ds41_task_fn task, void *task_arg, void *user) {
                ++*static_cast<int *>(user);
                for (int32_t i = 0; i < n; i++) task(task_arg, i);
            };
            options.parallel_user = &n_calls;
        }
        ds41_ctx *created = nullptr;
        must(ds41_ctx_create(&created, model.get(), &options));
        const Ctx ctx(created);
        const Seq seq = new_seq(model.get());
        Record record;
        prefill(model, ctx.get(), seq.get(), {7}, 0, 5, &record);
        decode(model, ctx.get(), {{seq.get(), {7}, 5, 2, &record}});
        check_same(record, expected, model.config);
    }
    if (std::string(ds41_model_get_backend(model.get())) != "cpu") CHECK(n_calls == 0);
}

TEST_CASE("a reset sequence is a fresh one, reserved memory or not") {
    const TestModel model = random_model(small_config());
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    const int32_t n_tokens = is_simulated() ? 15 : 23;
    for (const int32_t n_before : few_or_all({7, 30}, {1, 7, 30, 60})) {
        prefill(model, ctx.get(), seq.get(), {static_cast<uint64_t>(n_before)}, 0, n_before, nullptr);
        must(ds41_seq_reset(seq.get()));
        for (int32_t layer = DS41_ALL_LAYERS; layer < model.config.n_compress_ratios; layer++) {
            int64_t position = -1;
            must(ds41_seq_get_position(seq.get(), layer, &position));
            CHECK(position == 0);
        }
        Record record;
        prefill(model, ctx.get(), seq.get(), {7}, 0, 10, &record);
        for (int32_t at = 10; at < n_tokens; at++) decode(model, ctx.get(), {{seq.get(), {7}, at, 1, &record}});
        check_same(record, whole_prefill(model, {7}, n_tokens), model.config);
        must(ds41_seq_reset(seq.get()));
        must(ds41_seq_reserve(seq.get(), 2 * n_before));
    }
}

TEST_CASE("an abandoned step leaves nothing behind") {
    const TestModel model = random_model(small_config());
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get()), noise = new_seq(model.get());
    Record record;
    const int32_t n_tokens = is_simulated() ? 9 : 24;
    for (int32_t at = 0; at < n_tokens; at++) {
        prep(ctx.get(), {{seq.get(), {7}, at, 1, nullptr}, {noise.get(), {8}, 0, 3, nullptr}}); // never run
        decode(model, ctx.get(), {{seq.get(), {7}, at, 1, &record}});
        if (at % 5 == 0) prefill_layer(model, ctx.get(), noise.get(), 4, {8}, at / 5, 1, nullptr); // upper layers only
    }
    check_same(record, whole_prefill(model, {7}, n_tokens), model.config);
}

TEST_CASE("contexts on several threads share a model") {
    const TestModel model = random_model(small_config());
    const int32_t n = is_simulated() ? 15 : kTokens;
    const Record whole = whole_prefill(model, {7}, n);
    constexpr int kThreads = 3;
    std::vector<Record> records(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++) {
        threads.emplace_back([&model, &records, n, i] {
            try {
                for (int round = is_simulated() ? 1 : 0; round < 2; round++) {
                    Record record = i == 0 ? in_chunks(model, {7}, n, {4, 9}) : decoded(model, {7}, 5 * i, n, {1, 2});
                    if (round == 1) records[static_cast<size_t>(i)] = std::move(record);
                }
            } catch (...) {
                // A REQUIRE that failed, reported already. It must not leave the thread; the record stays empty.
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    for (const Record &record : records) check_same(record, whole, model.config);
}

TEST_CASE("torch's rule: chunks that know the prompt's end give the bits of the whole") {
    const ds41_config config = small_config();
    const ds41_model_options options = tested_options(DS41_TOPK_TORCH_CPU);
    ds41_model *created = nullptr;
    const ds41_status status = ds41_model_create(&created, &config, &options);
    if (status == DS41_STATUS_UNSUPPORTED) return;
    must(status);
    ds41_model_destroy(created);
    // The whole in one: with F32 weights where BF16 ones would have it in parts.
    const TestModel model =
        random_model(config, on_device() ? Format::f32 : Format::bf16, kSeed, DS41_OWNERSHIP_COPY, DS41_TOPK_TORCH_CPU);
    REQUIRE(n_same_rows(model) >= kTokens);
    const Record whole = whole_prefill(model, {7}, kTokens);
    for (const int32_t size : few_or_all({3, 20}, {1, 3, 8, 20})) {
        CAPTURE(size);
        ds41_ctx_options ctx_options;
        ds41_ctx_options_init(&ctx_options, sizeof(ctx_options));
        ctx_options.topk_end_pos = kTokens;
        ds41_ctx *ctx_created = nullptr;
        must(ds41_ctx_create(&ctx_created, model.get(), &ctx_options));
        const Ctx ctx(ctx_created);
        const Seq seq = new_seq(model.get());
        Record record;
        for (int32_t at = 0; at < kTokens; at += size) {
            prefill(model, ctx.get(), seq.get(), {7}, at, std::min(size, kTokens - at), &record);
        }
        check_same(record, whole, config);
    }
}
