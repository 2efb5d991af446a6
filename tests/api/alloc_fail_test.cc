// Running out of memory: every allocation of every call is refused once. A call answers DS41_STATUS_OUT_OF_MEMORY,
// leaks nothing and changes nothing, so that the same call made again gives the bits of a run that never failed.
#define DOCTEST_CONFIG_IMPLEMENT
#include "support_checkpoint.h"

#include "failing_alloc.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

using namespace api_test;

namespace {

constexpr Tape kTape{7};
constexpr int32_t kPrompt = 13;
constexpr int32_t kEnd = 17;

// What survives a call that failed.
enum class Keeps { nothing, pages };

// Repeat a call, its n-th allocation refused for n = 0, 1, 2, ..., until it succeeds. `after_failure` sees each
// failure.
template <typename Call, typename After>
int64_t survive(const char *function, Keeps keeps, Call &&call, After &&after_failure) {
    CAPTURE(std::string(function));
    for (int64_t n = 0; n < 100000; n++) {
        CAPTURE(n);
        const int64_t live = live_allocations();
        ds41_status status;
        bool refused;
        {
            const AllocationScope scope(n);
            status = call();
            refused = scope.failed();
        }
        if (status == DS41_STATUS_OK) return n;
        REQUIRE_MESSAGE(refused, ds41_last_error());
        check_refused(status, {DS41_STATUS_OUT_OF_MEMORY}, function, {"memory"});
        if (keeps == Keeps::nothing) CHECK(live_allocations() == live);
        after_failure();
    }
    FAIL("a call that never succeeds");
    return -1;
}

template <typename Call> int64_t survive(const char *function, Call &&call) {
    return survive(function, Keeps::nothing, call, [] {});
}

struct TapCount {
    int64_t n = 0;
};

void count_tap(const ds41_tap *, void *user) {
    const OutsideLibrary outside;
    static_cast<TapCount *>(user)->n++;
}

int64_t position_of(ds41_seq *seq, int32_t layer) {
    int64_t position = -1;
    must(ds41_seq_get_position(seq, layer, &position));
    return position;
}

void prefill_through_failures(const TestModel &model, ds41_ctx *ctx, ds41_seq *seq, int64_t start, int32_t n,
                              Record &record) {
    const int64_t dim = model.config.dim;
    for (int32_t layer = 0; layer < model.config.n_compress_ratios; layer++) {
        const Rows x(kTape.rows(model.config, layer, start, n));
        const Rows out(n * dim);
        const ds41_tensor x_view = view(x.at(0), DS41_DTYPE_BF16, {n, dim});
        const ds41_tensor out_view = view(out.at(0), DS41_DTYPE_BF16, {n, dim});
        survive(
            "ds41_layer_prefill", Keeps::pages,
            [&] { return ds41_layer_prefill(ctx, layer, seq, &x_view, n, start, &out_view); },
            [&] {
                CHECK(out.untouched());
                CHECK(position_of(seq, layer) == start);
            });
        must(ds41_ctx_synchronize(ctx));
        CHECK(out.guards_intact());
        record.append(layer, out.values());
    }
}

// The allocations of the bodies of one decode step, failures survived.
int64_t decode_through_failures(const TestModel &model, ds41_ctx *ctx, ds41_seq *seq, int64_t start, int32_t n,
                                Record &record) {
    const int64_t dim = model.config.dim;
    const ds41_span span = {seq, start, n, 0};
    survive(
        "ds41_decode_prep", Keeps::pages, [&] { return ds41_decode_prep(ctx, &span, 1); },
        [&] { CHECK(position_of(seq, DS41_ALL_LAYERS) == start); });
    int64_t n_failures = 0;
    for (int32_t layer = 0; layer < model.config.n_compress_ratios; layer++) {
        const Rows x(kTape.rows(model.config, layer, start, n));
        const Rows out(n * dim);
        const ds41_tensor x_view = view(x.at(0), DS41_DTYPE_BF16, {n, dim});
        const ds41_tensor out_view = view(out.at(0), DS41_DTYPE_BF16, {n, dim});
        n_failures += survive(
            "ds41_decode_body", Keeps::nothing, [&] { return ds41_decode_body(ctx, layer, &x_view, &out_view); },
            [&] {
                CHECK(out.untouched());
                CHECK(position_of(seq, layer) == start);
            });
        must(ds41_ctx_synchronize(ctx));
        record.append(layer, out.values());
    }
    return n_failures;
}

// A program that gives up at the first failure and destroys what it has.
bool live_until_failure(const std::vector<LayerStorage> &layers, int64_t fail_at) {
    int64_t left = fail_at;
    const auto done = [&left](auto &&call) {
        const AllocationScope scope(left);
        const ds41_status status = call();
        left = std::max<int64_t>(-1, left - scope.n_allocations());
        return status == DS41_STATUS_OK;
    };
    const ds41_config config = small_config();
    const int64_t dim = config.dim;
    ds41_model *model = nullptr;
    if (!done([&] { return ds41_model_create(&model, &config, nullptr); })) return false;
    const Model model_owner(model);
    for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) {
        const ds41_layer_weights &weights = layers[static_cast<size_t>(layer)].weights;
        if (!done([&] { return ds41_model_set_layer(model, layer, &weights); })) return false;
    }
    ds41_ctx *ctx = nullptr;
    if (!done([&] { return ds41_ctx_create(&ctx, model, nullptr); })) return false;
    const Ctx ctx_owner(ctx);
    ds41_seq *seq = nullptr;
    if (!done([&] { return ds41_seq_create(&seq, model); })) return false;
    const Seq seq_owner(seq);
    TapCount taps;
    if (!done([&] { return ds41_ctx_set_tap(ctx, nullptr, 0, count_tap, &taps); })) return false;
    const Rows x(std::vector<uint16_t>(static_cast<size_t>(5 * dim), 0x3F80));
    const Rows out(5 * dim);
    const ds41_tensor x_view = view(x.at(0), DS41_DTYPE_BF16, {5, dim});
    const ds41_tensor out_view = view(out.at(0), DS41_DTYPE_BF16, {5, dim});
    for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) {
        if (!done([&] { return ds41_layer_prefill(ctx, layer, seq, &x_view, 5, 0, &out_view); })) return false;
    }
    const ds41_span span = {seq, 5, 5, 0};
    if (!done([&] { return ds41_decode_prep(ctx, &span, 1); })) return false;
    for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) {
        if (!done([&] { return ds41_decode_body(ctx, layer, &x_view, &out_view); })) return false;
    }
    return true;
}

