// Loading through the interface: the same bits as weights handed over by pointer, what the options do, what is refused,
// and that nothing stays behind.
#include "support_checkpoint.h"

#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

using namespace api_test;

namespace {

constexpr Tape kTape{11};
const int32_t kPrompt = is_simulated() ? 4 : 21;

ds41_load_options load_options() {
    ds41_load_options options;
    ds41_load_options_init(&options, sizeof(options));
    static const ds41_model_options tested = tested_options();
    options.model = &tested;
    return options;
}

// The loaded model in the place of the one whose weights are on disk. Without options, those of NULL, unless the
// environment names a backend.
TestModel loaded(const TestModel &original, const char *path, const ds41_load_options *options) {
    const ds41_load_options defaults = load_options();
    ds41_model *model = nullptr;
    must(ds41_model_load(&model, path, options == nullptr && defaults.model->backend ? &defaults : options));
    TestModel out;
    out.config = original.config;
    out.handle.reset(model);
    return out;
}

struct Progress {
    int64_t n_calls = 0;
    int64_t cancel_at = -1; // the call that cancels
    uint64_t last = 0, total = 0;
    bool monotone = true;
    std::string tensor;

    static int32_t call(uint64_t n_done, uint64_t n_total, const char *tensor, void *user) {
        Progress &self = *static_cast<Progress *>(user);
        if (self.n_calls == 0) CHECK(n_done == 0);
        self.monotone = self.monotone && n_done >= self.last && n_done <= n_total;
        self.last = n_done;
        self.total = n_total;
        self.tensor = tensor;
        return self.n_calls++ == self.cancel_at;
    }
};

} // namespace

TEST_CASE("a model from a checkpoint gives the bits of one whose weights were handed over") {
    for (const Format format : {Format::bf16, Format::f32, Format::fp8}) {
        CAPTURE(std::string(name_of(format)));
        const TestModel original = random_model(format);
        const CheckpointFolder folder(original);
        const Record expected = whole_prefill(original, kTape, kPrompt);
        for (const uint32_t flags : {0u, DS41_LOAD_MAP}) {
            for (const int32_t n_threads : {0, 1, 3}) {
                CAPTURE(flags);
                CAPTURE(n_threads);
                ds41_load_options options = load_options();
                options.flags = flags;
                options.n_threads = n_threads;
                check_same(whole_prefill(loaded(original, folder.path(), &options), kTape, kPrompt), expected,
                           original.config);
            }
        }
        check_same(whole_prefill(loaded(original, folder.weights_path().c_str(), nullptr), kTape, kPrompt), expected,
                   original.config);
    }
}

TEST_CASE("a model whose weights are mapped outlives path, files and handles") {
    const TestModel original = random_model(Format::fp8);
    const Record expected = whole_prefill(original, kTape, kPrompt);
    ds41_load_options options = load_options();
    options.flags = DS41_LOAD_MAP;
    TestModel model;
    {
        const CheckpointFolder folder(original);
        model = loaded(original, folder.path(), &options);
    } // unlinked: the mapping keeps the bytes
    check_same(whole_prefill(model, kTape, kPrompt), expected, original.config);
}

TEST_CASE("FP8 expanded at load is FP8 with plain activations") {
    const TestModel original = random_model(Format::fp8), plain = random_model(Format::fp8_plain);
    const CheckpointFolder folder(original);
    ds41_load_options options = load_options();
    options.flags = DS41_LOAD_EXPAND_FP8;
    const Record expanded = whole_prefill(loaded(original, folder.path(), &options), kTape, kPrompt);
    check_same(expanded, whole_prefill(plain, kTape, kPrompt), original.config);
    CHECK(!(expanded == whole_prefill(original, kTape, kPrompt)));
}

