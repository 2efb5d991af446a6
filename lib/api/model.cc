// Models, their options and weights, backends, memory estimates.
#include "model/model.h"

#include "api/boundary.h"
#include "api/handles.h"

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
        const auto check_range = [](const char *name, int64_t value, int64_t low, int64_t high) {
            DS41_CHECK(value >= low && value <= high, DS41_STATUS_INVALID_ARGUMENT,
                       "%s is %lld, need a value in [%lld, %lld]", name, static_cast<long long>(value),
                       static_cast<long long>(low), static_cast<long long>(high));
        };
        constexpr int64_t kMost = 1 << 30;
        check_range("n_seqs", n_seqs, 0, kMost);
        check_range("n_positions", n_positions, 0, impl.config().max_seq_len);
        check_range("n_tokens", n_tokens, 1, kMost);

        const SequenceBytes one = Sequence::bytes_for(impl, n_positions);
        const auto times = static_cast<uint64_t>(n_seqs);
        uint64_t sum = 0;
        DS41_CHECK(!__builtin_mul_overflow(one.total(), times, &sum), DS41_STATUS_INVALID_ARGUMENT,
                   "n_seqs is %lld, need a value for which the bytes stay below 2^64", static_cast<long long>(n_seqs));
        ds41_memory out{};
        for (int layer = 0; layer < impl.config().n_layers_total(); ++layer)
            if (const LayerWeights *weights = impl.layer(layer)) out.weights += weights->n_bytes();
        out.window = one.window * times;
        out.compressed = one.compressed * times;
        out.index_keys = one.index_keys * times;
        out.group_state = one.group_state * times;
        out.workspace = context_bytes_for(impl, n_tokens, n_positions);
        write_struct(memory, "memory", out);
    });
}
