// The life of every object type, and every order in which model, context, sequence and buffer may go.
#include "support_checkpoint.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>

using namespace api_test;

namespace {

const char *const kHeader = R"({"__metadata__":{"k":"v"},"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

// Names that cover all types with one shape of function.
struct ObjectType {
    const char *create;
    std::function<ds41_status(void **)> make;
    std::function<void(void *)> use;
    std::function<void(void *)> destroy;
};

template <typename T> ds41_status into(void **out, const std::function<ds41_status(T **)> &create) {
    T *object = static_cast<T *>(*out);
    const ds41_status status = create(&object);
    *out = object;
    return status;
}

std::vector<ObjectType> object_types(const TestModel &model, const char *file_path, const char *checkpoint_path) {
    return {
        {"ds41_checkpoint_load",
         [=](void **out) {
             return into<ds41_checkpoint>(
                 out, [=](ds41_checkpoint **c) { return ds41_checkpoint_load(c, checkpoint_path); });
         },
         [](void *object) {
             const ds41_checkpoint *checkpoint = static_cast<ds41_checkpoint *>(object);
             CHECK(ds41_checkpoint_get_n_problems(checkpoint) == 0);
             CHECK(ds41_checkpoint_get_n_tensors(checkpoint) > 0);
         },
         [](void *object) { ds41_checkpoint_destroy(static_cast<ds41_checkpoint *>(object)); }},
        {"ds41_model_load",
         [=](void **out) {
             return into<ds41_model>(out, [=](ds41_model **m) { return ds41_model_load(m, checkpoint_path, nullptr); });
         },
         [](void *object) { new_ctx(static_cast<ds41_model *>(object)); },
         [](void *object) { ds41_model_destroy(static_cast<ds41_model *>(object)); }},
        {"ds41_file_load",
         [=](void **out) { return into<ds41_file>(out, [=](ds41_file **f) { return ds41_file_load(f, file_path); }); },
         [](void *object) {
             const ds41_file *file = static_cast<ds41_file *>(object);
             CHECK(ds41_file_get_n_tensors(file) == 1);
             CHECK(std::string(ds41_file_get_tensor_name(file, 0)) == "t");
         },
         [](void *object) { ds41_file_destroy(static_cast<ds41_file *>(object)); }},
        {"ds41_model_create",
         [&model](void **out) {
             return into<ds41_model>(out, [&](ds41_model **m) { return ds41_model_create(m, &model.config, nullptr); });
         },
         [&model](void *object) {
             ds41_config config;
             ds41_config_init(&config, sizeof(config));
             must(ds41_model_get_config(static_cast<ds41_model *>(object), &config));
             CHECK(std::memcmp(&config, &model.config, sizeof(config)) == 0);
         },
         [](void *object) { ds41_model_destroy(static_cast<ds41_model *>(object)); }},
        {"ds41_buffer_create",
         [&model](void **out) {
             return into<ds41_buffer>(out, [&](ds41_buffer **b) { return ds41_buffer_create(b, model.get(), 100); });
         },
         [](void *object) {
             ds41_buffer *buffer = static_cast<ds41_buffer *>(object);
             CHECK(ds41_buffer_get_bytes(buffer) == 100);
             CHECK(reinterpret_cast<uintptr_t>(ds41_buffer_get_data(buffer)) % 64 == 0);
         },
         [](void *object) { ds41_buffer_destroy(static_cast<ds41_buffer *>(object)); }},
        {"ds41_ctx_create",
         [&model](void **out) {
             return into<ds41_ctx>(out, [&](ds41_ctx **c) { return ds41_ctx_create(c, model.get(), nullptr); });
         },
         [](void *object) { must(ds41_ctx_synchronize(static_cast<ds41_ctx *>(object))); },
         [](void *object) { ds41_ctx_destroy(static_cast<ds41_ctx *>(object)); }},
        {"ds41_seq_create",
         [&model](void **out) {
             return into<ds41_seq>(out, [&](ds41_seq **s) { return ds41_seq_create(s, model.get()); });
         },
         [](void *object) {
             must(ds41_seq_reset(static_cast<ds41_seq *>(object)));
             CHECK(ds41_seq_get_bytes(static_cast<ds41_seq *>(object)) == 0);
         },
         [](void *object) { ds41_seq_destroy(static_cast<ds41_seq *>(object)); }},
    };
}

} // namespace