TEST_CASE("a checkpoint describes its tensors, and estimates what a load then takes") {
    const TestModel original = random_model(Format::fp8);
    const CheckpointFolder folder(original);
    ds41_checkpoint *opened = nullptr;
    must(ds41_checkpoint_load(&opened, folder.path()));
    const Checkpoint checkpoint(opened);
    CHECK(std::string(ds41_checkpoint_get_format(opened)) == "safetensors");
    CHECK(ds41_checkpoint_get_n_files(opened) == 1);
    CHECK(std::string(ds41_checkpoint_get_file(opened, 0)) == folder.weights_path());
    CHECK(ds41_checkpoint_get_file(opened, 1) == nullptr);
    CHECK(ds41_checkpoint_get_n_problems(opened) == 0);
    ds41_config config;
    ds41_config_init(&config, sizeof(config));
    must(ds41_checkpoint_get_config(opened, &config));
    CHECK(std::memcmp(&config, &original.config, sizeof(config)) == 0);

    int64_t n = 0;
    uint64_t in_files = 0, in_model = 0;
    for (int32_t layer = 0; layer < original.config.n_compress_ratios; ++layer) {
        const ds41_layer_weights &weights = original.layers[static_cast<size_t>(layer)].weights;
        for (const TensorSpec &spec : tensor_specs(original.config, layer)) {
            if (!spec.present) continue;
            ds41_checkpoint_tensor tensor;
            ds41_checkpoint_tensor_init(&tensor, sizeof(tensor));
            must(ds41_checkpoint_get_tensor(opened, n++, &tensor));
            CAPTURE(std::string(tensor.name));
            const ds41_tensor &source = weights.*spec.member;
            CHECK(tensor.layer == layer);
            CHECK(std::string(tensor.member) == spec.name);
            CHECK(tensor.n_dims == source.n_dims);
            CHECK(tensor.shape[0] == source.shape[0]);
            CHECK(tensor.shape[1] == source.shape[1]);
            CHECK(tensor.file == 0);
            CHECK(tensor.dtype == (spec.kind == Kind::vector ? DS41_DTYPE_F32 : source.dtype));
            in_files += tensor.n_bytes;
            in_model += tensor.n_model_bytes;
        }
    }
    CHECK(ds41_checkpoint_get_n_tensors(opened) == n);
    CHECK(in_files + 8 < std::filesystem::file_size(folder.weights_path()));

    for (const uint32_t flags : {0u, DS41_LOAD_MAP, DS41_LOAD_EXPAND_FP8}) {
        CAPTURE(flags);
        ds41_load_options options = load_options();
        options.flags = flags;
        options.max_seq_len = 500;
        ds41_memory estimated, real;
        ds41_memory_init(&estimated, sizeof(estimated));
        ds41_memory_init(&real, sizeof(real));
        must(ds41_checkpoint_estimate_memory(opened, &options, 3, 400, 7, &estimated));
        const TestModel model = loaded(original, folder.path(), &options);
        must(ds41_model_estimate_memory(model.get(), 3, 400, 7, &real));
        CHECK(std::memcmp(&estimated, &real, sizeof(real)) == 0);
        const bool maps = flags == DS41_LOAD_MAP && !on_device();
        if (flags == 0 || (flags == DS41_LOAD_MAP && !maps)) CHECK(estimated.weights == in_model);
        if (maps) CHECK(estimated.weights < in_model / 4);
        must(ds41_model_get_config(model.get(), &config));
        CHECK(config.max_seq_len == 500);
    }
}

TEST_CASE("a range of layers is loaded, and no other") {
    const TestModel original = random_model(small_config());
    const CheckpointFolder folder(original);
    const int32_t n_total = original.config.n_compress_ratios;
    const auto has_layer = [&](ds41_model *model, int32_t layer) {
        const Ctx ctx = new_ctx(model);
        const Seq seq = new_seq(model);
        const Rows x(kTape.rows(original.config, layer, 0, 1));
        const Rows out(original.config.dim);
        const ds41_tensor x_view = view(x.at(0), DS41_DTYPE_BF16, {1, original.config.dim});
        const ds41_tensor out_view = view(out.at(0), DS41_DTYPE_BF16, {1, original.config.dim});
        return ds41_layer_prefill(ctx.get(), layer, seq.get(), &x_view, 1, 0, &out_view) != DS41_STATUS_MISSING_WEIGHTS;
    };
    const int32_t ranges[][2] = {{0, 1}, {2, 3}, {n_total - 1, 1}, {3, 0}, {0, n_total}};
    for (const auto &range : ranges) {
        const int32_t first = range[0], n = range[1];
        CAPTURE(first);
        CAPTURE(n);
        ds41_load_options options = load_options();
        options.first_layer = first;
        options.n_layers = n;
        const TestModel model = loaded(original, folder.path(), &options);
        const int32_t end = n == 0 ? n_total : first + n;
        for (int32_t layer = 0; layer < n_total; ++layer)
            CHECK(has_layer(model.get(), layer) == (layer >= first && layer < end));
    }
    const auto refuse = [&](int32_t first, int32_t n, const char *argument, const char *value) {
        ds41_load_options options = load_options();
        options.first_layer = first;
        options.n_layers = n;
        ds41_model *model = nullptr;
        check_refused(ds41_model_load(&model, folder.path(), &options), {DS41_STATUS_INVALID_LAYER}, "ds41_model_load",
                      {argument, value});
        CHECK(model == nullptr);
    };
    refuse(-1, 0, "first_layer", "-1");
    refuse(n_total, 0, "first_layer", std::to_string(n_total).c_str());
    refuse(1, n_total, "n_layers", std::to_string(n_total).c_str());
    refuse(0, -1, "n_layers", "-1");
    refuse(INT_MAX, INT_MAX, "first_layer", "2147483647");
}

