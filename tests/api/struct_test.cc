// Structs that can grow: too small is refused; a larger one is served while the unknown tail is zero, or, where the
// call fills it, is given a zero tail. And what the `_init` functions promise.
#include "support_checkpoint.h"

#include <cstring>
#include <functional>

using namespace api_test;

namespace {

// A call that receives a struct of unknown size at `memory`.
struct StructCall {
    const char *function;
    const char *argument;
    bool filled; // by the call
    size_t known_bytes;
    std::function<void(void *)> fill; // _init and valid members
    std::function<ds41_status(void *)> call;
};

template <typename T> T *as(void *memory) {
    return static_cast<T *>(memory);
}

std::vector<StructCall> struct_calls() {
    static const ds41_config config = small_config();
    static const std::string json = to_json(config);
    static const TempFile file(json);
    static TestModel model = empty_model(config);
    static LayerStorage layer = random_layer(config, 0, Format::bf16, kSeed);
    static TestModel frozen = random_model(config); // contexts go here, layers there
    static const CheckpointFolder folder(frozen);
    static Checkpoint checkpoint;
    if (!checkpoint) {
        ds41_checkpoint *loaded = nullptr;
        must(ds41_checkpoint_load(&loaded, folder.path()));
        checkpoint.reset(loaded);
    }
    const auto fill_config = [](void *m) { *as<ds41_config>(m) = config; };
    const auto init_config = [](void *m) { ds41_config_init(as<ds41_config>(m), sizeof(ds41_config)); };
    return {
        {"ds41_config_validate", "config", false, sizeof(ds41_config), fill_config,
         [](void *m) { return ds41_config_validate(as<ds41_config>(m)); }},
        {"ds41_config_get_role", "config", false, sizeof(ds41_config), fill_config,
         [](void *m) {
             ds41_layer_role role;
             ds41_layer_role_init(&role, sizeof(role));
             return ds41_config_get_role(as<ds41_config>(m), 0, &role);
         }},
        {"ds41_config_get_role", "role", true, sizeof(ds41_layer_role),
         [](void *m) { ds41_layer_role_init(as<ds41_layer_role>(m), sizeof(ds41_layer_role)); },
         [](void *m) { return ds41_config_get_role(&config, 0, as<ds41_layer_role>(m)); }},
        {"ds41_config_parse", "config", true, sizeof(ds41_config), init_config,
         [](void *m) { return ds41_config_parse(as<ds41_config>(m), json.data(), json.size()); }},
        {"ds41_config_load", "config", true, sizeof(ds41_config), init_config,
         [](void *m) { return ds41_config_load(as<ds41_config>(m), file.path()); }},
        {"ds41_model_create", "config", false, sizeof(ds41_config), fill_config,
         [](void *m) {
             ds41_model *created = nullptr;
             const ds41_status status = ds41_model_create(&created, as<ds41_config>(m), nullptr);
             CHECK((created != nullptr) == (status == DS41_STATUS_OK));
             ds41_model_destroy(created);
             return status;
         }},
        {"ds41_model_create", "options", false, sizeof(ds41_model_options),
         [](void *m) { ds41_model_options_init(as<ds41_model_options>(m), sizeof(ds41_model_options)); },
         [](void *m) {
             ds41_model *created = nullptr;
             const ds41_status status = ds41_model_create(&created, &config, as<ds41_model_options>(m));
             CHECK((created != nullptr) == (status == DS41_STATUS_OK));
             ds41_model_destroy(created);
             return status;
         }},
        {"ds41_model_set_layer", "weights", false, sizeof(ds41_layer_weights),
         [](void *m) { *as<ds41_layer_weights>(m) = layer.weights; },
         [](void *m) { return ds41_model_set_layer(model.get(), 0, as<ds41_layer_weights>(m)); }},
        {"ds41_model_get_config", "config", true, sizeof(ds41_config), init_config,
         [](void *m) { return ds41_model_get_config(model.get(), as<ds41_config>(m)); }},
        {"ds41_model_estimate_memory", "memory", true, sizeof(ds41_memory),
         [](void *m) { ds41_memory_init(as<ds41_memory>(m), sizeof(ds41_memory)); },
         [](void *m) { return ds41_model_estimate_memory(model.get(), 1, 10, 1, as<ds41_memory>(m)); }},
        {"ds41_checkpoint_get_config", "config", true, sizeof(ds41_config), init_config,
         [](void *m) { return ds41_checkpoint_get_config(checkpoint.get(), as<ds41_config>(m)); }},
        {"ds41_checkpoint_get_tensor", "tensor", true, sizeof(ds41_checkpoint_tensor),
         [](void *m) { ds41_checkpoint_tensor_init(as<ds41_checkpoint_tensor>(m), sizeof(ds41_checkpoint_tensor)); },
         [](void *m) { return ds41_checkpoint_get_tensor(checkpoint.get(), 0, as<ds41_checkpoint_tensor>(m)); }},
        {"ds41_checkpoint_estimate_memory", "memory", true, sizeof(ds41_memory),
         [](void *m) { ds41_memory_init(as<ds41_memory>(m), sizeof(ds41_memory)); },
         [](void *m) {
             return ds41_checkpoint_estimate_memory(checkpoint.get(), nullptr, 1, 10, 1, as<ds41_memory>(m));
         }},
        {"ds41_model_load", "options", false, sizeof(ds41_load_options),
         [](void *m) { ds41_load_options_init(as<ds41_load_options>(m), sizeof(ds41_load_options)); },
         [](void *m) {
             ds41_model *created = nullptr;
             const ds41_status status = ds41_model_load(&created, folder.path(), as<ds41_load_options>(m));
             CHECK((created != nullptr) == (status == DS41_STATUS_OK));
             ds41_model_destroy(created);
             return status;
         }},
        {"ds41_ctx_create", "options", false, sizeof(ds41_ctx_options),
         [](void *m) { ds41_ctx_options_init(as<ds41_ctx_options>(m), sizeof(ds41_ctx_options)); },
         [](void *m) {
             ds41_ctx *created = nullptr;
             const ds41_status status = ds41_ctx_create(&created, frozen.get(), as<ds41_ctx_options>(m));
             CHECK((created != nullptr) == (status == DS41_STATUS_OK));
             ds41_ctx_destroy(created);
             return status;
         }},
    };
}

// Memory of a caller whose struct has a tail that this library does not know.
struct Tailed {
    static constexpr size_t kTail = 24;
    explicit Tailed(const StructCall &call) : known(call.known_bytes), memory((known + kTail) / 8 + 1) {
        call.fill(memory.data());
    }
    uint8_t *bytes() { return reinterpret_cast<uint8_t *>(memory.data()); }
    void set_size(size_t n_bytes) {
        const uint32_t size = static_cast<uint32_t>(n_bytes);
        std::memcpy(memory.data(), &size, sizeof(size));
    }
    size_t known;
    std::vector<uint64_t> memory;
};

// Whether every byte but struct_size was written: the struct was filled with a pattern before.
template <typename T> bool is_zero_but(const T &value, size_t first, size_t last) {
    const uint8_t *bytes = reinterpret_cast<const uint8_t *>(&value);
    for (size_t i = 0; i < sizeof(T); i++) {
        if ((i < first || i >= last) && bytes[i] != 0) return false;
    }
    return true;
}

} // namespace

