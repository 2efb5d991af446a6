// A caller's stream: a context enqueues on it and on no other, and its work is over when the stream is. Needs the
// insides for a stream of the simulated device, which a program without CUDA has no other way to make.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "support.h"

#include "backend/cuda/plugin.h"

using namespace api_test;

namespace {

const ds41::DeviceFunctions &device() {
    return is_simulated() ? *ds41::sim_plugin().functions() : *ds41::cuda_plugin().functions();
}

// Two layers over five tokens, then `wait`; what comes out.
template <typename Wait> std::vector<uint16_t> run_on(const TestModel &model, void *stream, Wait wait) {
    constexpr int32_t kTokens = 5;
    const int64_t shape[] = {kTokens, model.config.dim};
    std::vector<uint16_t> rows = Tape{kSeed}.rows(model.config, 0, 0, kTokens);
    const uint64_t n_bytes = rows.size() * sizeof rows[0];
    ds41_ctx_options options;
    ds41_ctx_options_init(&options, sizeof options);
    options.stream = stream;
    ds41_ctx *ctx = nullptr;
    must(ds41_ctx_create(&ctx, model.get(), &options));
    const Seq seq = new_seq(model.get());
    ds41_buffer *buffer = nullptr;
    must(ds41_buffer_create(&buffer, model.get(), n_bytes));
    must(ds41_buffer_upload(buffer, 0, rows.data(), n_bytes));
    ds41_tensor x;
    ds41_tensor_init(&x, ds41_buffer_get_data(buffer), DS41_DTYPE_BF16, 2, shape);
    for (const int32_t layer : {0, 1}) must(ds41_layer_prefill(ctx, layer, seq.get(), &x, kTokens, 0, &x));
    wait(ctx);
    must(ds41_buffer_download(buffer, 0, rows.data(), n_bytes)); // refused if anything were still on its way
    ds41_buffer_destroy(buffer);
    ds41_ctx_destroy(ctx);
    return rows;
}

} // namespace

TEST_CASE("a context works on the caller's stream, which outlives it") {
    const TestModel model = random_model(Format::bf16);
    ds41::DeviceStream stream = nullptr;
    REQUIRE(device().create_stream(&stream) == 0);
    const auto own = run_on(model, nullptr, [](ds41_ctx *ctx) { must(ds41_ctx_synchronize(ctx)); });
    const auto callers = run_on(model, stream, [&](ds41_ctx *) { REQUIRE(device().synchronize(stream) == 0); });
    CHECK(own == callers);
    CHECK(own != Tape{kSeed}.rows(model.config, 0, 0, 5));
    // The context is gone; the stream still serves.
    CHECK(run_on(model, stream, [](ds41_ctx *ctx) { must(ds41_ctx_synchronize(ctx)); }) == own);
    device().destroy_stream(stream);
}