TEST_CASE("progress goes from nothing to all, and can stop a load at any call") {
    const TestModel original = random_model(small_config());
    const CheckpointFolder folder(original);
    for (const int32_t n_threads : {1, 3}) {
        CAPTURE(n_threads);
        ds41_load_options options = load_options();
        Progress progress;
        options.n_threads = n_threads;
        options.progress = Progress::call;
        options.progress_user = &progress;
        loaded(original, folder.path(), &options);
        CHECK(progress.monotone);
        CHECK(progress.n_calls > 10);
        CHECK(progress.last == progress.total);
        CHECK(!progress.tensor.empty());
        const int64_t n_calls = n_threads == 1 ? progress.n_calls : 10;
        for (int64_t at = 0; at < n_calls; at += at < 4 ? 1 : 7) {
            CAPTURE(at);
            progress = Progress();
            progress.cancel_at = at;
            ds41_model *model = nullptr;
            check_refused(ds41_model_load(&model, folder.path(), &options), {DS41_STATUS_CANCELLED}, "ds41_model_load",
                          {"progress"});
            CHECK(model == nullptr);
            CHECK(progress.n_calls == at + 1);
        }
    }
    check_same(whole_prefill(loaded(original, folder.path(), nullptr), kTape, kPrompt),
               whole_prefill(original, kTape, kPrompt), original.config);
}

TEST_CASE("options that make no sense are refused by name") {
    const TestModel original = random_model(small_config());
    const CheckpointFolder folder(original);
    const auto refuse = [&](const std::function<void(ds41_load_options &)> &spoil, ds41_status status,
                            const std::vector<std::string> &words) {
        ds41_load_options options = load_options();
        spoil(options);
        ds41_model *model = nullptr;
        check_refused(ds41_model_load(&model, folder.path(), &options), {status}, "ds41_model_load", words);
        CHECK(model == nullptr);
    };
    refuse([](ds41_load_options &o) { o.flags = 8; }, DS41_STATUS_INVALID_ARGUMENT, {"options.flags", "0x8", "0x7"});
    refuse([](ds41_load_options &o) { o.reserved = 3; }, DS41_STATUS_INVALID_ARGUMENT, {"options.reserved", "3"});
    refuse([](ds41_load_options &o) { o.n_threads = -1; }, DS41_STATUS_INVALID_ARGUMENT, {"options.n_threads", "-1"});
    refuse([](ds41_load_options &o) { o.n_threads = 2000; }, DS41_STATUS_INVALID_ARGUMENT,
           {"options.n_threads", "2000", "1024"});
    refuse([](ds41_load_options &o) { o.max_seq_len = -5; }, DS41_STATUS_INVALID_ARGUMENT,
           {"options.max_seq_len", "-5"});
    ds41_model_options model_options;
    ds41_model_options_init(&model_options, sizeof(model_options));
    model_options.backend = "abacus";
    refuse([&](ds41_load_options &o) { o.model = &model_options; }, DS41_STATUS_NO_BACKEND, {"abacus"});
    model_options.struct_size = 1;
    refuse([&](ds41_load_options &o) { o.model = &model_options; }, DS41_STATUS_INVALID_STRUCT, {"options.model"});
    ds41_config config = original.config;
    config.struct_size = 1;
    refuse([&](ds41_load_options &o) { o.config = &config; }, DS41_STATUS_INVALID_STRUCT, {"options.config"});
    config = original.config;
    config.dim = -1;
    refuse([&](ds41_load_options &o) { o.config = &config; }, DS41_STATUS_INVALID_CONFIG, {"dim", "-1"});
    config = original.config;
    config.dim *= 2; // everything of that width is wrong now
    refuse([&](ds41_load_options &o) { o.config = &config; }, DS41_STATUS_INVALID_SHAPE, {"problems", "wq_a", "wo_b"});
}