// Valgrind puts its operator new in the place of every other. To be asked here: where operator delete is defined, calls
// of it are not redirected.
bool allocations_are_counted() {
    const AllocationScope scope;
    char *volatile block = new char;
    delete block;
    return scope.n_allocations() > 0;
}

} // namespace

TEST_CASE("reading a configuration and a file") {
    const ds41_config expected = small_config();
    const std::string json = to_json(expected);
    const TempFile config_file(json);
    const TempFile tensors(safetensors(R"({"__metadata__":{"a":"b"},"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
                                           "u":{"dtype":"U8","shape":[2,2],"data_offsets":[4,8]}})",
                                       "12345678"));
    const int64_t live = live_allocations();
    ds41_config config;
    ds41_config_init(&config, sizeof(config));
    ds41_config before = config;
    const auto unchanged = [&] { CHECK(std::memcmp(&config, &before, sizeof(config)) == 0); };
    CHECK(survive(
              "ds41_config_parse", Keeps::nothing, [&] { return ds41_config_parse(&config, json.data(), json.size()); },
              unchanged) > 0);
    CHECK(std::memcmp(&config, &expected, sizeof(config)) == 0);
    config = before;
    CHECK(survive(
              "ds41_config_load", Keeps::nothing, [&] { return ds41_config_load(&config, config_file.path()); },
              unchanged) > 0);
    CHECK(std::memcmp(&config, &expected, sizeof(config)) == 0);
    survive("ds41_config_validate", [&] { return ds41_config_validate(&config); });

    ds41_file *file = nullptr;
    CHECK(survive(
              "ds41_file_load", Keeps::nothing, [&] { return ds41_file_load(&file, tensors.path()); },
              [&] { CHECK(file == nullptr); }) > 0);
    ds41_tensor tensor;
    survive("ds41_file_get_tensor", [&] { return ds41_file_get_tensor(file, "u", &tensor); });
    CHECK(std::memcmp(tensor.data, "5678", 4) == 0);
    ds41_file_destroy(file);
    CHECK(live_allocations() == live);
}

