// The cpu backend gives the same bits on one thread, on several, pinned or not, and through a caller's parallel-for.
// DS41_CPU_TARGET chooses the instruction set; one that this machine does not have is skipped (exit status 77).
#define DOCTEST_CONFIG_IMPLEMENT
#include "support.h"

#include <atomic>
#include <cstdlib>
#include <thread>

using namespace api_test;

namespace {

// Work in one layer is more than one thread is woken for, from a few tokens on.
ds41_config heavy_config() {
    ds41_config config = wide_config();
    config.n_heads = 8;
    config.head_dim = 256;
    config.q_lora_rank = 512;
    config.o_lora_rank = 256;
    return config;
}

struct Host {
    std::atomic<int> n_calls{0};
};

void in_threads(int32_t n, ds41_task_fn task, void *task_arg, void *user) {
    ++static_cast<Host *>(user)->n_calls;
    std::vector<std::thread> threads;
    for (int32_t i = 1; i < n; i++) threads.emplace_back(task, task_arg, i);
    task(task_arg, 0);
    for (std::thread &thread : threads) thread.join();
}

void in_reverse(int32_t n, ds41_task_fn task, void *task_arg, void *user) {
    ++static_cast<Host *>(user)->n_calls;
    for (int32_t i = n; i-- > 0;) task(task_arg, i);
}

Ctx ctx_with(ds41_model *model, const ds41_ctx_options &options) {
    ds41_ctx *ctx = nullptr;
    must(ds41_ctx_create(&ctx, model, &options));
    return Ctx(ctx);
}

// A prompt in two chunks, then steps of two sequences of one and of three tokens.
std::vector<Record> run(const TestModel &model, const ds41_ctx_options &options) {
    const Ctx ctx = ctx_with(model.get(), options);
    std::vector<Seq> seqs;
    std::vector<Record> records(2);
    for (size_t s = 0; s < 2; s++) {
        seqs.push_back(new_seq(model.get()));
        prefill(model, ctx.get(), seqs[s].get(), {s}, 0, 11, &records[s]);
        prefill(model, ctx.get(), seqs[s].get(), {s}, 11, 6, &records[s]);
    }
    for (int64_t at = 17; at < 25; at += 4) {
        decode(model, ctx.get(), {{seqs[0].get(), {0}, at, 1, &records[0]}, {seqs[1].get(), {1}, at, 1, &records[1]}});
        decode(model, ctx.get(),
               {{seqs[0].get(), {0}, at + 1, 3, &records[0]}, {seqs[1].get(), {1}, at + 1, 3, &records[1]}});
    }
    return records;
}

ds41_ctx_options threads(int32_t n) {
    ds41_ctx_options options;
    ds41_ctx_options_init(&options, sizeof(options));
    options.n_threads = n;
    return options;
}

} // namespace

TEST_CASE("one thread, several, pinned, as many as there are CPUs, and a caller's parallel-for: the same bits") {
    for (const Format format : {Format::bf16, Format::f32, Format::fp8, Format::fp8_plain, Format::q2_k}) {
        CAPTURE(std::string(name_of(format)));
        const TestModel model = random_model(heavy_config(), format);
        const std::vector<Record> alone = run(model, threads(1));
        const auto check = [&](const ds41_ctx_options &options) {
            const std::vector<Record> records = run(model, options);
            for (size_t s = 0; s < 2; s++) check_same(records[s], alone[s], model.config);
        };
        for (const int32_t n : {2, 3, 0}) check(threads(n));
        ds41_ctx_options options = threads(3);
        options.flags = DS41_CTX_PIN_THREADS;
        check(options);
        for (const ds41_parallel_fn parallel : {in_threads, in_reverse}) {
            Host host;
            options = threads(3);
            options.parallel = parallel;
            options.parallel_user = &host;
            check(options);
            CHECK(host.n_calls > 0);
        }
    }
}

TEST_CASE("contexts with threads of their own run side by side") {
    const TestModel model = random_model(heavy_config(), Format::bf16);
    const std::vector<Record> alone = run(model, threads(1));
    std::vector<std::vector<Record>> records(2);
    std::vector<std::thread> hosts;
    for (size_t i = 0; i < 2; i++) {
        hosts.emplace_back([&, i] {
            try {
                records[i] = run(model, threads(2));
            } catch (...) {
                // A REQUIRE that failed, reported already.
            }
        });
    }
    for (std::thread &host : hosts) host.join();
    for (const auto &of_host : records) {
        REQUIRE(of_host.size() == 2);
        for (size_t s = 0; s < 2; s++) check_same(of_host[s], alone[s], model.config);
    }
}

TEST_CASE("an instruction set that there is not is refused with the names of those that there are") {
    const TestModel model = random_model(small_config());
    const char *before = std::getenv("DS41_CPU_TARGET");
    const std::string kept = before ? before : "";
    setenv("DS41_CPU_TARGET", "NONESUCH", 1);
    ds41_ctx *ctx = nullptr;
    check_refused(ds41_ctx_create(&ctx, model.get(), nullptr), {DS41_STATUS_NO_BACKEND}, "ds41_ctx_create",
                  {"DS41_CPU_TARGET", "NONESUCH", "EMU128|NEON|SSE4|AVX2"});
    CHECK(ctx == nullptr);
    setenv("DS41_CPU_TARGET", "", 1); // as if it were not set
    CHECK(ds41_ctx_create(&ctx, model.get(), nullptr) == DS41_STATUS_OK);
    ds41_ctx_destroy(ctx);
    if (kept.empty())
        unsetenv("DS41_CPU_TARGET");
    else
        setenv("DS41_CPU_TARGET", kept.c_str(), 1);
}

int main(int argc, char **argv) {
    if (std::getenv("DS41_CPU_TARGET")) {
        const TestModel model = random_model(small_config());
        ds41_ctx *ctx = nullptr;
        const ds41_status status = ds41_ctx_create(&ctx, model.get(), nullptr);
        ds41_ctx_destroy(ctx);
        if (status == DS41_STATUS_NO_BACKEND) return 77;
    }
    return doctest::Context(argc, argv).run();
}
