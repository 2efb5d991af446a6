// The same tokens give the same bits, however they are run: whole or in chunks of any size, one by one, a few at a
// time, beside other sequences, on other threads, on a sequence that was used before, into its own input.
#include "support.h"

#include <algorithm>
#include <thread>

using namespace api_test;

namespace {

// Past everything that bends: the ring wraps at 8, groups of 4 end often, more than index_topk (6) groups at every
// ratio, more than the candidate blocks hold (12 groups), an odd end.
constexpr int32_t kTokens = 43;

constexpr Format kFormats[] = {Format::bf16,      Format::f32,  Format::fp8,
                               Format::fp8_plain, Format::q2_k, Format::q2_k_plain};

// Wide models cost sixty times as much and bend no later.
int32_t tokens_for(Format format) {
    return config_for(format).dim > 64 ? 15 : kTokens;
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
        const bool wide = model.config.dim > 64;
        for (const int32_t size : {1, 2, 3, 7, 8, 9, 31}) {
            if (wide && size != 3 && size != 9) continue;
            CAPTURE(size);
            check_same(in_chunks(model, {7}, n, {size}), whole, model.config);
        }
        check_same(in_chunks(model, {7}, n, {5, 1, 11, 2, 1, 9}), whole, model.config);
    }
}

TEST_CASE("the same where rows, selection and candidates come from different layers, and without candidates") {
    ds41_config without = small_config();
    without.candidate_source_layer = -1;
    for (const ds41_config &config : {chained_config(), without}) {
        const TestModel model = random_model(config);
        const Record whole = whole_prefill(model, {7}, kTokens);
        check_same(in_chunks(model, {7}, kTokens, {3}), whole, config);
        check_same(in_chunks(model, {7}, kTokens, {8}), whole, config);
        check_same(decoded(model, {7}, 9, kTokens, {1, 2}), whole, config);
    }
}