TEST_CASE("opening and loading a checkpoint") {
    const TestModel original = random_model(Format::fp8);
    const Record expected = whole_prefill(original, kTape, kPrompt);
    const CheckpointFolder folder(original);
    const int64_t live = live_allocations();
    {
        ds41_checkpoint *opened = nullptr;
        CHECK(survive(
                  "ds41_checkpoint_load", Keeps::nothing, [&] { return ds41_checkpoint_load(&opened, folder.path()); },
                  [&] { CHECK(opened == nullptr); }) > 0);
        const Checkpoint checkpoint(opened);
        ds41_checkpoint_tensor tensor;
        ds41_checkpoint_tensor_init(&tensor, sizeof(tensor));
        survive("ds41_checkpoint_get_tensor", [&] { return ds41_checkpoint_get_tensor(opened, 3, &tensor); });
        ds41_memory memory;
        ds41_memory_init(&memory, sizeof(memory));
        survive("ds41_checkpoint_estimate_memory",
                [&] { return ds41_checkpoint_estimate_memory(opened, nullptr, 1, 100, 1, &memory); });
    }
    CHECK(live_allocations() == live);
    for (const uint32_t flags : {0u, DS41_LOAD_MAP, DS41_LOAD_EXPAND_FP8}) {
        CAPTURE(flags);
        ds41_load_options options;
        ds41_load_options_init(&options, sizeof(options));
        options.flags = flags;
        options.n_threads = 1; // refusals are counted on this thread
        ds41_model *loaded = nullptr;
        CHECK(survive(
                  "ds41_model_load", Keeps::nothing, [&] { return ds41_model_load(&loaded, folder.path(), &options); },
                  [&] { CHECK(loaded == nullptr); }) > 0);
        TestModel model{original.config, {}, nullptr};
        model.handle.reset(loaded);
        const Record record = whole_prefill(model, kTape, kPrompt);
        if (flags != DS41_LOAD_EXPAND_FP8) check_same(record, expected, original.config);
    }
    CHECK(live_allocations() == live);
}

TEST_CASE("a load on several threads that runs out of memory anywhere") {
    const TestModel original = random_model(Format::bf16);
    const CheckpointFolder folder(original);
    ds41_load_options options;
    ds41_load_options_init(&options, sizeof(options));
    options.n_threads = 3;
    int64_t n_refused = 0;
    for (int64_t n = 0; n < 100000; n++) {
        ds41_model *loaded = nullptr;
        ds41_status status;
        bool refused;
        {
            const AllocationScope scope(n);
            status = ds41_model_load(&loaded, folder.path(), &options);
            refused = scope.failed();
        }
        const Model owner(loaded);
        // A thread that cannot be had is done without.
        CHECK((status == DS41_STATUS_OK || (status == DS41_STATUS_OUT_OF_MEMORY && refused)));
        CHECK((loaded != nullptr) == (status == DS41_STATUS_OK));
        n_refused += refused;
        if (!refused) break;
    }
    CHECK(n_refused > 100);
}

TEST_CASE("text that is refused does not leak") {
    const int64_t live = live_allocations();
    const std::string json = to_json(small_config());
    for (size_t n = 0; n < json.size(); n += 7) {
        ds41_config config;
        ds41_config_init(&config, sizeof(config));
        ds41_status status;
        {
            const AllocationScope scope;
            status = ds41_config_parse(&config, json.data(), n);
        }
        CHECK(status == DS41_STATUS_INVALID_FILE);
    }
    CHECK(live_allocations() == live);
}

