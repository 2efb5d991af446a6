// Runs a golden case by the C interface alone.
#include "run.h"

#include <ds41/ds41.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 96 };

static ds41_status set_layer(ds41_model *model, const ds41_file *file, int32_t layer) {
    ds41_layer_weights w;
    ds41_layer_weights_init(&w, sizeof(w));
    const struct {
        const char *name;
        ds41_tensor *tensor;
    } entries[] = {
        {"wq_a.weight", &w.wq_a},
        {"q_norm.weight", &w.q_norm},
        {"wq_b.weight", &w.wq_b},
        {"wkv.weight", &w.wkv},
        {"kv_norm.weight", &w.kv_norm},
        {"attn_sink", &w.attn_sink},
        {"wo_a.weight", &w.wo_a},
        {"wo_b.weight", &w.wo_b},
        {"compressor.wkv.weight", &w.compressor_wkv},
        {"compressor.wgate.weight", &w.compressor_wgate},
        {"compressor.norm.weight", &w.compressor_norm},
        {"indexer.wk.weight", &w.indexer_wk},
        {"indexer.k_norm.weight", &w.indexer_k_norm},
        {"indexer.wq_b.weight", &w.indexer_wq_b},
        {"indexer.weights_proj.weight", &w.indexer_weights_proj},
    };
    for (size_t i = 0; i < sizeof(entries) / sizeof(entries[0]); ++i) {
        char name[NAME_BYTES];
        snprintf(name, sizeof(name), "layers.%d.attn.%s", (int)layer, entries[i].name);
        const ds41_status status = ds41_file_get_tensor(file, name, entries[i].tensor);
        if (status != DS41_STATUS_OK && status != DS41_STATUS_MISSING_TENSOR) return status;
    }
    return ds41_model_set_layer(model, layer, &w);
}

int32_t cresult_run(const char *path, const int64_t *start_pos, const int64_t *n_tokens, int32_t n_steps,
                    uint16_t *values) {
    ds41_file *file = NULL;
    ds41_model *model = NULL;
    ds41_ctx *ctx = NULL;
    ds41_seq *seq = NULL;
    uint16_t *x_copy = NULL;
    ds41_config config;
    const char *json;
    ds41_status status = ds41_file_load(&file, path);
    if (status != DS41_STATUS_OK) goto done;
    json = ds41_file_get_metadata(file, "config");
    ds41_config_init(&config, sizeof(config));
    if ((status = ds41_config_parse(&config, json, strlen(json))) != DS41_STATUS_OK) goto done;
    if ((status = ds41_model_create(&model, &config, NULL)) != DS41_STATUS_OK) goto done;
    for (int32_t layer = 0; layer < config.n_compress_ratios; ++layer)
        if ((status = set_layer(model, file, layer)) != DS41_STATUS_OK) goto done;
    if ((status = ds41_ctx_create(&ctx, model, NULL)) != DS41_STATUS_OK) goto done;
    if ((status = ds41_seq_create(&seq, model)) != DS41_STATUS_OK) goto done;
    for (int32_t step = 0; step < n_steps; ++step) {
        const int64_t shape[2] = {n_tokens[step], config.dim};
        const size_t n_values = (size_t)(shape[0] * shape[1]);
        if (start_pos[step] == 0) {
            if ((status = ds41_seq_reset(seq)) != DS41_STATUS_OK) goto done;
        } else {
            const ds41_span span = {seq, start_pos[step], (int32_t)n_tokens[step], 0};
            if ((status = ds41_decode_prep(ctx, &span, 1)) != DS41_STATUS_OK) goto done;
        }
        free(x_copy);
        x_copy = malloc(n_values * sizeof(*x_copy)); // the file does not align tensors
        status = DS41_STATUS_OUT_OF_MEMORY;
        if (!x_copy) goto done;
        for (int32_t layer = 0; layer < config.n_compress_ratios; ++layer) {
            char name[NAME_BYTES];
            ds41_tensor stored, x, out;
            snprintf(name, sizeof(name), "step%d.layer%d.x", (int)step, (int)layer);
            if ((status = ds41_file_get_tensor(file, name, &stored)) != DS41_STATUS_OK) goto done;
            memcpy(x_copy, stored.data, n_values * sizeof(*x_copy));
            ds41_tensor_init(&x, x_copy, DS41_DTYPE_BF16, 2, shape);
            ds41_tensor_init(&out, values, DS41_DTYPE_BF16, 2, shape);
            status = start_pos[step] > 0
                         ? ds41_decode_body(ctx, layer, &x, &out)
                         : ds41_layer_prefill(ctx, layer, seq, &x, (int32_t)shape[0], 0, &out);
            if (status != DS41_STATUS_OK) goto done;
            values += n_values;
        }
    }
    status = ds41_ctx_synchronize(ctx);
done:
    free(x_copy);
    ds41_seq_destroy(seq);
    ds41_ctx_destroy(ctx);
    ds41_model_destroy(model);
    ds41_file_destroy(file);
    return (int32_t)status;
}
