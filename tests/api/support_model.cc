// Random small models and their inputs. Values come from a hash of what they belong to, so that no test depends on the
// order in which another drew them.
#include "support.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace api_test {

static uint64_t mix(uint64_t a, uint64_t b) {
    uint64_t z = a * 0x9E3779B97F4A7C15u + b + 0x632BE59BD9B4E019u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

// Even in [-1, 1).
static float even(uint64_t key) {
    return static_cast<float>(static_cast<int64_t>(key >> 40) - (1 << 23)) / static_cast<float>(1 << 23);
}

static uint16_t to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

const char *name_of(Format format) {
    switch (format) {
    case Format::bf16:
        return "bf16";
    case Format::f32:
        return "f32";
    case Format::fp8:
        return "fp8";
    case Format::fp8_plain:
        return "fp8, plain activations";
    case Format::q2_k:
        return "q2_k";
    case Format::q2_k_plain:
        return "q2_k, plain activations";
    }
    return "?";
}

// ---- Configurations -------------------------------------------------------------------------------------------------

ds41_config small_config() {
    ds41_config config;
    ds41_config_init(&config, sizeof(config));
    config.n_layers = 7;
    config.n_compress_ratios = 8;
    config.n_kv_source_layers = 3;
    config.n_index_source_layers = 4;
    config.candidate_source_layer = 4;
    config.dim = 64;
    config.n_heads = 4;
    config.head_dim = 32;
    config.rope_head_dim = 8;
    config.q_lora_rank = 32;
    config.o_groups = 2;
    config.o_lora_rank = 16;
    config.window_size = 8;
    config.index_n_heads = 2;
    config.index_head_dim = 32;
    config.index_topk = 6;
    config.candidate_topk_blocks = 3;
    config.candidate_block_size = 4;
    config.norm_eps = 1e-20f;
    config.rope_theta = 10000;
    config.compress_rope_theta = 160000;
    config.rope_factor = 16;
    config.beta_fast = 32;
    config.beta_slow = 1;
    config.original_seq_len = 64;
    config.max_seq_len = 160;
    const int32_t ratios[8] = {0, 4, 2, 2, 1, 1, 1, 0};
    const int32_t kv_sources[3] = {1, 2, 4};
    const int32_t index_sources[4] = {1, 2, 4, 6};
    std::memcpy(config.compress_ratios, ratios, sizeof(ratios));
    std::memcpy(config.kv_source_layers, kv_sources, sizeof(kv_sources));
    std::memcpy(config.index_source_layers, index_sources, sizeof(index_sources));
    return config;
}

ds41_config wide_config() {
    ds41_config config = small_config();
    config.n_layers = 4;
    config.n_compress_ratios = 4;
    config.n_kv_source_layers = 2;
    config.n_index_source_layers = 3;
    config.candidate_source_layer = 2;
    config.dim = 256;
    config.n_heads = 8;
    config.head_dim = 64;
    config.rope_head_dim = 16;
    config.q_lora_rank = 256;
    config.o_lora_rank = 128;
    const int32_t ratios[8] = {0, 2, 1, 1};
    const int32_t kv_sources[3] = {1, 2};
    const int32_t index_sources[4] = {1, 2, 3};
    std::memcpy(config.compress_ratios, ratios, sizeof(ratios));
    std::memcpy(config.kv_source_layers, kv_sources, sizeof(kv_sources));
    std::memcpy(config.index_source_layers, index_sources, sizeof(index_sources));
    return config;
}

ds41_config chained_config() {
    ds41_config config = small_config();
    config.n_layers = 6;
    config.n_compress_ratios = 6;
    config.n_kv_source_layers = 2;
    config.n_index_source_layers = 4;
    config.candidate_source_layer = 0;
    const int32_t ratios[8] = {1, 1, 1, 1, 1, 1};
    const int32_t kv_sources[3] = {0, 3};
    const int32_t index_sources[4] = {0, 2, 3, 4};
    std::memcpy(config.compress_ratios, ratios, sizeof(ratios));
    std::memcpy(config.kv_source_layers, kv_sources, sizeof(kv_sources));
    std::memcpy(config.index_source_layers, index_sources, sizeof(index_sources));
    return config;
}

ds41_config config_for(Format format) {
    return format == Format::q2_k || format == Format::q2_k_plain ? wide_config() : small_config();
}

static bool lists(const int32_t *list, int32_t n, int32_t layer) {
    for (int32_t i = 0; i < n; i++) {
        if (list[i] == layer) return true;
    }
    return false;
}

ds41_layer_role expected_role(const ds41_config &config, int32_t layer) {
    ds41_layer_role role;
    std::memset(&role, 0, sizeof(role));
    role.struct_size = sizeof(role);
    role.ratio = config.compress_ratios[layer];
    role.kv_source = role.index_source = -1;
    role.is_draft = layer >= config.n_layers;
    if (role.ratio == 0) return role;
    for (int32_t before = 0; before <= layer; before++) {
        if (lists(config.kv_source_layers, config.n_kv_source_layers, before)) role.kv_source = before;
        if (lists(config.index_source_layers, config.n_index_source_layers, before)) role.index_source = before;
    }
    role.is_kv_source = role.kv_source == layer;
    role.is_index_source = role.index_source == layer;
    role.is_candidate_source = config.candidate_source_layer == layer;
    role.uses_candidates =
        role.is_index_source && config.candidate_source_layer >= 0 && config.candidate_source_layer < layer;
    return role;
}

std::vector<TensorSpec> tensor_specs(const ds41_config &c, int32_t layer) {
    using W = ds41_layer_weights;
    const ds41_layer_role role = expected_role(c, layer);
    const bool kv = role.is_kv_source, index = role.is_index_source, keys = kv && index, gate = kv && role.ratio > 1;
    const Kind compressor = role.ratio > 1 ? Kind::pooled_product : Kind::projection;
    const int64_t o_in = static_cast<int64_t>(c.n_heads) * c.head_dim / c.o_groups, o_out = c.o_groups * c.o_lora_rank;
    return {
        {"wq_a", &W::wq_a, Kind::projection, c.q_lora_rank, c.dim, true},
        {"q_norm", &W::q_norm, Kind::vector, c.q_lora_rank, 0, true},
        {"wq_b", &W::wq_b, Kind::projection, c.n_heads * c.head_dim, c.q_lora_rank, true},
        {"wkv", &W::wkv, Kind::projection, c.head_dim, c.dim, true},
        {"kv_norm", &W::kv_norm, Kind::vector, c.head_dim, 0, true},
        {"attn_sink", &W::attn_sink, Kind::vector, c.n_heads, 0, true},
        {"wo_a", &W::wo_a, Kind::projection, o_out, o_in, true},
        {"wo_b", &W::wo_b, Kind::projection, c.dim, o_out, true},
        {"compressor_wkv", &W::compressor_wkv, compressor, c.head_dim, c.dim, kv},
        {"compressor_wgate", &W::compressor_wgate, Kind::pooled_product, c.head_dim, c.dim, gate},
        {"compressor_norm", &W::compressor_norm, Kind::vector, c.head_dim, 0, kv},
        {"indexer_wk", &W::indexer_wk, Kind::projection, c.index_head_dim, c.head_dim, keys},
        {"indexer_k_norm", &W::indexer_k_norm, Kind::vector, c.index_head_dim, 0, keys},
        {"indexer_wq_b", &W::indexer_wq_b, Kind::projection, c.index_n_heads * c.index_head_dim, c.q_lora_rank, index},
        {"indexer_weights_proj", &W::indexer_weights_proj, Kind::projection, c.index_n_heads, c.dim, index},
    };
}

// ---- Weights --------------------------------------------------------------------------------------------------------

static void *grow(LayerStorage &storage, size_t n_bytes) {
    storage.memory.emplace_back((n_bytes + 7) / 8);
    return storage.memory.back().data();
}

static ds41_tensor matrix_view(void *data, int32_t dtype, const TensorSpec &spec) {
    return spec.cols == 0 ? view(data, dtype, {spec.rows}) : view(data, dtype, {spec.rows, spec.cols});
}

static ds41_tensor random_floats(LayerStorage &storage, const TensorSpec &spec, bool wide, float mean, float scale,
                                 uint64_t seed) {
    const size_t n = static_cast<size_t>(spec.rows * (spec.cols == 0 ? 1 : spec.cols));
    void *data = grow(storage, n * (wide ? sizeof(float) : sizeof(uint16_t)));
    for (size_t i = 0; i < n; i++) {
        const float value = mean + scale * even(mix(seed, i));
        if (wide) static_cast<float *>(data)[i] = value;
        if (!wide) static_cast<uint16_t *>(data)[i] = to_bf16(value);
    }
    return matrix_view(data, wide ? DS41_DTYPE_F32 : DS41_DTYPE_BF16, spec);
}

static ds41_tensor random_fp8(LayerStorage &storage, const TensorSpec &spec, uint64_t seed) {
    const size_t n = static_cast<size_t>(spec.rows * spec.cols);
    uint8_t *codes = static_cast<uint8_t *>(grow(storage, n));
    for (size_t i = 0; i < n; i++) {
        const uint64_t key = mix(seed, i);
        const uint64_t exponent = 4 + (key >> 8) % 4; // 1/8 to 2, far from NaN
        codes[i] = static_cast<uint8_t>((key & 1) << 7 | exponent << 3 | (key >> 16 & 7));
    }
    const int64_t scale_rows = (spec.rows + 31) / 32, scale_cols = spec.cols / 32;
    uint8_t *scales = static_cast<uint8_t *>(grow(storage, static_cast<size_t>(scale_rows * scale_cols)));
    for (int64_t i = 0; i < scale_rows * scale_cols; i++) {
        scales[i] = static_cast<uint8_t>(123 + mix(seed + 1, static_cast<uint64_t>(i)) % 3);
    }
    ds41_tensor tensor = matrix_view(codes, DS41_DTYPE_FP8_E4M3, spec);
    tensor.scales = scales;
    tensor.scale_shape[0] = scale_rows;
    tensor.scale_shape[1] = scale_cols;
    return tensor;
}

static ds41_tensor random_q2_k(LayerStorage &storage, const TensorSpec &spec, uint64_t seed) {
    const size_t n_blocks = static_cast<size_t>(spec.rows * spec.cols / 256);
    uint8_t *bytes = static_cast<uint8_t *>(grow(storage, n_blocks * 84));
    for (size_t block = 0; block < n_blocks; block++) {
        uint8_t *at = bytes + block * 84;
        for (size_t i = 0; i < 80; i++) at[i] = static_cast<uint8_t>(mix(seed, block * 84 + i));
        // fp16 d and dmin near 2^-8; 1.5 codes against 1 minimum on average centres the values.
        const uint16_t d = static_cast<uint16_t>(0x1C00 + mix(seed + 1, block) % 256);
        const uint16_t dmin = static_cast<uint16_t>(0x1E00 + mix(seed + 2, block) % 256);
        std::memcpy(at + 80, &d, 2);
        std::memcpy(at + 82, &dmin, 2);
    }
    return matrix_view(bytes, DS41_DTYPE_Q2_K, spec);
}

static ds41_tensor random_projection(LayerStorage &storage, const TensorSpec &spec, Format format, uint64_t seed) {
    const float scale = std::sqrt(3.0f / static_cast<float>(spec.cols));
    const bool plain = format == Format::fp8_plain || format == Format::q2_k_plain;
    ds41_tensor tensor;
    if ((format == Format::fp8 || format == Format::fp8_plain) && spec.cols % 32 == 0) {
        tensor = random_fp8(storage, spec, seed);
    } else if ((format == Format::q2_k || format == Format::q2_k_plain) && spec.cols % 256 == 0) {
        tensor = random_q2_k(storage, spec, seed);
    } else {
        return random_floats(storage, spec, format == Format::f32, 0, scale, seed);
    }
    if (plain) tensor.flags = DS41_TENSOR_PLAIN_ACTIVATIONS;
    return tensor;
}

LayerStorage random_layer(const ds41_config &config, int32_t layer, Format format, uint64_t seed) {
    LayerStorage storage;
    ds41_layer_weights_init(&storage.weights, sizeof(storage.weights));
    uint64_t key = mix(seed, static_cast<uint64_t>(layer));
    for (const TensorSpec &spec : tensor_specs(config, layer)) {
        key = mix(key, 1);
        if (!spec.present) continue;
        ds41_tensor &tensor = storage.weights.*spec.member;
        const bool sink = spec.member == &ds41_layer_weights::attn_sink;
        const bool wide = format != Format::bf16 || layer % 2 == 0; // vectors: both dtypes
        switch (spec.kind) {
        case Kind::projection:
            tensor = random_projection(storage, spec, format, key);
            break;
        case Kind::vector:
            tensor = random_floats(storage, spec, wide, sink ? 0 : 1, sink ? 2 : 0.25f, key);
            break;
        case Kind::pooled_product:
            tensor = random_floats(storage, spec, true, 0, std::sqrt(3.0f / static_cast<float>(spec.cols)), key);
            break;
        }
    }
    return storage;
}

ds41_model_options tested_options(int32_t topk_rule) {
    ds41_model_options options;
    ds41_model_options_init(&options, sizeof(options));
    options.topk_rule = topk_rule;
    options.backend = std::getenv("DS41_TEST_BACKEND"); // or the best
    return options;
}

TestModel empty_model(const ds41_config &config, int32_t topk_rule) {
    const ds41_model_options options = tested_options(topk_rule);
    ds41_model *model = nullptr;
    must(ds41_model_create(&model, &config, &options));
    return {config, {}, Model(model)};
}

TestModel random_model(const ds41_config &config, Format format, uint64_t seed, int32_t ownership, int32_t topk_rule) {
    TestModel model = empty_model(config, topk_rule);
    for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) {
        model.layers.push_back(random_layer(config, layer, format, seed));
        model.layers.back().weights.ownership = ownership;
        must(ds41_model_set_layer(model.get(), layer, &model.layers.back().weights));
    }
    return model;
}