TEST_CASE("a whole life, every allocation refused once") {
    const ds41_config config = small_config();
    Record expected;
    std::vector<LayerStorage> layers;
    {
        const TestModel undisturbed = random_model(config);
        expected = whole_prefill(undisturbed, kTape, kEnd);
        for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) {
            layers.push_back(random_layer(config, layer, Format::bf16, kSeed));
        }
    }
    const int64_t live = live_allocations();
    {
        TestModel model{config, {}, nullptr};
        ds41_model *created = nullptr;
        CHECK(survive(
                  "ds41_model_create", Keeps::nothing, [&] { return ds41_model_create(&created, &config, nullptr); },
                  [&] { CHECK(created == nullptr); }) > 0);
        model.handle.reset(created);
        for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) {
            CHECK(survive("ds41_model_set_layer", [&] {
                      return ds41_model_set_layer(created, layer, &layers[static_cast<size_t>(layer)].weights);
                  }) > 0);
        }
        ds41_memory memory;
        ds41_memory_init(&memory, sizeof(memory));
        survive("ds41_model_estimate_memory", [&] { return ds41_model_estimate_memory(created, 1, kEnd, 1, &memory); });

        ds41_buffer *buffer = nullptr;
        CHECK(survive(
                  "ds41_buffer_create", Keeps::nothing, [&] { return ds41_buffer_create(&buffer, created, 1000); },
                  [&] { CHECK(buffer == nullptr); }) > 0);
        const Buffer buffer_owner(buffer);

        // A context or sequence that could not be created has not made the model immutable.
        const auto still_open = [&] { must(ds41_model_set_layer(created, 0, &layers[0].weights)); };
        ds41_ctx *ctx = nullptr;
        CHECK(survive(
                  "ds41_ctx_create", Keeps::nothing, [&] { return ds41_ctx_create(&ctx, created, nullptr); },
                  [&] {
                      CHECK(ctx == nullptr);
                      still_open();
                  }) > 0);
        const Ctx ctx_owner(ctx);
        ds41_seq *seq = nullptr;
        CHECK(survive(
                  "ds41_seq_create", Keeps::nothing, [&] { return ds41_seq_create(&seq, created); },
                  [&] { CHECK(seq == nullptr); }) > 0);
        const Seq seq_owner(seq);
        Record record;
        prefill_through_failures(model, ctx, seq, 0, kPrompt, record);
        CHECK(decode_through_failures(model, ctx, seq, kPrompt, 1, record) == 0); // a body allocates nothing

        TapCount taps;
        const char *const names[] = {"q", "scores", "idx", "ring", "state_kv"};
        survive("ds41_ctx_set_tap", [&] { return ds41_ctx_set_tap(ctx, names, 5, count_tap, &taps); });
        decode_through_failures(model, ctx, seq, kPrompt + 1, 2, record);
        CHECK(taps.n > 0);
        survive("ds41_ctx_set_tap", [&] { return ds41_ctx_set_tap(ctx, nullptr, 0, nullptr, nullptr); });
        survive(
            "ds41_seq_reserve", Keeps::pages, [&] { return ds41_seq_reserve(seq, 100); },
            [&] { CHECK(position_of(seq, DS41_ALL_LAYERS) == kPrompt + 3); });
        CHECK(decode_through_failures(model, ctx, seq, kPrompt + 3, 1, record) == 0);
        check_same(record, expected, config);

        // The same again on a sequence that was reset, with what it kept.
        must(ds41_seq_reset(seq));
        record = Record();
        prefill_through_failures(model, ctx, seq, 0, kEnd, record);
        check_same(record, expected, config);
    }
    CHECK(live_allocations() == live);
}

TEST_CASE("weights that could not be replaced stay") {
    const ds41_config config = small_config();
    TestModel model = random_model(config);
    const Record expected = whole_prefill(random_model(config), kTape, kPrompt);
    for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) {
        const LayerStorage other = random_layer(config, layer, Format::bf16, 99);
        int64_t n_allocations;
        {
            const TestModel measured = empty_model(config);
            const AllocationScope scope;
            must(ds41_model_set_layer(measured.get(), layer, &other.weights));
            n_allocations = scope.n_allocations();
        }
        for (int64_t n = 0; n < n_allocations; n++) {
            ds41_status status;
            {
                const AllocationScope scope(n);
                status = ds41_model_set_layer(model.get(), layer, &other.weights);
            }
            CHECK(status == DS41_STATUS_OUT_OF_MEMORY);
        }
    }
    check_same(whole_prefill(model, kTape, kPrompt), expected, config);
}

TEST_CASE("a prep that fails leaves the step before it in flight") {
    const TestModel model = random_model(small_config());
    const Record expected = whole_prefill(model, kTape, kPrompt + 1);
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    Record record;
    prefill(model, ctx.get(), seq.get(), kTape, 0, kPrompt, &record);
    const std::vector<SpanRun> spans = {{seq.get(), kTape, kPrompt, 1, &record}};
    prep(ctx.get(), spans);
    for (int32_t layer = 0; layer < model.config.n_compress_ratios; layer++) {
        decode_layer(model, ctx.get(), layer, spans);
        const Seq other = new_seq(model.get()); // has no page yet
        const ds41_span big = {other.get(), 0, 60, 0};
        ds41_status status;
        {
            const AllocationScope scope(layer);
            status = ds41_decode_prep(ctx.get(), &big, 1);
        }
        CHECK(status == DS41_STATUS_OUT_OF_MEMORY);
    }
    check_same(record, expected, model.config);
}

TEST_CASE("giving up at any allocation leaks nothing") {
    std::vector<LayerStorage> layers;
    for (int32_t layer = 0; layer < small_config().n_compress_ratios; layer++) {
        layers.push_back(random_layer(small_config(), layer, Format::bf16, kSeed));
    }
    const int64_t live = live_allocations();
    int64_t n = 0;
    for (bool finished = false; !finished; n++) {
        finished = live_until_failure(layers, n);
        CHECK(live_allocations() == live);
        REQUIRE(n < 100000);
    }
    CAPTURE(n);
    CHECK(n > 100);
}

int main(int n_arguments, char **arguments) {
    if (!allocations_are_counted()) {
        std::puts("operator new is valgrind's, not the test's: skipped");
        return 77;
    }
    return doctest::Context(n_arguments, arguments).run();
}
