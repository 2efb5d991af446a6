// Models, their options and weights, backends, memory estimates.
#include "model/model.h"

#include "api/boundary.h"
#include "api/handles.h"
#include "forward/memory_estimate.h"

using namespace ds41;

const char *ds41_backend_get_name(int32_t index) {
    const Backend *const backend = backend_at(index);
    return backend ? backend->name : nullptr;
}

void ds41_model_options_init(ds41_model_options *options, size_t struct_size) {
    init_struct(options, struct_size);
}
void ds41_layer_weights_init(ds41_layer_weights *weights, size_t struct_size) {
    init_struct(weights, struct_size);
}
void ds41_memory_init(ds41_memory *memory, size_t struct_size) {
    init_struct(memory, struct_size);
}

ds41_status ds41_model_create(ds41_model **model, const ds41_config *config, const ds41_model_options *options) {
    return guarded(__func__, [&] {
        check_argument(model, "model");
        ds41_model_options defaults;
        ds41_model_options_init(&defaults, sizeof(defaults));
        const ds41_model_options &chosen = options ? read_struct(options, "options") : defaults;
        auto impl = std::make_shared<Model>(read_struct(config, "config"), chosen);
        *model = new ds41_model{std::move(impl)};
    });
}

void ds41_model_destroy(ds41_model *model) {
    delete model;
}

ds41_status ds41_model_set_layer(ds41_model *model, int32_t layer, const ds41_layer_weights *weights) {
    return guarded(__func__, [&] {
        check_argument(model, "model");
        model->impl->set_layer(layer, read_struct(weights, "weights"));
    });
}

const char *ds41_model_get_backend(const ds41_model *model) {
    return model ? model->impl->backend().name : "";
}

ds41_status ds41_model_get_config(const ds41_model *model, ds41_config *config) {
    return guarded(__func__, [&] {
        check_argument(model, "model");
        write_struct(config, "config", static_cast<const ds41_config &>(model->impl->config()));
    });
}

ds41_status ds41_model_estimate_memory(const ds41_model *model, int64_t n_seqs, int64_t n_positions, int64_t n_tokens,
                                       ds41_memory *memory) {
    return guarded(__func__, [&] {
        check_argument(model, "model");
        check_struct_size(memory, "memory");
        const Model &impl = *model->impl;
        std::vector<bool> layers;
        uint64_t weights = 0;
        for (int layer = 0; layer < impl.config().n_layers_total(); ++layer) {
            layers.push_back(impl.has_layer(layer));
            if (const LayerWeights *set = impl.layer(layer)) weights += set->n_bytes();
        }
        ds41_memory out = estimate_memory(impl, layers, n_seqs, n_positions, n_tokens);
        out.weights = weights;
        write_struct(memory, "memory", out);
    });
}