TEST_CASE("a struct that its _init function has not touched is refused") {
    for (const StructCall &call : struct_calls()) {
        for (const size_t size : {size_t(0), size_t(1), size_t(4), call.known_bytes - 1}) {
            CAPTURE(std::string(call.function));
            CAPTURE(size);
            Tailed given(call);
            given.set_size(size);
            const std::vector<uint64_t> before = given.memory;
            check_refused(call.call(given.bytes()), {DS41_STATUS_INVALID_STRUCT}, call.function,
                          {call.argument, "struct_size", std::to_string(size), std::to_string(call.known_bytes)});
            CHECK(given.memory == before);
        }
    }
}

TEST_CASE("a struct of a newer caller is served as long as its tail is zero, or filled up with zeros") {
    for (const StructCall &call : struct_calls()) {
        CAPTURE(std::string(call.function));
        CAPTURE(std::string(call.argument));
        for (const size_t more : {size_t(1), size_t(8), Tailed::kTail}) {
            CAPTURE(more);
            Tailed given(call);
            given.set_size(call.known_bytes + more);
            must(call.call(given.bytes()));
            for (size_t i = call.known_bytes; i < call.known_bytes + Tailed::kTail; i++) CHECK(given.bytes()[i] == 0);
            for (const size_t at : {call.known_bytes, call.known_bytes + more - 1}) {
                Tailed spoiled(call);
                spoiled.set_size(call.known_bytes + more);
                spoiled.bytes()[at] = 1;
                const std::vector<uint64_t> before = spoiled.memory;
                if (call.filled) {
                    must(call.call(spoiled.bytes()));
                    CHECK(spoiled.bytes()[at] == 0);
                    continue;
                }
                check_refused(call.call(spoiled.bytes()), {DS41_STATUS_UNSUPPORTED}, call.function, {call.argument});
                CHECK(spoiled.memory == before);
            }
            // What lies behind the struct is nobody's business.
            Tailed neighbour(call);
            neighbour.set_size(call.known_bytes);
            neighbour.bytes()[call.known_bytes] = 1;
            must(call.call(neighbour.bytes()));
            CHECK(neighbour.bytes()[call.known_bytes] == 1);
        }
    }
}

