#include "support_checkpoint.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace api_test {

namespace {

struct Name {
    const char *member;
    const char *release;
};
// Told on purpose a second time: the library's own table is what this checks.
constexpr Name kNames[] = {
    {"wq_a", "wq_a.weight"},
    {"q_norm", "q_norm.weight"},
    {"wq_b", "wq_b.weight"},
    {"wkv", "wkv.weight"},
    {"kv_norm", "kv_norm.weight"},
    {"attn_sink", "attn_sink"},
    {"wo_a", "wo_a.weight"},
    {"wo_b", "wo_b.weight"},
    {"compressor_wkv", "compressor.wkv.weight"},
    {"compressor_wgate", "compressor.wgate.weight"},
    {"compressor_norm", "compressor.norm.weight"},
    {"indexer_wk", "indexer.wk.weight"},
    {"indexer_k_norm", "indexer.k_norm.weight"},
    {"indexer_wq_b", "indexer.wq_b.weight"},
    {"indexer_weights_proj", "indexer.weights_proj.weight"},
};

std::string release_name(const TensorSpec &spec, const ds41_config &config, int32_t layer) {
    const std::string prefix =
        layer < config.n_layers ? "layers." + std::to_string(layer) : "mtp." + std::to_string(layer - config.n_layers);
    for (const Name &name : kNames)
        if (std::string(name.member) == spec.name) return prefix + ".attn." + name.release;
    throw std::logic_error(spec.name);
}

const char *file_dtype(int32_t dtype) {
    switch (dtype) {
    case DS41_DTYPE_F32:
        return "F32";
    case DS41_DTYPE_BF16:
        return "BF16";
    case DS41_DTYPE_FP8_E4M3:
        return "F8_E4M3";
    default:
        throw std::logic_error("a dtype that safetensors lacks");
    }
}

} // namespace

CheckpointFolder::CheckpointFolder(const TestModel &model) {
    std::string pattern = (std::filesystem::temp_directory_path() / "ds41-checkpoint-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
    path_ = pattern;

    std::string header, data;
    const auto add = [&](const std::string &name, const char *dtype, const int64_t *shape, int32_t n_dims,
                         const void *bytes, uint64_t n_bytes) {
        header += (header.empty() ? "{\"" : ",\"") + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[";
        for (int32_t i = 0; i < n_dims; ++i) header += (i ? "," : "") + std::to_string(shape[i]);
        header +=
            "],\"data_offsets\":[" + std::to_string(data.size()) + "," + std::to_string(data.size() + n_bytes) + "]}";
        data.append(static_cast<const char *>(bytes), n_bytes);
    };
    for (int32_t layer = 0; layer < model.config.n_compress_ratios; ++layer) {
        const ds41_layer_weights &weights = model.layers[static_cast<size_t>(layer)].weights;
        for (const TensorSpec &spec : tensor_specs(model.config, layer)) {
            if (!spec.present) continue;
            const ds41_tensor &tensor = weights.*spec.member;
            uint64_t n_bytes = 0;
            must(ds41_tensor_get_bytes(&tensor, &n_bytes));
            const std::string name = release_name(spec, model.config, layer);
            add(name, file_dtype(tensor.dtype), tensor.shape, tensor.n_dims, tensor.data, n_bytes);
            if (tensor.scales)
                add(name.substr(0, name.size() - 6) + "scale", "F8_E8M0", tensor.scale_shape, 2, tensor.scales,
                    static_cast<uint64_t>(tensor.scale_shape[0] * tensor.scale_shape[1]));
        }
    }
    std::ofstream(weights_path(), std::ios::binary) << safetensors(header + "}", data);
    std::ofstream(config_path(), std::ios::binary) << to_json(model.config);
}

CheckpointFolder::~CheckpointFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

} // namespace api_test