TEST_CASE("decoded tokens give the bits of a prefill, one by one or a few at a time, from odd and even starts") {
    for (const Format format : kFormats) {
        CAPTURE(std::string(name_of(format)));
        const TestModel model = random_model(format);
        const int32_t n = tokens_for(format);
        const Record whole = whole_prefill(model, {7}, n);
        check_same(decoded(model, {7}, 0, n, {1}), whole, model.config);
        check_same(decoded(model, {7}, 9, n, {1}, true), whole, model.config);
        if (model.config.dim > 64) {
            check_same(decoded(model, {7}, 4, n, {2, 3}), whole, model.config);
            continue;
        }
        for (const int32_t start : {0, 1, 7, 8, 11, 12}) {
            CAPTURE(start);
            check_same(decoded(model, {7}, start, n, {2}), whole, model.config);
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
        const int32_t n_steps = model.config.dim > 64 ? 4 : 12;
        struct One {
            Seq seq;
            Tape tape;
            int64_t at;
            Record record;
        };
        std::vector<One> all;
        for (const int32_t n_prefill : {0, 5, 19}) {
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
    const TestModel model = random_model(small_config());
    const int64_t dim = model.config.dim;
    constexpr int32_t kSeqs = 17;
    const Ctx ctx = new_ctx(model.get());
    std::vector<Seq> seqs;
    std::vector<Record> records(kSeqs);
    std::vector<SpanRun> spans;
    for (int32_t i = 0; i < kSeqs; i++) {
        seqs.push_back(new_seq(model.get()));
        prefill(model, ctx.get(), seqs.back().get(), {static_cast<uint64_t>(i)}, 0, i + 1,
                &records[static_cast<size_t>(i)]);
        spans.push_back({seqs.back().get(), {static_cast<uint64_t>(i)}, i + 1, 1, &records[static_cast<size_t>(i)]});
    }
    prep(ctx.get(), spans);
    for (int32_t layer = 0; layer < model.config.n_compress_ratios; layer++) {
        if (layer != 5) {
            decode_layer(model, ctx.get(), layer, spans);
            continue;
        }
        Guarded both(2 * kSeqs * dim); // x first, out right behind it
        for (int32_t i = 0; i < kSeqs; i++) {
            const std::vector<uint16_t> row = spans[static_cast<size_t>(i)].tape.rows(model.config, layer, i + 1, 1);
            std::copy(row.begin(), row.end(), both.data() + i * dim);
        }
        const ds41_tensor x = view(both.data(), DS41_DTYPE_BF16, {kSeqs, dim});
        const ds41_tensor out = view(both.data() + kSeqs * dim, DS41_DTYPE_BF16, {kSeqs, dim});
        must(ds41_decode_body(ctx.get(), layer, &x, &out));
        must(ds41_ctx_synchronize(ctx.get()));
        CHECK(both.guards_intact());
        for (int32_t i = 0; i < kSeqs; i++) {
            records[static_cast<size_t>(i)].append(layer, both.data() + (kSeqs + i) * dim, dim);
        }
    }
    for (int32_t i = 0; i < kSeqs; i++) {
        CAPTURE(i);
        check_same(records[static_cast<size_t>(i)], whole_prefill(model, {static_cast<uint64_t>(i)}, i + 2),
                   model.config);
    }
}

TEST_CASE("a reset sequence is a fresh one, reserved memory or not") {
    const TestModel model = random_model(small_config());
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    for (const int32_t n_before : {1, 7, 30, 60}) {
        prefill(model, ctx.get(), seq.get(), {static_cast<uint64_t>(n_before)}, 0, n_before, nullptr);
        must(ds41_seq_reset(seq.get()));
        for (int32_t layer = DS41_ALL_LAYERS; layer < model.config.n_compress_ratios; layer++) {
            int64_t position = -1;
            must(ds41_seq_get_position(seq.get(), layer, &position));
            CHECK(position == 0);
        }
        Record record;
        prefill(model, ctx.get(), seq.get(), {7}, 0, 10, &record);
        for (int32_t at = 10; at < 23; at++) decode(model, ctx.get(), {{seq.get(), {7}, at, 1, &record}});
        check_same(record, whole_prefill(model, {7}, 23), model.config);
        must(ds41_seq_reset(seq.get()));
        must(ds41_seq_reserve(seq.get(), 2 * n_before));
    }
}

TEST_CASE("an abandoned step leaves nothing behind") {
    const TestModel model = random_model(small_config());
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get()), noise = new_seq(model.get());
    Record record;
    for (int32_t at = 0; at < 24; at++) {
        prep(ctx.get(), {{seq.get(), {7}, at, 1, nullptr}, {noise.get(), {8}, 0, 3, nullptr}}); // never run
        decode(model, ctx.get(), {{seq.get(), {7}, at, 1, &record}});
        if (at % 5 == 0) prefill_layer(model, ctx.get(), noise.get(), 4, {8}, at / 5, 1, nullptr); // upper layers only
    }
    check_same(record, whole_prefill(model, {7}, 24), model.config);
}

TEST_CASE("contexts on several threads share a model") {
    const TestModel model = random_model(small_config());
    const Record whole = whole_prefill(model, {7}, kTokens);
    constexpr int kThreads = 3;
    std::vector<Record> records(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++) {
        threads.emplace_back([&model, &records, i] {
            try {
                for (int round = 0; round < 2; round++) {
                    Record record =
                        i == 0 ? in_chunks(model, {7}, kTokens, {4, 9}) : decoded(model, {7}, 5 * i, kTokens, {1, 2});
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
    ds41_model_options options;
    ds41_model_options_init(&options, sizeof(options));
    options.topk_rule = DS41_TOPK_TORCH_CPU;
    ds41_model *created = nullptr;
    const ds41_status status = ds41_model_create(&created, &config, &options);
    if (status == DS41_STATUS_UNSUPPORTED) return;
    must(status);
    ds41_model_destroy(created);
    const TestModel model = random_model(config, Format::bf16, kSeed, DS41_OWNERSHIP_COPY, DS41_TOPK_TORCH_CPU);
    const Record whole = whole_prefill(model, {7}, kTokens);
    for (const int32_t size : {1, 3, 8, 20}) {
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
