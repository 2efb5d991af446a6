// Files from the outside: what cannot be opened, what is no safetensors file, and what a good one says.
#include "support.h"

#include <cstring>

using namespace api_test;

namespace {

constexpr const char *kLoad = "ds41_file_load";

File load(const char *path) {
    ds41_file *file = nullptr;
    must(ds41_file_load(&file, path));
    return File(file);
}

void refuse(const std::string &contents, const std::vector<std::string> &words) {
    CAPTURE(contents.substr(0, 160));
    const TempFile temp(contents);
    char place;
    ds41_file *const before = reinterpret_cast<ds41_file *>(&place);
    ds41_file *file = before;
    check_refused(ds41_file_load(&file, temp.path()), {DS41_STATUS_INVALID_FILE}, kLoad, words);
    CHECK(file == before);
}

} // namespace

TEST_CASE("paths that lead to no file") {
    ds41_config config;
    ds41_config_init(&config, sizeof(config));
    config.dim = 77;
    const ds41_config before = config;
    for (const char *path : {"/nonexistent/file", "", ".", "/", "/dev/null/x"}) {
        CAPTURE(std::string(path));
        ds41_file *file = nullptr;
        check_refused(ds41_file_load(&file, path), {DS41_STATUS_IO_ERROR}, kLoad, {"path"});
        CHECK(file == nullptr);
        if (*path) CHECK(std::strstr(ds41_last_error(), path) != nullptr);
        check_refused(ds41_config_load(&config, path), {DS41_STATUS_IO_ERROR}, "ds41_config_load", {"path"});
        CHECK(std::memcmp(&config, &before, sizeof(config)) == 0);
    }
}

TEST_CASE("files that are no safetensors files") {
    const std::string eight(8, 'd');
    refuse("", {});
    refuse("1234567", {});
    refuse(std::string(8, '\0'), {});
    refuse(std::string("\x10\0\0\0\0\0\0\0", 8) + "{}", {}); // header longer than the file
    refuse(std::string(8, '\xFF') + "{}", {});
    refuse(std::string("\xFE\xFF\xFF\xFF\xFF\xFF\xFF\x7F", 8) + "{}", {});
    refuse(safetensors("[]", ""), {});
    refuse(safetensors("{", ""), {});
    refuse(safetensors("\xFF\xFE", ""), {});
    refuse(safetensors(R"({"t":{"dtype":"F32","shape":[2]}})", eight), {"t"});
    refuse(safetensors(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}})", eight), {"t"});
    refuse(safetensors(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", eight), {"t"});
    refuse(safetensors(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,16]}})", eight), {"t"});
    refuse(safetensors(R"({"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", eight), {"t"});
    refuse(safetensors(R"({"t":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", eight), {"t"});
    refuse(safetensors(R"({"t":{"dtype":"X9","shape":[2],"data_offsets":[0,8]}})", eight), {"t"});
    refuse(safetensors(R"({"t":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", eight), {"t"});
    refuse(safetensors(R"({"a":{"dtype":"U8","shape":[6],"data_offsets":[0,6]},
                           "b":{"dtype":"U8","shape":[6],"data_offsets":[2,8]}})",
                       eight),
           {"a|b"});
    refuse(safetensors(R"({"t":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
                           "t":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}})",
                       eight),
           {"t"});
}

TEST_CASE("what a file says about its tensors") {
    const TempFile temp(safetensors(R"({"__metadata__":{"case":"x","empty":""},)"
                                    R"("w.weight":{"dtype":"F8_E4M3","shape":[2,32],"data_offsets":[0,64]},)"
                                    R"("w.scale":{"dtype":"F8_E8M0","shape":[1,1],"data_offsets":[64,65]},)"
                                    R"("q.weight":{"dtype":"U8","shape":[1,3],"data_offsets":[65,68]},)"
                                    R"("b":{"dtype":"F32","shape":[1,2,1],"data_offsets":[68,76]},)"
                                    R"("deep":{"dtype":"U8","shape":[1,1,1,1,2],"data_offsets":[76,78]},)"
                                    R"("a":{"dtype":"BF16","shape":[3],"data_offsets":[78,84]},)"
                                    R"("c":{"dtype":"F64","shape":[1],"data_offsets":[84,92]}} )",
                                    std::string(64, 'w') + std::string(1, 127) + "123" + std::string(24, '\0')));
    const File file = load(temp.path());
    CHECK(ds41_file_get_n_tensors(file.get()) == 7);
    const char *const names[] = {"a", "b", "c", "deep", "q.weight", "w.scale", "w.weight"};
    for (int64_t i = 0; i < 7; i++) CHECK(std::string(ds41_file_get_tensor_name(file.get(), i)) == names[i]);
    for (const int64_t i : {int64_t(-1), int64_t(7), INT64_MAX, INT64_MIN}) {
        CHECK(ds41_file_get_tensor_name(file.get(), i) == nullptr);
    }
    CHECK(std::string(ds41_file_get_metadata(file.get(), "case")) == "x");
    CHECK(std::string(ds41_file_get_metadata(file.get(), "empty")).empty());
    CHECK(ds41_file_get_metadata(file.get(), "none") == nullptr);
    CHECK(ds41_file_get_metadata(file.get(), nullptr) == nullptr);

    ds41_tensor tensor;
    std::memset(&tensor, 0xA5, sizeof(tensor));
    must(ds41_file_get_tensor(file.get(), "w.weight", &tensor));
    CHECK(tensor.dtype == DS41_DTYPE_FP8_E4M3);
    CHECK(tensor.n_dims == 2);
    CHECK(tensor.shape[0] == 2);
    CHECK(tensor.shape[1] == 32);
    CHECK(tensor.shape[2] == 0);
    CHECK(tensor.scale_shape[0] == 1);
    CHECK(tensor.scale_shape[1] == 1);
    CHECK(tensor.flags == 0);
    CHECK(tensor.reserved == 0);
    REQUIRE(tensor.scales != nullptr);
    CHECK(*static_cast<const uint8_t *>(tensor.scales) == 127);
    CHECK(std::memcmp(tensor.data, std::string(64, 'w').data(), 64) == 0);

    must(ds41_file_get_tensor(file.get(), "q.weight", &tensor));
    CHECK(tensor.dtype == DS41_DTYPE_U8);
    CHECK(tensor.scales == nullptr);
    CHECK(std::memcmp(tensor.data, "123", 3) == 0);
    must(ds41_file_get_tensor(file.get(), "w.scale", &tensor));
    CHECK(tensor.dtype == DS41_DTYPE_UE8M0);

    const ds41_tensor before = tensor;
    const auto refuse_tensor = [&](const char *name, const std::vector<ds41_status> &statuses) {
        CAPTURE(std::string(name));
        check_refused(ds41_file_get_tensor(file.get(), name, &tensor), statuses, "ds41_file_get_tensor", {name});
        CHECK(std::memcmp(&tensor, &before, sizeof(tensor)) == 0);
    };
    refuse_tensor("w.weigh", {DS41_STATUS_MISSING_TENSOR});
    refuse_tensor("__metadata__", {DS41_STATUS_MISSING_TENSOR});
    refuse_tensor("deep", {DS41_STATUS_INVALID_SHAPE});
    refuse_tensor("c", {DS41_STATUS_INVALID_DTYPE});
}

