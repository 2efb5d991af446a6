// Configurations: presets, parsing, roles.
#include "model/config.h"

#include "api/boundary.h"
#include "checkpoint/config_json.h"
#include "checkpoint/mapping.h"

#include <string_view>

using namespace ds41;

namespace {

void read_json_into(ds41_config *config, std::string_view json) {
    const ds41_config parsed = parse_config_json(json);
    const Config checked(parsed);
    write_struct(config, "config", parsed);
}

} // namespace

void ds41_config_init(ds41_config *config, size_t struct_size) {
    if (init_struct(config, struct_size)) config->candidate_source_layer = -1;
}

void ds41_config_flash(ds41_config *config, size_t struct_size) {
    if (!init_struct(config, struct_size)) return;
    config->n_layers = 40;
    config->n_compress_ratios = 43;
    config->dim = 5120;
    config->n_heads = 64;
    config->head_dim = 512;
    config->rope_head_dim = 64;
    config->q_lora_rank = 1280;
    config->o_groups = 8;
    config->o_lora_rank = 1024;
    config->window_size = 128;
    config->index_n_heads = 32;
    config->index_head_dim = 128;
    config->index_topk = 512;
    config->candidate_source_layer = 20;
    config->candidate_topk_blocks = 2048;
    config->candidate_block_size = 8;
    config->norm_eps = 1e-20f;
    config->rope_theta = 10000.0f;
    config->compress_rope_theta = 160000.0f;
    config->rope_factor = 16.0f;
    config->beta_fast = 32.0f;
    config->beta_slow = 1.0f;
    config->original_seq_len = 65536;
    config->max_seq_len = 1048576;
    for (int layer = 2; layer < 40; ++layer) config->compress_ratios[layer] = layer < 20 ? 2 : 1;
    constexpr int kKvSources[] = {2, 8, 14, 20};
    constexpr int kIndexSources[] = {2, 8, 14, 20, 24, 28, 32, 36};
    config->n_kv_source_layers = 4;
    std::copy(std::begin(kKvSources), std::end(kKvSources), config->kv_source_layers);
    config->n_index_source_layers = 8;
    std::copy(std::begin(kIndexSources), std::end(kIndexSources), config->index_source_layers);
}

void ds41_layer_role_init(ds41_layer_role *role, size_t struct_size) {
    init_struct(role, struct_size);
}

ds41_status ds41_config_parse(ds41_config *config, const char *json, size_t n_bytes) {
    return guarded(__func__, [&] {
        check_struct_size(config, "config");
        check_argument(json, "json");
        read_json_into(config, {json, n_bytes});
    });
}

ds41_status ds41_config_load(ds41_config *config, const char *path) {
    return guarded(__func__, [&] {
        check_struct_size(config, "config");
        check_argument(path, "path");
        const Mapping mapping(path);
        const auto bytes = mapping.bytes();
        read_json_into(config, {reinterpret_cast<const char *>(bytes.data()), bytes.size()});
    });
}

ds41_status ds41_config_validate(const ds41_config *config) {
    return guarded(__func__, [&] { const Config checked(read_struct(config, "config")); });
}

ds41_status ds41_config_get_role(const ds41_config *config, int32_t layer, ds41_layer_role *role) {
    return guarded(__func__, [&] {
        const Config checked(read_struct(config, "config"));
        check_struct_size(role, "role");
        checked.check_layer(layer);
        const LayerRole &found = checked.role(layer);
        ds41_layer_role out{};
        out.ratio = found.ratio;
        out.kv_source = found.kv_source;
        out.index_source = found.index_source;
        out.is_kv_source = found.is_kv_source;
        out.is_index_source = found.is_index_source;
        out.is_candidate_source = found.is_candidate_source;
        out.uses_candidates = found.uses_candidates;
        out.is_draft = found.is_draft;
        write_struct(role, "role", out);
    });
}