TEST_CASE("create, use, destroy, for every type, twice at once") {
    const TestModel model = random_model(small_config());
    const TempFile file(safetensors(kHeader, "12345678"));
    const CheckpointFolder folder(model);
    for (const ObjectType &type : object_types(model, file.path(), folder.path())) {
        CAPTURE(std::string(type.create));
        void *first = nullptr, *second = nullptr;
        must(type.make(&first));
        must(type.make(&second));
        CHECK(first != nullptr);
        CHECK(second != nullptr);
        CHECK(first != second);
        type.use(first);
        type.use(second);
        type.destroy(first);
        type.use(second);
        type.destroy(second);
        type.destroy(nullptr);
    }
}

TEST_CASE("model, context, sequence and buffer may go in any order, and the others work on") {
    const Record expected = whole_prefill(random_model(small_config()), {3}, 6);
    std::vector<int> order = {0, 1, 2, 3};
    int n_orders = 0;
    do {
        if (n_orders++ % 3 != 0 && is_simulated()) continue; // two orders for each that may go first
        std::string name;
        for (const int i : order)
            name += std::string(i == 0 ? "model " : i == 1 ? "ctx " : i == 2 ? "seq " : "buffer ");
        CAPTURE(std::string(name));
        TestModel model = random_model(small_config());
        Ctx ctx = new_ctx(model.get());
        Seq seq = new_seq(model.get());
        ds41_buffer *created = nullptr;
        must(ds41_buffer_create(&created, model.get(), 128));
        Buffer buffer(created);
        Record record;
        prefill(model, ctx.get(), seq.get(), {3}, 0, 5, &record);

        const auto use_all = [&](int32_t layer) {
            if (model.handle) CHECK(ds41_model_get_backend(model.get())[0] != '\0');
            if (ctx && seq) prefill_layer(model, ctx.get(), seq.get(), layer, {3}, 5, 1, &record);
            if (ctx) must(ds41_ctx_synchronize(ctx.get()));
            if (ctx) CHECK(ds41_ctx_get_bytes(ctx.get()) > 0);
            if (seq) {
                int64_t position = -1;
                must(ds41_seq_get_position(seq.get(), 7, &position));
                CHECK(position >= 5);
                must(ds41_seq_reserve(seq.get(), 20));
                CHECK(ds41_seq_get_bytes(seq.get()) > 0);
            }
            if (buffer) {
                uint32_t value = 0x12345678, back = 0;
                must(ds41_buffer_upload(buffer.get(), 124, &value, 4));
                must(ds41_buffer_download(buffer.get(), 124, &back, 4));
                CHECK(back == value);
            }
        };
        for (int32_t layer = 0; layer < 2; layer++) use_all(layer);
        int32_t layer = 2;
        for (const int i : order) {
            if (i == 0) model.handle.reset();
            if (i == 1) ctx.reset();
            if (i == 2) seq.reset();
            if (i == 3) buffer.reset();
            if (ctx && seq) {
                for (int k = 0; k < 2; k++) use_all(layer++);
            } else {
                use_all(layer);
            }
        }
        // What ran before a context or sequence went has the right bits.
        for (size_t l = 0; l < record.layers.size(); l++) {
            const bool same = record.layers[l].size() <= expected.layers[l].size() &&
                              std::equal(record.layers[l].begin(), record.layers[l].end(), expected.layers[l].begin());
            CHECK(same);
        }
    } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("a step's rows may live in buffers") {
    const TestModel model = random_model(small_config());
    const int64_t dim = model.config.dim, n = 9;
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    ds41_buffer *created = nullptr;
    must(ds41_buffer_create(&created, model.get(), static_cast<uint64_t>(2 * n * dim) * 2));
    const Buffer buffer(created);
    const uint64_t half = static_cast<uint64_t>(n * dim) * 2;
    char *data = static_cast<char *>(ds41_buffer_get_data(buffer.get()));
    const ds41_tensor x = view(data, DS41_DTYPE_BF16, {n, dim}), out = view(data + half, DS41_DTYPE_BF16, {n, dim});
    Record record;
    for (int32_t layer = 0; layer < model.config.n_compress_ratios; layer++) {
        const std::vector<uint16_t> rows = Tape{3}.rows(model.config, layer, 0, n);
        must(ds41_buffer_upload(buffer.get(), 0, rows.data(), half));
        must(ds41_layer_prefill(ctx.get(), layer, seq.get(), &x, static_cast<int32_t>(n), 0, &out));
        must(ds41_ctx_synchronize(ctx.get()));
        std::vector<uint16_t> result(rows.size());
        must(ds41_buffer_download(buffer.get(), half, result.data(), half));
        record.append(layer, result.data(), n * dim);
    }
    check_same(record, whole_prefill(model, {3}, static_cast<int32_t>(n)), model.config);
}

TEST_CASE("ranges of a buffer are checked, sums included") {
    const TestModel model = empty_model(small_config());
    ds41_buffer *created = nullptr;
    check_refused(ds41_buffer_create(&created, model.get(), 0), {DS41_STATUS_INVALID_ARGUMENT}, "ds41_buffer_create",
                  {"n_bytes", "0"});
    for (const uint64_t huge : {UINT64_MAX, UINT64_MAX - 63, uint64_t(1) << 62}) {
        if (!allocation_can_fail()) break;
        CAPTURE(huge);
        check_refused(ds41_buffer_create(&created, model.get(), huge),
                      {DS41_STATUS_OUT_OF_MEMORY, DS41_STATUS_INVALID_ARGUMENT}, "ds41_buffer_create", {});
    }
    CHECK(created == nullptr);
    must(ds41_buffer_create(&created, model.get(), 100));
    const Buffer buffer(created);
    std::vector<uint8_t> bytes(100), back(100, 0xEE);
    for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<uint8_t>(i);
    must(ds41_buffer_upload(buffer.get(), 0, bytes.data(), 100));
    must(ds41_buffer_upload(buffer.get(), 100, bytes.data(), 0));
    struct Range {
        uint64_t offset, n_bytes;
    };
    for (const Range range : {Range{0, 101},
                              {1, 100},
                              {100, 1},
                              {101, 0},
                              {UINT64_MAX, 1},
                              {1, UINT64_MAX},
                              {UINT64_MAX - 49, 100},
                              {UINT64_MAX, UINT64_MAX},
                              {0, UINT64_MAX}}) {
        CAPTURE(range.offset);
        CAPTURE(range.n_bytes);
        // Either the size of the buffer or what is left of it behind the offset.
        const std::string limit = range.offset <= 100 ? "100|" + std::to_string(100 - range.offset) : "100";
        check_refused(ds41_buffer_upload(buffer.get(), range.offset, bytes.data(), range.n_bytes),
                      {DS41_STATUS_INVALID_ARGUMENT}, "ds41_buffer_upload", {limit, "offset|n_bytes"});
        check_refused(ds41_buffer_download(buffer.get(), range.offset, back.data(), range.n_bytes),
                      {DS41_STATUS_INVALID_ARGUMENT}, "ds41_buffer_download", {limit, "offset|n_bytes"});
        CHECK(back == std::vector<uint8_t>(100, 0xEE));
    }
    must(ds41_buffer_download(buffer.get(), 0, back.data(), 100));
    CHECK(back == bytes);
}

TEST_CASE("options are checked") {
    const TestModel model = random_model(small_config());
    int place = 0;
    ds41_ctx_options options;
    ds41_ctx *ctx = nullptr;
    if (!on_device()) {
        ds41_ctx_options_init(&options, sizeof(options));
        options.stream = &place;
        check_refused(ds41_ctx_create(&ctx, model.get(), &options), {DS41_STATUS_INVALID_ARGUMENT}, "ds41_ctx_create",
                      {"stream"});
    }
    for (const int32_t n : {-1, DS41_MAX_THREADS + 1, INT32_MAX, INT32_MIN}) {
        ds41_ctx_options_init(&options, sizeof(options));
        options.n_threads = n;
        check_refused(ds41_ctx_create(&ctx, model.get(), &options), {DS41_STATUS_INVALID_ARGUMENT}, "ds41_ctx_create",
                      {"n_threads", std::to_string(n), std::to_string(DS41_MAX_THREADS)});
    }
    ds41_ctx_options_init(&options, sizeof(options));
    options.flags = DS41_CTX_PIN_THREADS | 0x10;
    check_refused(ds41_ctx_create(&ctx, model.get(), &options), {DS41_STATUS_INVALID_ARGUMENT}, "ds41_ctx_create",
                  {"flags", "0x11"});
    ds41_ctx_options_init(&options, sizeof(options));
    options.parallel_user = &place;
    check_refused(ds41_ctx_create(&ctx, model.get(), &options), {DS41_STATUS_INVALID_ARGUMENT}, "ds41_ctx_create",
                  {"parallel_user"});
    for (const int64_t end : {int64_t(-1), int64_t(161), INT64_MAX, INT64_MIN}) {
        ds41_ctx_options_init(&options, sizeof(options));
        options.topk_end_pos = end;
        check_refused(ds41_ctx_create(&ctx, model.get(), &options), {DS41_STATUS_INVALID_ARGUMENT}, "ds41_ctx_create",
                      {"topk_end_pos", std::to_string(end), "160"});
    }
    CHECK(ctx == nullptr);

    const ds41_config config = small_config();
    ds41_model *created = nullptr;
    ds41_model_options model_options;
    for (const int32_t rule : {-1, 2, INT32_MAX}) {
        ds41_model_options_init(&model_options, sizeof(model_options));
        model_options.topk_rule = rule;
        check_refused(ds41_model_create(&created, &config, &model_options), {DS41_STATUS_INVALID_ARGUMENT},
                      "ds41_model_create", {"topk_rule", std::to_string(rule)});
    }
    for (const char *name : {"", "nonesuch", "REFERENCE", "reference "}) {
        CAPTURE(std::string(name));
        ds41_model_options_init(&model_options, sizeof(model_options));
        model_options.backend = name;
        check_refused(ds41_model_create(&created, &config, &model_options), {DS41_STATUS_NO_BACKEND},
                      "ds41_model_create", {"backend", "reference"});
    }
    CHECK(created == nullptr);

    bool reference = false, cpu = false;
    for (int32_t i = 0; ds41_backend_get_name(i) != nullptr; i++) {
        model_options.backend = ds41_backend_get_name(i);
        reference = reference || std::string(model_options.backend) == "reference";
        cpu = cpu || std::string(model_options.backend) == "cpu";
        const ds41_status status = ds41_model_create(&created, &config, &model_options);
        if (status == DS41_STATUS_OK) {
            CHECK(std::string(ds41_model_get_backend(created)) == model_options.backend);
            ds41_model_destroy(created);
        } else {
            CHECK(status == DS41_STATUS_NO_BACKEND); // not on this machine
            CHECK(std::string(model_options.backend) != "reference");
        }
        created = nullptr;
    }
    CHECK(reference);
    CHECK(cpu);
    for (const char *name : {static_cast<const char *>(nullptr), "auto"}) {
        model_options.backend = name;
        must(ds41_model_create(&created, &config, &model_options));
        CHECK(ds41_model_get_backend(created)[0] != '\0');
        ds41_model_destroy(created);
    }
}

TEST_CASE("a backend that needs a plugin says why it cannot run here") {
    const ds41_config config = small_config();
    const char *folder = std::getenv("DS41_PLUGIN_PATH");
    const auto has_plugin = [folder](const std::string &path) { return folder && std::filesystem::exists(path); };
    const auto path_of = [folder](const char *file) { return (folder ? folder : "") + std::string("/") + file; };
    ds41_model_options options;
    ds41_model_options_init(&options, sizeof(options));

    options.backend = "cuda";
    ds41_model *model = nullptr;
    ds41_status status = ds41_model_create(&model, &config, &options);
    const Model cuda(model);
    const std::string cuda_path = path_of("libds41-cuda.so");
    if (folder && !has_plugin(cuda_path)) { // the loader's sentence
        check_refused(status, {DS41_STATUS_NO_BACKEND}, "ds41_model_create", {"options.backend", "cuda", cuda_path});
    } else if (status != DS41_STATUS_OK) { // no driver, no GPU, or none that the kernels were compiled for
        check_refused(status, {DS41_STATUS_NO_BACKEND}, "ds41_model_create",
                      {"options.backend", "cuda", "driver|device|devices|GPU|image|libds41-cuda.so"});
    }

    // The simulated device is for tests: listed nowhere, and without its plugin a name like any other.
    for (int32_t i = 0; ds41_backend_get_name(i) != nullptr; i++) {
        CHECK(std::string(ds41_backend_get_name(i)) != "sim");
    }
    options.backend = "sim";
    model = nullptr;
    status = ds41_model_create(&model, &config, &options);
    const Model sim(model);
    if (has_plugin(path_of("libds41-sim.so"))) {
        must(status);
        CHECK(std::string(ds41_model_get_backend(model)) == "sim");
    } else if (folder) {
        check_refused(status, {DS41_STATUS_NO_BACKEND}, "ds41_model_create", {"options.backend", "sim", "reference"});
    }
}

TEST_CASE("the log function gets whole lines and the caller's pointer") {
    struct Lines {
        std::vector<std::string> all;
        bool well_formed = true;
    } lines;
    ds41_model_options options;
    ds41_model_options_init(&options, sizeof(options));
    options.log = [](int32_t level, const char *message, void *user) {
        Lines &into_lines = *static_cast<Lines *>(user);
        into_lines.all.push_back(message);
        into_lines.well_formed = into_lines.well_formed && level >= DS41_LOG_ERROR && level <= DS41_LOG_DEBUG &&
                                 std::strchr(message, '\n') == nullptr && message[0] != '\0';
    };
    options.log_user = &lines;
    const ds41_config config = small_config();
    ds41_model *model = nullptr;
    must(ds41_model_create(&model, &config, &options));
    const LayerStorage storage = random_layer(config, 0, Format::bf16, kSeed);
    must(ds41_model_set_layer(model, 0, &storage.weights));
    new_ctx(model).reset();
    ds41_model_destroy(model);
    CHECK(lines.well_formed);
}