TestModel random_model(Format format) {
    return random_model(config_for(format), format);
}

int32_t n_same_rows(const TestModel &model) {
    constexpr int32_t kKernelRows = 16;
    if (!on_device()) return INT32_MAX;
    if (model.layers.empty()) return kKernelRows; // the weights of a file: it takes a while to tell
    for (int32_t layer = 0; layer < static_cast<int32_t>(model.layers.size()); layer++) {
        for (const TensorSpec &spec : tensor_specs(model.config, layer)) {
            const ds41_tensor &tensor = model.layers[static_cast<size_t>(layer)].weights.*spec.member;
            if (spec.kind == Kind::projection && tensor.dtype == DS41_DTYPE_BF16) return kKernelRows;
        }
    }
    return INT32_MAX;
}

std::vector<uint16_t> Tape::rows(const ds41_config &config, int32_t layer, int64_t start_pos, int64_t n_tokens) const {
    std::vector<uint16_t> rows(static_cast<size_t>(n_tokens * config.dim));
    for (int64_t token = 0; token < n_tokens; token++) {
        const uint64_t key = mix(mix(seed, static_cast<uint64_t>(layer)), static_cast<uint64_t>(start_pos + token));
        for (int64_t i = 0; i < config.dim; i++) {
            rows[static_cast<size_t>(token * config.dim + i)] = to_bf16(2 * even(mix(key, static_cast<uint64_t>(i))));
        }
    }
    return rows;
}

