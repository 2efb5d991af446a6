// The table of names is that of the release's checkpoint; which of them a layer must have, the library checks.
#include "weights.h"

#include "common/progress_bar.h"

#include <cstring>

namespace replay {

namespace {

struct Entry {
    const char *name; // behind layers.L.attn.
    ds41_tensor ds41_layer_weights::*tensor;
};

constexpr Entry kEntries[] = {
    {"wq_a.weight", &ds41_layer_weights::wq_a},
    {"q_norm.weight", &ds41_layer_weights::q_norm},
    {"wq_b.weight", &ds41_layer_weights::wq_b},
    {"wkv.weight", &ds41_layer_weights::wkv},
    {"kv_norm.weight", &ds41_layer_weights::kv_norm},
    {"attn_sink", &ds41_layer_weights::attn_sink},
    {"wo_a.weight", &ds41_layer_weights::wo_a},
    {"wo_b.weight", &ds41_layer_weights::wo_b},
    {"compressor.wkv.weight", &ds41_layer_weights::compressor_wkv},
    {"compressor.wgate.weight", &ds41_layer_weights::compressor_wgate},
    {"compressor.norm.weight", &ds41_layer_weights::compressor_norm},
    {"indexer.wk.weight", &ds41_layer_weights::indexer_wk},
    {"indexer.k_norm.weight", &ds41_layer_weights::indexer_k_norm},
    {"indexer.wq_b.weight", &ds41_layer_weights::indexer_wq_b},
    {"indexer.weights_proj.weight", &ds41_layer_weights::indexer_weights_proj},
};

constexpr int64_t kQ2KBytes = 84;   // of a block
constexpr int64_t kQ2KValues = 256; // of a block

/// Bytes [rows, K / 256 * 84] as values [rows, K]; the memory stays.
void as_q2_k(ds41_tensor &tensor, const std::string &name) {
    if (tensor.dtype != DS41_DTYPE_U8 || tensor.n_dims != 2 || tensor.shape[1] % kQ2KBytes != 0)
        throw CannotRun(name + " is no list of Q2_K blocks, need U8 [rows, a multiple of 84]");
    tensor.dtype = DS41_DTYPE_Q2_K;
    tensor.shape[1] = tensor.shape[1] / kQ2KBytes * kQ2KValues;
}

/// The library joins codes and scales of one file; a split case may have them in two.
void join_scales(const Fixture &fixture, const std::string &name, ds41_tensor &tensor, std::deque<Loaded> &kept) {
    const std::string scale = name.substr(0, name.size() - std::string_view("weight").size()) + "scale";
    if (!name.ends_with(".weight") || !fixture.has(scale)) return;
    const ds41_tensor &scales = kept.emplace_back(fixture.load(scale)).view;
    if (scales.dtype != DS41_DTYPE_UE8M0 || scales.n_dims != 2)
        throw CannotRun(scale + " is no list of block scales, need F8_E8M0 with 2 dimensions");
    tensor.scales = scales.data;
    tensor.scale_shape[0] = scales.shape[0];
    tensor.scale_shape[1] = scales.shape[1];
}

/// The same geometry? How long a sequence may get, and blocks that nobody uses, make no difference.
bool same_model(ds41_config a, ds41_config b) {
    for (ds41_config *config : {&a, &b}) {
        config->max_seq_len = 0;
        if (config->candidate_source_layer < 0) config->candidate_topk_blocks = config->candidate_block_size = 0;
    }
    return std::memcmp(&a, &b, sizeof a) == 0;
}

} // namespace

ds41_model *load_checkpoint(const RunOptions &options, const Case &replayed, bool plain_activations,
                            const ds41_model_options &model_options) {
    ds41_load_options load;
    ds41_load_options_init(&load, sizeof(load));
    load.model = &model_options;
    if (plain_activations) load.flags |= DS41_LOAD_EXPAND_FP8 | DS41_LOAD_PLAIN_Q2_K;
    if (options.map) load.flags |= DS41_LOAD_MAP;
    ds41_model *model = nullptr;
    {
        tools::ProgressBar bar;
        load.progress = tools::ProgressBar::on_progress;
        load.progress_user = &bar;
        check(ds41_model_load(&model, options.weights.c_str(), &load), "loading the checkpoint");
    }
    ds41_config config;
    ds41_config_init(&config, sizeof(config));
    const bool same = ds41_model_get_config(model, &config) == DS41_STATUS_OK && same_model(config, replayed.config);
    if (same) return model;
    ds41_model_destroy(model);
    throw CannotRun("the checkpoint " + options.weights + " is of another configuration than the case");
}

void set_layer(ds41_model *model, const Fixture &fixture, const Case &replayed, int32_t layer, bool plain_activations,
               std::deque<Loaded> &kept) {
    ds41_layer_weights weights;
    ds41_layer_weights_init(&weights, sizeof(weights));
    weights.ownership = DS41_OWNERSHIP_BORROW;
    for (const Entry &entry : kEntries) {
        const std::string name = "layers." + std::to_string(layer) + ".attn." + entry.name;
        if (!fixture.has(name)) continue;
        ds41_tensor tensor = kept.emplace_back(fixture.load(name)).view;
        if (replayed.q2_k.count(name)) as_q2_k(tensor, name);
        if (tensor.dtype == DS41_DTYPE_FP8_E4M3 && !tensor.scales) join_scales(fixture, name, tensor, kept);
        const bool quantised = tensor.dtype == DS41_DTYPE_FP8_E4M3 || tensor.dtype == DS41_DTYPE_Q2_K;
        if (quantised && plain_activations) tensor.flags |= DS41_TENSOR_PLAIN_ACTIVATIONS;
        weights.*entry.tensor = tensor;
    }
    check(ds41_model_set_layer(model, layer, &weights), "weights of layer " + std::to_string(layer));
}

} // namespace replay