TEST_CASE("a size that no struct will ever have is taken for what it is: a struct without _init") {
    for (const StructCall &call : struct_calls()) {
        for (const size_t size : {call.known_bytes + 4097, size_t(0xA5A5A5A5), size_t(UINT32_MAX)}) {
            CAPTURE(std::string(call.function));
            CAPTURE(size);
            Tailed given(call);
            given.set_size(size);
            const std::vector<uint64_t> before = given.memory;
            check_refused(call.call(given.bytes()), {DS41_STATUS_INVALID_STRUCT}, call.function,
                          {call.argument, "struct_size", std::to_string(size)});
            CHECK(given.memory == before);
        }
    }
}

TEST_CASE("_init functions write what they are told and no more") {
    alignas(8) unsigned char memory[sizeof(ds41_config) + 64];
    for (const size_t size :
         {size_t(0), size_t(3), size_t(4), size_t(40), sizeof(ds41_config), sizeof(ds41_config) + 64}) {
        std::memset(memory, 0xA5, sizeof(memory));
        ds41_config_flash(reinterpret_cast<ds41_config *>(memory), size);
        CAPTURE(size);
        for (size_t i = size < 4 ? 0 : size; i < sizeof(memory); ++i) REQUIRE(memory[i] == 0xA5);
        uint32_t struct_size = 0;
        std::memcpy(&struct_size, memory, 4);
        if (size >= 4) CHECK(struct_size == size);
        if (size >= sizeof(ds41_config)) must(ds41_config_validate(reinterpret_cast<const ds41_config *>(memory)));
    }
}

TEST_CASE("_init functions fill the whole struct") {
    ds41_config config;
    std::memset(&config, 0xA5, sizeof(config));
    ds41_config_init(&config, sizeof(config));
    CHECK(config.struct_size == sizeof(config));
    CHECK(config.candidate_source_layer == -1);
    config.candidate_source_layer = 0;
    CHECK(is_zero_but(config, 0, 4));

    ds41_layer_role role;
    std::memset(&role, 0xA5, sizeof(role));
    ds41_layer_role_init(&role, sizeof(role));
    CHECK(role.struct_size == sizeof(role));
    CHECK(is_zero_but(role, 0, 4));

    ds41_model_options options;
    std::memset(&options, 0xA5, sizeof(options));
    ds41_model_options_init(&options, sizeof(options));
    CHECK(options.struct_size == sizeof(options));
    CHECK(options.topk_rule == DS41_TOPK_STABLE);
    CHECK(is_zero_but(options, 0, 16)); // backend may name "auto"
    CHECK((options.backend == nullptr || std::string(options.backend) == "auto"));

    ds41_layer_weights weights;
    std::memset(&weights, 0xA5, sizeof(weights));
    ds41_layer_weights_init(&weights, sizeof(weights));
    CHECK(weights.struct_size == sizeof(weights));
    CHECK(weights.ownership == DS41_OWNERSHIP_COPY);
    CHECK(is_zero_but(weights, 0, 4));

    ds41_memory memory;
    std::memset(&memory, 0xA5, sizeof(memory));
    ds41_memory_init(&memory, sizeof(memory));
    CHECK(memory.struct_size == sizeof(memory));
    CHECK(is_zero_but(memory, 0, 4));

    ds41_checkpoint_tensor tensor;
    std::memset(&tensor, 0xA5, sizeof(tensor));
    ds41_checkpoint_tensor_init(&tensor, sizeof(tensor));
    CHECK(tensor.struct_size == sizeof(tensor));
    CHECK(is_zero_but(tensor, 0, 4));

    ds41_load_options load_options;
    std::memset(&load_options, 0xA5, sizeof(load_options));
    ds41_load_options_init(&load_options, sizeof(load_options));
    CHECK(load_options.struct_size == sizeof(load_options));
    CHECK(is_zero_but(load_options, 0, 4));

    ds41_ctx_options ctx_options;
    std::memset(&ctx_options, 0xA5, sizeof(ctx_options));
    ds41_ctx_options_init(&ctx_options, sizeof(ctx_options));
    CHECK(ctx_options.struct_size == sizeof(ctx_options));
    CHECK(is_zero_but(ctx_options, 0, 4));
}

TEST_CASE("the attention split is in its range") {
    const TestModel model = random_model(small_config());
    ds41_ctx_options options;
    ds41_ctx_options_init(&options, sizeof(options));
    for (const int32_t split : {-1, 9}) {
        options.attention_split = split;
        ds41_ctx *ctx = nullptr;
        check_refused(ds41_ctx_create(&ctx, model.get(), &options), {DS41_STATUS_INVALID_ARGUMENT}, "ds41_ctx_create",
                      {"options.attention_split", std::to_string(split), "[0, 8]"});
        CHECK(ctx == nullptr);
    }
}