std::string to_json(const ds41_config &c) {
    const auto list = [](const int32_t *values, int32_t n) {
        std::string text = "[";
        for (int32_t i = 0; i < n; i++) text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
        return text + "]";
    };
    const auto number = [](double value) {
        char text[32];
        std::snprintf(text, sizeof(text), "%.9g", value);
        return std::string(text);
    };
    std::string text = "{";
    const auto entry = [&text](const char *name, const std::string &value) {
        text += (text.size() == 1 ? "\"" : ",\n\"") + std::string(name) + "\": " + value;
    };
    entry("n_layers", std::to_string(c.n_layers));
    entry("compress_ratios", list(c.compress_ratios, c.n_compress_ratios));
    entry("kv_source_layers", list(c.kv_source_layers, c.n_kv_source_layers));
    entry("index_source_layers", list(c.index_source_layers, c.n_index_source_layers));
    entry("candidate_source_layer", std::to_string(c.candidate_source_layer));
    entry("dim", std::to_string(c.dim));
    entry("n_heads", std::to_string(c.n_heads));
    entry("head_dim", std::to_string(c.head_dim));
    entry("rope_head_dim", std::to_string(c.rope_head_dim));
    entry("q_lora_rank", std::to_string(c.q_lora_rank));
    entry("o_groups", std::to_string(c.o_groups));
    entry("o_lora_rank", std::to_string(c.o_lora_rank));
    entry("window_size", std::to_string(c.window_size));
    entry("index_n_heads", std::to_string(c.index_n_heads));
    entry("index_head_dim", std::to_string(c.index_head_dim));
    entry("index_topk", std::to_string(c.index_topk));
    entry("candidate_topk_blocks", std::to_string(c.candidate_topk_blocks));
    entry("candidate_block_size", std::to_string(c.candidate_block_size));
    entry("norm_eps", number(c.norm_eps));
    entry("rope_theta", number(c.rope_theta));
    entry("compress_rope_theta", number(c.compress_rope_theta));
    entry("rope_factor", number(c.rope_factor));
    entry("beta_fast", number(c.beta_fast));
    entry("beta_slow", number(c.beta_slow));
    entry("original_seq_len", std::to_string(c.original_seq_len));
    entry("max_seq_len", std::to_string(c.max_seq_len));
    return text + "}";
}

} // namespace api_test
