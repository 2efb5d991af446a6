/*
 * The C result of a golden case, which the Rust tests compare theirs with: runs each step and layer on the case's input
 * and writes the outputs' bits to stdout. Usage: outputs PLAIN_ACTIVATIONS(0|1) N_STEPS (START_POS N_TOKENS)... FILE...
 */
#include <ds41/ds41.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                                                                      \
    do                                                                                                                 \
        if ((call) != DS41_STATUS_OK) {                                                                                \
            fprintf(stderr, "%s\n", ds41_last_error());                                                                \
            exit(1);                                                                                                   \
        }                                                                                                              \
    while (0)

static ds41_file *files[16];
static int n_files;

static int find(const char *name, ds41_tensor *tensor) {
    for (int i = 0; i < n_files; ++i)
        if (ds41_file_get_tensor(files[i], name, tensor) == DS41_STATUS_OK) return 1;
    return 0;
}

static int set_layer(ds41_model *model, int layer, int plain) {
    ds41_layer_weights w;
    ds41_layer_weights_init(&w, sizeof(w));
    static const char *const names[] = {
        "wq_a.weight",
        "q_norm.weight",
        "wq_b.weight",
        "wkv.weight",
        "kv_norm.weight",
        "attn_sink",
        "wo_a.weight",
        "wo_b.weight",
        "compressor.wkv.weight",
        "compressor.wgate.weight",
        "compressor.norm.weight",
        "indexer.wk.weight",
        "indexer.k_norm.weight",
        "indexer.wq_b.weight",
        "indexer.weights_proj.weight",
    };
    ds41_tensor *const tensors[] = {
        &w.wq_a,
        &w.q_norm,
        &w.wq_b,
        &w.wkv,
        &w.kv_norm,
        &w.attn_sink,
        &w.wo_a,
        &w.wo_b,
        &w.compressor_wkv,
        &w.compressor_wgate,
        &w.compressor_norm,
        &w.indexer_wk,
        &w.indexer_k_norm,
        &w.indexer_wq_b,
        &w.indexer_weights_proj,
    };
    int n_found = 0;
    for (int i = 0; i < 15; ++i) {
        char name[96];
        snprintf(name, sizeof(name), "layers.%d.attn.%s", layer, names[i]);
        if (!find(name, tensors[i])) continue;
        ++n_found;
        if (tensors[i]->dtype == DS41_DTYPE_U8) {
            tensors[i]->dtype = DS41_DTYPE_Q2_K;
            tensors[i]->shape[1] = tensors[i]->shape[1] / 84 * 256;
        }
        if (plain && (tensors[i]->dtype == DS41_DTYPE_Q2_K || tensors[i]->dtype == DS41_DTYPE_FP8_E4M3))
            tensors[i]->flags |= DS41_TENSOR_PLAIN_ACTIVATIONS;
    }
    if (n_found == 0) return 0;
    TRY(ds41_model_set_layer(model, layer, &w));
    return 1;
}

int main(int argc, char **argv) {
    const int plain = atoi(argv[1]), n_steps = atoi(argv[2]);
    for (int i = 3 + 2 * n_steps; i < argc; ++i) TRY(ds41_file_load(&files[n_files++], argv[i]));
    const char *json = ds41_file_get_metadata(files[0], "config");
    ds41_config config;
    ds41_config_init(&config, sizeof(config));
    TRY(ds41_config_parse(&config, json, strlen(json)));
    ds41_model *model;
    TRY(ds41_model_create(&model, &config, NULL));
    int has_layer[DS41_MAX_LAYERS];
    for (int layer = 0; layer < config.n_compress_ratios; ++layer) has_layer[layer] = set_layer(model, layer, plain);
    ds41_ctx *ctx;
    ds41_seq *seq;
    TRY(ds41_ctx_create(&ctx, model, NULL));
    TRY(ds41_seq_create(&seq, model));
    for (int step = 0; step < n_steps; ++step) {
        const int64_t start_pos = atoll(argv[3 + 2 * step]), n = atoll(argv[4 + 2 * step]);
        if (start_pos == 0) TRY(ds41_seq_reset(seq));
        if (start_pos > 0) {
            const ds41_span span = {seq, start_pos, (int32_t)n, 0};
            TRY(ds41_decode_prep(ctx, &span, 1));
        }
        for (int layer = 0; layer < config.n_compress_ratios; ++layer) {
            if (!has_layer[layer]) continue;
            char name[96];
            ds41_tensor x, out;
            snprintf(name, sizeof(name), "step%d.layer%d.x", step, layer);
            if (!find(name, &x)) return 1;
            const size_t n_bytes = (size_t)(n * config.dim) * 2;
            void *const input = malloc(n_bytes), *const output = malloc(n_bytes);
            memcpy(input, x.data, n_bytes); /* a file's tensors may lie at any byte */
            const int64_t shape[2] = {n, config.dim};
            ds41_tensor_init(&x, input, DS41_DTYPE_BF16, 2, shape);
            ds41_tensor_init(&out, output, DS41_DTYPE_BF16, 2, shape);
            TRY(start_pos > 0 ? ds41_decode_body(ctx, layer, &x, &out)
                              : ds41_layer_prefill(ctx, layer, seq, &x, (int32_t)n, 0, &out));
            fwrite(output, 1, n_bytes, stdout);
            free(input);
            free(output);
        }
    }
    ds41_seq_destroy(seq);
    ds41_ctx_destroy(ctx);
    ds41_model_destroy(model);
    for (int i = 0; i < n_files; ++i) ds41_file_destroy(files[i]);
    return 0;
}
