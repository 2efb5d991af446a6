/*
 * quickstart: load attention layers from a safetensors file, run a prompt of 12 tokens, then decode 4 more.
 *
 * A layer's output is the next layer's input here, and the last layer's is the next token, to keep this short: a real
 * model has the norms, the residual and the MoE in between. Usage: quickstart [FILE.safetensors]
 */
#include <ds41/ds41.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                                                                      \
    do                                                                                                                 \
        if ((call) != DS41_STATUS_OK) goto failed;                                                                     \
    while (0)
enum { N_PROMPT = 12, N_DECODE = 4 };

static ds41_status load_layer(ds41_model *model, const ds41_file *file, int32_t layer) {
    ds41_layer_weights w;
    ds41_layer_weights_init(&w, sizeof(w));
    const struct {
        const char *name;
        ds41_tensor *tensor;
    } weights[] = {
        // clang-format off
        {"wq_a.weight", &w.wq_a}, {"q_norm.weight", &w.q_norm}, {"wq_b.weight", &w.wq_b}, {"wkv.weight", &w.wkv},
        {"kv_norm.weight", &w.kv_norm}, {"attn_sink", &w.attn_sink}, {"wo_a.weight", &w.wo_a}, {"wo_b.weight", &w.wo_b},
        {"compressor.wkv.weight", &w.compressor_wkv}, {"compressor.wgate.weight", &w.compressor_wgate},
        {"compressor.norm.weight", &w.compressor_norm}, {"indexer.wk.weight", &w.indexer_wk},
        {"indexer.k_norm.weight", &w.indexer_k_norm}, {"indexer.wq_b.weight", &w.indexer_wq_b},
        {"indexer.weights_proj.weight", &w.indexer_weights_proj},
        // clang-format on
    };
    for (size_t i = 0; i < sizeof(weights) / sizeof(weights[0]); ++i) {
        char name[96];
        snprintf(name, sizeof(name), "layers.%d.attn.%s", (int)layer, weights[i].name);
        const ds41_status status = ds41_file_get_tensor(file, name, weights[i].tensor);
        if (status != DS41_STATUS_OK && status != DS41_STATUS_MISSING_TENSOR) return status;
    }
    return ds41_model_set_layer(model, layer, &w); /* copies; knows which tensors the layer must have */
}

int main(int argc, char **argv) {
    ds41_file *file = NULL;
    ds41_model *model = NULL;
    ds41_ctx *ctx = NULL;
    ds41_seq *seq = NULL;
    ds41_buffer *buffer = NULL;
    uint16_t *rows = NULL; /* bf16, on the host */
    ds41_config config;
    int exit_status = EXIT_FAILURE;
    TRY(ds41_file_load(&file, argc > 1 ? argv[1] : "tests/fixtures/a_golden_stable.safetensors"));
    const char *json = ds41_file_get_metadata(file, "config");
    ds41_config_init(&config, sizeof(config));
    TRY(ds41_config_parse(&config, json ? json : "", json ? strlen(json) : 0));
    TRY(ds41_model_create(&model, &config, NULL));
    const int n_layers = config.n_compress_ratios;
    for (int layer = 0; layer < n_layers; ++layer) TRY(load_layer(model, file, layer));
    TRY(ds41_ctx_create(&ctx, model, NULL));
    TRY(ds41_seq_create(&seq, model));
    printf("%d layers, backend %s\n", n_layers, ds41_model_get_backend(model));

    const size_t dim = (size_t)config.dim, row_bytes = dim * sizeof(uint16_t);
    TRY(ds41_buffer_create(&buffer, model, N_PROMPT * row_bytes));
    rows = malloc(N_PROMPT * row_bytes);
    if (!rows) goto failed;
    for (size_t i = 0; i < N_PROMPT * dim; ++i) rows[i] = (uint16_t)((i & 1) << 15 | (0x3E00 + i * 37 % 256));
    ds41_tensor x; /* input and output: a layer may work in place */
    for (int64_t pos = 0, n = N_PROMPT; pos < N_PROMPT + N_DECODE; pos += n, n = 1) {
        const int64_t shape[2] = {n, config.dim};
        ds41_tensor_init(&x, ds41_buffer_get_data(buffer), DS41_DTYPE_BF16, 2, shape);
        TRY(ds41_buffer_upload(buffer, 0, rows, (uint64_t)n * row_bytes));
        if (pos > 0) { /* decode: the host's part once per step, for one or many sequences */
            const ds41_span span = {seq, pos, 1, 0};
            TRY(ds41_decode_prep(ctx, &span, 1));
        }
        for (int layer = 0; layer < n_layers; ++layer)
            TRY(pos > 0 ? ds41_decode_body(ctx, layer, &x, &x)
                        : ds41_layer_prefill(ctx, layer, seq, &x, (int)n, 0, &x));
        TRY(ds41_ctx_synchronize(ctx));
        TRY(ds41_buffer_download(buffer, (uint64_t)(n - 1) * row_bytes, rows, row_bytes)); /* the next token */
        printf("%2d tokens from position %2d: cache of %llu bytes, last row", (int)n, (int)pos,
               (unsigned long long)ds41_seq_get_bytes(seq));
        for (size_t i = 0; i < 4 && i < dim; ++i) {
            const uint32_t bits = (uint32_t)rows[i] << 16;
            float value;
            memcpy(&value, &bits, sizeof(value));
            printf(" %g", (double)value);
        }
        printf(" ...\n");
    }
    exit_status = EXIT_SUCCESS;
failed:
    if (exit_status != EXIT_SUCCESS) fprintf(stderr, "quickstart failed: %s\n", ds41_last_error());
    free(rows);
    ds41_buffer_destroy(buffer);
    ds41_seq_destroy(seq);
    ds41_ctx_destroy(ctx);
    ds41_model_destroy(model);
    ds41_file_destroy(file);
    return exit_status;
}
