// Every function with NULL for every pointer: destroyers, initialisers and getters take it, all others refuse it by
// name.
#include "scene.h"
#include "support_checkpoint.h"

using namespace api_test;

namespace {

// A pointer that no function may touch: what a handle held before a failed create.
template <typename T> T *sentinel() {
    static char place;
    return reinterpret_cast<T *>(&place);
}

struct NullCall {
    const char *function;
    const char *argument;
    std::function<ds41_status(Scene &)> call;
};

std::vector<NullCall> null_calls() {
    static const ds41_config config = small_config();
    static const std::string json = to_json(config);
    static const TempFile file_path(safetensors(R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abcd"));
    static File file;
    if (!file) {
        ds41_file *loaded = nullptr;
        must(ds41_file_load(&loaded, file_path.path()));
        file.reset(loaded);
    }
    static TestModel model = random_model(config);
    static Buffer buffer;
    if (!buffer) {
        ds41_buffer *created = nullptr;
        must(ds41_buffer_create(&created, model.get(), 64));
        buffer.reset(created);
    }
    static ds41_tensor tensor;
    static uint64_t n_bytes = 0;
    static ds41_config config_out;
    static ds41_layer_role role;
    static ds41_memory memory;
    ds41_config_init(&config_out, sizeof(config_out));
    ds41_layer_role_init(&role, sizeof(role));
    ds41_memory_init(&memory, sizeof(memory));
    tensor = view(&n_bytes, DS41_DTYPE_F32, {2});
    static const CheckpointFolder folder(model);
    static Checkpoint checkpoint;
    if (!checkpoint) {
        ds41_checkpoint *loaded = nullptr;
        must(ds41_checkpoint_load(&loaded, folder.path()));
        checkpoint.reset(loaded);
    }
    static ds41_checkpoint_tensor described;
    ds41_checkpoint_tensor_init(&described, sizeof(described));
    return {
        {"ds41_tensor_get_bytes", "tensor", [](Scene &) { return ds41_tensor_get_bytes(nullptr, &n_bytes); }},
        {"ds41_tensor_get_bytes", "n_bytes", [](Scene &) { return ds41_tensor_get_bytes(&tensor, nullptr); }},
        {"ds41_config_parse", "config", [](Scene &) { return ds41_config_parse(nullptr, json.data(), json.size()); }},
        {"ds41_config_parse", "json", [](Scene &) { return ds41_config_parse(&config_out, nullptr, 10); }},
        {"ds41_config_load", "config", [](Scene &) { return ds41_config_load(nullptr, file_path.path()); }},
        {"ds41_config_load", "path", [](Scene &) { return ds41_config_load(&config_out, nullptr); }},
        {"ds41_config_validate", "config", [](Scene &) { return ds41_config_validate(nullptr); }},
        {"ds41_config_get_role", "config", [](Scene &) { return ds41_config_get_role(nullptr, 0, &role); }},
        {"ds41_config_get_role", "role", [](Scene &) { return ds41_config_get_role(&config, 0, nullptr); }},
        {"ds41_file_load", "file", [](Scene &) { return ds41_file_load(nullptr, file_path.path()); }},
        {"ds41_file_load", "path",
         [](Scene &) {
             ds41_file *out = sentinel<ds41_file>();
             const ds41_status status = ds41_file_load(&out, nullptr);
             CHECK(out == sentinel<ds41_file>());
             return status;
         }},
        {"ds41_file_get_tensor", "file", [](Scene &) { return ds41_file_get_tensor(nullptr, "t", &tensor); }},
        {"ds41_file_get_tensor", "name", [](Scene &) { return ds41_file_get_tensor(file.get(), nullptr, &tensor); }},
        {"ds41_file_get_tensor", "tensor", [](Scene &) { return ds41_file_get_tensor(file.get(), "t", nullptr); }},
        {"ds41_model_create", "model", [](Scene &) { return ds41_model_create(nullptr, &config, nullptr); }},
        {"ds41_model_create", "config",
         [](Scene &) {
             ds41_model *out = sentinel<ds41_model>();
             const ds41_status status = ds41_model_create(&out, nullptr, nullptr);
             CHECK(out == sentinel<ds41_model>());
             return status;
         }},
        {"ds41_model_set_layer", "model",
         [](Scene &) { return ds41_model_set_layer(nullptr, 0, &model.layers[0].weights); }},
        {"ds41_model_set_layer", "weights", [](Scene &) { return ds41_model_set_layer(model.get(), 0, nullptr); }},
        {"ds41_model_get_config", "model", [](Scene &) { return ds41_model_get_config(nullptr, &config_out); }},
        {"ds41_model_get_config", "config", [](Scene &) { return ds41_model_get_config(model.get(), nullptr); }},
        {"ds41_model_estimate_memory", "model",
         [](Scene &) { return ds41_model_estimate_memory(nullptr, 1, 1, 1, &memory); }},
        {"ds41_model_estimate_memory", "memory",
         [](Scene &) { return ds41_model_estimate_memory(model.get(), 1, 1, 1, nullptr); }},
        {"ds41_checkpoint_load", "checkpoint", [](Scene &) { return ds41_checkpoint_load(nullptr, folder.path()); }},
        {"ds41_checkpoint_load", "path",
         [](Scene &) {
             ds41_checkpoint *out = sentinel<ds41_checkpoint>();
             const ds41_status status = ds41_checkpoint_load(&out, nullptr);
             CHECK(out == sentinel<ds41_checkpoint>());
             return status;
         }},
        {"ds41_checkpoint_get_config", "checkpoint",
         [](Scene &) { return ds41_checkpoint_get_config(nullptr, &config_out); }},
        {"ds41_checkpoint_get_config", "config",
         [](Scene &) { return ds41_checkpoint_get_config(checkpoint.get(), nullptr); }},
        {"ds41_checkpoint_get_tensor", "checkpoint",
         [](Scene &) { return ds41_checkpoint_get_tensor(nullptr, 0, &described); }},
        {"ds41_checkpoint_get_tensor", "tensor",
         [](Scene &) { return ds41_checkpoint_get_tensor(checkpoint.get(), 0, nullptr); }},
        {"ds41_checkpoint_estimate_memory", "checkpoint",
         [](Scene &) { return ds41_checkpoint_estimate_memory(nullptr, nullptr, 1, 1, 1, &memory); }},
        {"ds41_checkpoint_estimate_memory", "memory",
         [](Scene &) { return ds41_checkpoint_estimate_memory(checkpoint.get(), nullptr, 1, 1, 1, nullptr); }},
        {"ds41_model_load", "model", [](Scene &) { return ds41_model_load(nullptr, folder.path(), nullptr); }},
        {"ds41_model_load", "path",
         [](Scene &) {
             ds41_model *out = sentinel<ds41_model>();
             const ds41_status status = ds41_model_load(&out, nullptr, nullptr);
             CHECK(out == sentinel<ds41_model>());
             return status;
         }},
        {"ds41_buffer_create", "buffer", [](Scene &) { return ds41_buffer_create(nullptr, model.get(), 64); }},
        {"ds41_buffer_create", "model",
         [](Scene &) {
             ds41_buffer *out = sentinel<ds41_buffer>();
             const ds41_status status = ds41_buffer_create(&out, nullptr, 64);
             CHECK(out == sentinel<ds41_buffer>());
             return status;
         }},
        {"ds41_buffer_upload", "buffer", [](Scene &) { return ds41_buffer_upload(nullptr, 0, &n_bytes, 8); }},
        {"ds41_buffer_upload", "source", [](Scene &) { return ds41_buffer_upload(buffer.get(), 0, nullptr, 8); }},
        {"ds41_buffer_download", "buffer", [](Scene &) { return ds41_buffer_download(nullptr, 0, &n_bytes, 8); }},
        {"ds41_buffer_download", "target", [](Scene &) { return ds41_buffer_download(buffer.get(), 0, nullptr, 8); }},
        {"ds41_ctx_create", "ctx", [](Scene &) { return ds41_ctx_create(nullptr, model.get(), nullptr); }},
        {"ds41_ctx_create", "model",
         [](Scene &) {
             ds41_ctx *out = sentinel<ds41_ctx>();
             const ds41_status status = ds41_ctx_create(&out, nullptr, nullptr);
             CHECK(out == sentinel<ds41_ctx>());
             return status;
         }},
        {"ds41_ctx_synchronize", "ctx", [](Scene &) { return ds41_ctx_synchronize(nullptr); }},
        {"ds41_ctx_set_tap", "ctx",
         [](Scene &) {
             return ds41_ctx_set_tap(
                 nullptr, nullptr, 0, [](const ds41_tap *, void *) {}, nullptr);
         }},
        {"ds41_ctx_set_tap", "names",
         [](Scene &s) {
             return ds41_ctx_set_tap(
                 s.ctx, nullptr, 1, [](const ds41_tap *, void *) {}, nullptr);
         }},
        {"ds41_ctx_set_tap", "names",
         [](Scene &s) {
             const char *names[2] = {"q", nullptr};
             return ds41_ctx_set_tap(
                 s.ctx, names, 2, [](const ds41_tap *, void *) {}, nullptr);
         }},
        {"ds41_seq_create", "seq", [](Scene &) { return ds41_seq_create(nullptr, model.get()); }},
        {"ds41_seq_create", "model",
         [](Scene &) {
             ds41_seq *out = sentinel<ds41_seq>();
             const ds41_status status = ds41_seq_create(&out, nullptr);
             CHECK(out == sentinel<ds41_seq>());
             return status;
         }},
        {"ds41_seq_reset", "seq", [](Scene &) { return ds41_seq_reset(nullptr); }},
        {"ds41_seq_get_position", "seq",
         [](Scene &) {
             int64_t position = 77;
             const ds41_status status = ds41_seq_get_position(nullptr, 0, &position);
             CHECK(position == 77);
             return status;
         }},
        {"ds41_seq_get_position", "position", [](Scene &s) { return ds41_seq_get_position(s.a, 0, nullptr); }},
        {"ds41_seq_reserve", "seq", [](Scene &) { return ds41_seq_reserve(nullptr, 1); }},
        {"ds41_layer_prefill", "ctx",
         [](Scene &s) {
             const ds41_tensor x = s.x_rows(11), out = s.out_rows(11);
             return ds41_layer_prefill(nullptr, 3, s.a, &x, 11, 0, &out);
         }},
        {"ds41_layer_prefill", "seq",
         [](Scene &s) {
             const ds41_tensor x = s.x_rows(11), out = s.out_rows(11);
             return ds41_layer_prefill(s.ctx, 3, nullptr, &x, 11, 0, &out);
         }},
        {"ds41_layer_prefill", "x",
         [](Scene &s) {
             const ds41_tensor out = s.out_rows(11);
             return ds41_layer_prefill(s.ctx, 3, s.a, nullptr, 11, 0, &out);
         }},
        {"ds41_layer_prefill", "out",
         [](Scene &s) {
             const ds41_tensor x = s.x_rows(11);
             return ds41_layer_prefill(s.ctx, 3, s.a, &x, 11, 0, nullptr);
         }},
        {"ds41_decode_prep", "ctx",
         [](Scene &s) {
             const ds41_span span = {s.fresh, 0, 1, 0};
             return ds41_decode_prep(nullptr, &span, 1);
         }},
        {"ds41_decode_prep", "spans", [](Scene &s) { return ds41_decode_prep(s.ctx, nullptr, 1); }},
        {"ds41_decode_prep", "seq",
         [](Scene &s) {
             const ds41_span span = {nullptr, 0, 1, 0};
             return ds41_decode_prep(s.ctx, &span, 1);
         }},
        {"ds41_decode_body", "ctx",
         [](Scene &s) {
             const ds41_tensor x = s.x_rows(3), out = s.out_rows(3);
             return ds41_decode_body(nullptr, 5, &x, &out);
         }},
        {"ds41_decode_body", "x",
         [](Scene &s) {
             const ds41_tensor out = s.out_rows(3);
             return ds41_decode_body(s.ctx, 5, nullptr, &out);
         }},
        {"ds41_decode_body", "out",
         [](Scene &s) {
             const ds41_tensor x = s.x_rows(3);
             return ds41_decode_body(s.ctx, 5, &x, nullptr);
         }},
        {"ds41_decode_capturable", "ctx",
         [](Scene &) {
             int32_t capturable = 77;
             const ds41_status status = ds41_decode_capturable(nullptr, 0, &capturable);
             CHECK(capturable == 77);
             return status;
         }},
        {"ds41_decode_capturable", "capturable", [](Scene &s) { return ds41_decode_capturable(s.ctx, 0, nullptr); }},
        {"ds41_graph_begin", "ctx", [](Scene &) { return ds41_graph_begin(nullptr, 0); }},
        {"ds41_graph_end", "ctx",
         [](Scene &) {
             ds41_graph *graph = sentinel<ds41_graph>();
             const ds41_status status = ds41_graph_end(nullptr, &graph);
             CHECK(graph == sentinel<ds41_graph>());
             return status;
         }},
        {"ds41_graph_end", "graph", [](Scene &s) { return ds41_graph_end(s.ctx, nullptr); }},
        {"ds41_graph_launch", "graph", [](Scene &) { return ds41_graph_launch(nullptr); }},
    };
}

} // namespace

TEST_CASE("NULL where an object is needed is refused by name, in the middle of a step") {
    std::vector<Refusal> list;
    for (const NullCall &null_call : null_calls()) {
        const std::string name = std::string(null_call.function) + "(" + null_call.argument + ")";
        for (const Moment moment : {Moment::in_prefill, Moment::in_decode}) {
            list.push_back({name,
                            moment,
                            {DS41_STATUS_INVALID_ARGUMENT},
                            null_call.function,
                            {null_call.argument, "NULL|null"},
                            null_call.call});
        }
    }
    check_refusals(list);
}

TEST_CASE("initialisers and destroyers ignore NULL") {
    const int64_t shape[1] = {3};
    ds41_tensor_init(nullptr, nullptr, DS41_DTYPE_F32, 1, shape);
    ds41_config_init(nullptr, 64);
    ds41_config_flash(nullptr, 64);
    ds41_layer_role_init(nullptr, 64);
    ds41_model_options_init(nullptr, 64);
    ds41_layer_weights_init(nullptr, 64);
    ds41_memory_init(nullptr, 64);
    ds41_ctx_options_init(nullptr, 64);
    ds41_checkpoint_tensor_init(nullptr, 64);
    ds41_load_options_init(nullptr, 64);
    ds41_file_destroy(nullptr);
    ds41_checkpoint_destroy(nullptr);
    ds41_model_destroy(nullptr);
    ds41_buffer_destroy(nullptr);
    ds41_ctx_destroy(nullptr);
    ds41_seq_destroy(nullptr);
}

TEST_CASE("getters of NULL give nothing") {
    CHECK(ds41_file_get_n_tensors(nullptr) == 0);
    CHECK(ds41_file_get_tensor_name(nullptr, 0) == nullptr);
    CHECK(ds41_file_get_metadata(nullptr, "key") == nullptr);
    CHECK(std::string(ds41_model_get_backend(nullptr)).empty());
    CHECK(std::string(ds41_checkpoint_get_format(nullptr)).empty());
    CHECK(ds41_checkpoint_get_n_files(nullptr) == 0);
    CHECK(ds41_checkpoint_get_file(nullptr, 0) == nullptr);
    CHECK(ds41_checkpoint_get_n_tensors(nullptr) == 0);
    CHECK(ds41_checkpoint_get_n_problems(nullptr) == 0);
    CHECK(ds41_checkpoint_get_problem(nullptr, 0) == nullptr);
    CHECK(ds41_buffer_get_data(nullptr) == nullptr);
    CHECK(ds41_buffer_get_bytes(nullptr) == 0);
    CHECK(ds41_ctx_get_bytes(nullptr) == 0);
    CHECK(ds41_seq_get_bytes(nullptr) == 0);
    CHECK(ds41_backend_get_name(-1) == nullptr);
    CHECK(ds41_backend_get_name(INT32_MAX) == nullptr);
}