TEST_CASE("a file without a config.json takes the caller's, and is refused without") {
    const TestModel original = random_model(small_config());
    const CheckpointFolder folder(original);
    std::filesystem::remove(folder.config_path());
    ds41_model *model = nullptr;
    check_refused(ds41_model_load(&model, folder.path(), nullptr), {DS41_STATUS_IO_ERROR}, "ds41_model_load",
                  {"config.json"});
    ds41_load_options options = load_options();
    options.config = &original.config;
    check_same(whole_prefill(loaded(original, folder.path(), &options), kTape, kPrompt),
               whole_prefill(original, kTape, kPrompt), original.config);

    ds41_checkpoint *checkpoint = nullptr;
    must(ds41_checkpoint_load(&checkpoint, folder.path()));
    const Checkpoint owner(checkpoint);
    ds41_config config;
    ds41_config_init(&config, sizeof(config));
    check_refused(ds41_checkpoint_get_config(checkpoint, &config), {DS41_STATUS_IO_ERROR}, "ds41_checkpoint_get_config",
                  {"config.json"});
    REQUIRE(ds41_checkpoint_get_n_problems(checkpoint) == 1);
    CHECK(std::string(ds41_checkpoint_get_problem(checkpoint, 0)).find("config.json") != std::string::npos);
    CHECK(ds41_checkpoint_get_problem(checkpoint, 1) == nullptr);
    CHECK(ds41_checkpoint_get_problem(checkpoint, -1) == nullptr);
    CHECK(ds41_checkpoint_get_n_tensors(checkpoint) == 0);
    ds41_checkpoint_tensor tensor;
    ds41_checkpoint_tensor_init(&tensor, sizeof(tensor));
    check_refused(ds41_checkpoint_get_tensor(checkpoint, 0, &tensor), {DS41_STATUS_INVALID_ARGUMENT},
                  "ds41_checkpoint_get_tensor", {"index", "0"});
}

TEST_CASE("a configuration that validation refuses is told with its file") {
    TestModel original = random_model(small_config());
    original.config.n_heads = 7; // no multiple of o_groups
    const CheckpointFolder folder(original);
    ds41_model *model = nullptr;
    check_refused(ds41_model_load(&model, folder.path(), nullptr), {DS41_STATUS_INVALID_CONFIG}, "ds41_model_load",
                  {"config.json", "n_heads", "7"});
    CHECK(model == nullptr);
}

TEST_CASE("a file that shrinks while it is being loaded is an error, not a fault") {
    const TestModel original = random_model(small_config());
    const CheckpointFolder folder(original);
    struct Shrink {
        std::string path;
        uintmax_t n_bytes;
    } shrink = {folder.weights_path(), std::filesystem::file_size(folder.weights_path()) / 2};
    ds41_load_options options = load_options();
    options.progress_user = &shrink;
    options.progress = [](uint64_t, uint64_t, const char *, void *user) -> int32_t {
        const Shrink &self = *static_cast<Shrink *>(user);
        std::filesystem::resize_file(self.path, self.n_bytes);
        return 0;
    };
    ds41_model *model = nullptr;
    check_refused(ds41_model_load(&model, folder.path(), &options), {DS41_STATUS_IO_ERROR}, "ds41_model_load",
                  {"model.safetensors", "truncated"});
    CHECK(model == nullptr);
}

TEST_CASE("values that a model refuses are refused before the matrices are read") {
    TestModel original = random_model(Format::fp8);
    ds41_tensor &sink = original.layers[1].weights.attn_sink;
    static_cast<float *>(sink.data)[0] = __builtin_nanf("");
    const CheckpointFolder folder(original);
    ds41_model *model = nullptr;
    check_refused(ds41_model_load(&model, folder.path(), nullptr), {DS41_STATUS_INVALID_FILE}, "ds41_model_load",
                  {"attn_sink", "1"});
}