TEST_CASE("data may lie at any byte") {
    for (const size_t padding : {0, 1, 2, 3}) {
        CAPTURE(padding);
        const std::string header = R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                   R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]}})";
        const std::string padded = header + std::string((4 - header.size() % 4) % 4 + padding, ' ');
        const TempFile temp(safetensors(padded, "12345678"));
        const File file = load(temp.path());
        ds41_tensor tensor;
        must(ds41_file_get_tensor(file.get(), "b", &tensor));
        CHECK(reinterpret_cast<uintptr_t>(tensor.data) % 4 == padding);
        CHECK(std::memcmp(tensor.data, "1234", 4) == 0);
        must(ds41_file_get_tensor(file.get(), "a", &tensor));
        CHECK(std::memcmp(tensor.data, "5678", 4) == 0);
    }
}

TEST_CASE("a model takes its weights from a file, aligned or not") {
    const int32_t n = is_simulated() ? 5 : 13;
    for (const Format format : {Format::bf16, Format::fp8}) {
        CAPTURE(std::string(name_of(format)));
        const ds41_config config = config_for(format);
        const Record expected = whole_prefill(random_model(format), {3}, n);
        std::string header = "{", data;
        const auto add = [&](const std::string &name, const char *dtype, const std::vector<int64_t> &shape,
                             const void *bytes, size_t n_bytes) {
            header += (header.size() == 1 ? "\"" : ",\"") + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[";
            for (size_t i = 0; i < shape.size(); i++) header += (i == 0 ? "" : ",") + std::to_string(shape[i]);
            header += "],\"data_offsets\":[" + std::to_string(data.size()) + ",";
            data.append(static_cast<const char *>(bytes), n_bytes);
            header += std::to_string(data.size()) + "]}";
        };
        const auto name_in_file = [](int32_t layer, const TensorSpec &spec) {
            return "layers." + std::to_string(layer) + "." + spec.name;
        };
        for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) {
            const LayerStorage storage = random_layer(config, layer, format, kSeed);
            for (const TensorSpec &spec : tensor_specs(config, layer)) {
                if (!spec.present) continue;
                const ds41_tensor &t = storage.weights.*spec.member;
                uint64_t n_bytes = 0;
                must(ds41_tensor_get_bytes(&t, &n_bytes));
                const char *dtype = t.dtype == DS41_DTYPE_F32 ? "F32" : t.dtype == DS41_DTYPE_BF16 ? "BF16" : "F8_E4M3";
                const std::string name = name_in_file(layer, spec);
                add(name + ".weight", dtype, std::vector<int64_t>(t.shape, t.shape + t.n_dims), t.data, n_bytes);
                if (t.scales == nullptr) continue;
                add(name + ".scale", "F8_E8M0", {t.scale_shape[0], t.scale_shape[1]}, t.scales,
                    static_cast<size_t>(t.scale_shape[0] * t.scale_shape[1]));
            }
        }
        for (const size_t padding : {0, 1}) { // 8 bytes and the header come before the data
            const std::string padded = header + "}" + std::string((9 - header.size() % 4) % 4 + padding, ' ');
            const TempFile temp(safetensors(padded, data));
            File file = load(temp.path());
            TestModel model = empty_model(config);
            for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) {
                ds41_layer_weights weights;
                ds41_layer_weights_init(&weights, sizeof(weights));
                for (const TensorSpec &spec : tensor_specs(config, layer)) {
                    if (!spec.present) continue;
                    const std::string name = name_in_file(layer, spec) + ".weight";
                    must(ds41_file_get_tensor(file.get(), name.c_str(), &(weights.*spec.member)));
                }
                must(ds41_model_set_layer(model.get(), layer, &weights));
            }
            file.reset();
            check_same(whole_prefill(model, {3}, n), expected, config);
        }
    }
}

TEST_CASE("a file without tensors is a file") {
    const TempFile temp(safetensors("{}", ""));
    const File file = load(temp.path());
    CHECK(ds41_file_get_n_tensors(file.get()) == 0);
    CHECK(ds41_file_get_tensor_name(file.get(), 0) == nullptr);
    CHECK(ds41_file_get_metadata(file.get(), "k") == nullptr);
}