TEST_CASE("checkpoints that are none") {
    const TestModel original = random_model(small_config());
    const CheckpointFolder folder(original), empty_folder(original);
    std::filesystem::remove(empty_folder.weights_path());
    const TempFile text("hello");
    ds41_checkpoint *checkpoint = nullptr;
    const auto refuse = [&](const std::string &path, ds41_status status, const std::vector<std::string> &words) {
        check_refused(ds41_checkpoint_load(&checkpoint, path.c_str()), {status}, "ds41_checkpoint_load", words);
        CHECK(checkpoint == nullptr);
    };
    refuse("/no/such/checkpoint", DS41_STATUS_IO_ERROR, {"/no/such/checkpoint"});
    refuse("", DS41_STATUS_IO_ERROR, {"path"});
    refuse("/dev/null", DS41_STATUS_IO_ERROR, {"regular"});
    refuse(text.path(), DS41_STATUS_INVALID_FILE, {"safetensors"});
    refuse(empty_folder.path(), DS41_STATUS_INVALID_FILE, {"model.safetensors.index.json"});
    std::filesystem::copy_file(folder.weights_path(), std::string(folder.path()) + "/second.safetensors");
    refuse(folder.path(), DS41_STATUS_INVALID_FILE, {"2", "model.safetensors.index.json"});
}

TEST_CASE("an index that cannot be reached is an error, not an absent one") {
    const TestModel original = random_model(small_config());
    const CheckpointFolder folder(original);
    std::filesystem::create_symlink("nowhere", std::string(folder.path()) + "/model.safetensors.index.json");
    ds41_checkpoint *checkpoint = nullptr;
    check_refused(ds41_checkpoint_load(&checkpoint, folder.path()), {DS41_STATUS_IO_ERROR}, "ds41_checkpoint_load",
                  {"model.safetensors.index.json"});
    CHECK(checkpoint == nullptr);
}

TEST_CASE("what is no file of the checkpoint does not count as a second one") {
    const TestModel original = random_model(small_config());
    const CheckpointFolder folder(original);
    std::filesystem::copy_file(folder.weights_path(), std::string(folder.path()) + "/._model.safetensors");
    std::filesystem::create_directory(std::string(folder.path()) + "/old.safetensors");
    check_same(whole_prefill(loaded(original, folder.path(), nullptr), kTape, kPrompt),
               whole_prefill(original, kTape, kPrompt), original.config);
}

TEST_CASE("one shard of a folder with an index is told to be one") {
    const TestModel original = random_model(small_config());
    const CheckpointFolder folder(original);
    std::ofstream(std::string(folder.path()) + "/model.safetensors.index.json") << R"({"weight_map":{}})";
    ds41_config config = original.config;
    config.dim *= 2; // for problems to be told
    ds41_load_options options = load_options();
    options.config = &config;
    ds41_model *model = nullptr;
    check_refused(ds41_model_load(&model, folder.weights_path().c_str(), &options), {DS41_STATUS_INVALID_SHAPE},
                  "ds41_model_load", {"problems", "one shard", "folder", "more"});
    CHECK(model == nullptr);
    // The folder itself: an index without these layers.
    ds41_checkpoint *checkpoint = nullptr;
    must(ds41_checkpoint_load(&checkpoint, folder.path()));
    const Checkpoint owner(checkpoint);
    CHECK(ds41_checkpoint_get_n_problems(checkpoint) == original.config.n_layers);
}

TEST_CASE("a range in which there is nothing is no load") {
    TestModel original = random_model(small_config());
    const CheckpointFolder folder(original);
    // The configuration gains a draft layer that the file does not hold.
    ds41_config config = original.config;
    config.compress_ratios[config.n_compress_ratios++] = 0;
    ds41_load_options options = load_options();
    options.config = &config;
    options.first_layer = config.n_compress_ratios - 1;
    ds41_model *model = nullptr;
    check_refused(ds41_model_load(&model, folder.path(), &options), {DS41_STATUS_MISSING_TENSOR}, "ds41_model_load",
                  {"nothing"});
    CHECK(model == nullptr);
    options.first_layer = 0; // the others load
    must(ds41_model_load(&model, folder.path(), &options));
    ds41_model_destroy(model);
}
