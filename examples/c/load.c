/*
 * load: make a model from a checkpoint as it is published, say what it is, and decode one token through its layers.
 *
 * Usage: load PATH, where PATH is a folder with config.json and safetensors shards, one safetensors file, or a GGUF.
 */
#include <ds41/ds41.h>
#include <stdio.h>
#include <stdlib.h>

#define TRY(call)                                                                                                      \
    do                                                                                                                 \
        if ((call) != DS41_STATUS_OK) goto failed;                                                                     \
    while (0)

static int32_t show_progress(uint64_t n_done, uint64_t n_total, const char *tensor, void *user) {
    if (n_done == n_total) fprintf(stderr, "%llu bytes, the last of %s\n", (unsigned long long)n_total, tensor);
    (void)user;
    return 0; /* anything else cancels the load */
}

static void show_log(int32_t level, const char *message, void *user) {
    if (level <= DS41_LOG_WARNING) fprintf(stderr, "%s\n", message); /* each problem, and values that were rounded */
    (void)user;
}

int main(int argc, char **argv) {
    ds41_model *model = NULL;
    ds41_ctx *ctx = NULL;
    ds41_seq *seq = NULL;
    ds41_buffer *buffer = NULL;
    ds41_config config;
    ds41_tensor x;
    int exit_status = EXIT_FAILURE;
    if (argc != 2) {
        fprintf(stderr, "usage: load PATH\n");
        return EXIT_FAILURE;
    }
    ds41_model_options model_options;
    ds41_load_options options;
    ds41_model_options_init(&model_options, sizeof(model_options));
    ds41_load_options_init(&options, sizeof(options));
    model_options.log = show_log;
    options.model = &model_options;
    options.progress = show_progress;
    options.flags = DS41_LOAD_MAP; /* leave in the file what can be computed with there */
    TRY(ds41_model_load(&model, argv[1], &options));
    ds41_config_init(&config, sizeof(config));
    TRY(ds41_model_get_config(model, &config));
    printf("%d layers of width %d, backend %s\n", (int)config.n_layers, (int)config.dim, ds41_model_get_backend(model));

    const int64_t shape[2] = {1, config.dim};
    const uint64_t row_bytes = (uint64_t)config.dim * sizeof(uint16_t);
    TRY(ds41_ctx_create(&ctx, model, NULL));
    TRY(ds41_seq_create(&seq, model));
    TRY(ds41_buffer_create(&buffer, model, row_bytes));
    for (uint64_t i = 0; i < (uint64_t)config.dim; ++i) {
        const uint16_t one = 0x3f80; /* 1.0 in bf16 */
        TRY(ds41_buffer_upload(buffer, i * sizeof(one), &one, sizeof(one)));
    }
    ds41_tensor_init(&x, ds41_buffer_get_data(buffer), DS41_DTYPE_BF16, 2, shape);
    const ds41_span span = {seq, 0, 1, 0};
    TRY(ds41_decode_prep(ctx, &span, 1));
    for (int layer = 0; layer < config.n_layers; ++layer) TRY(ds41_decode_body(ctx, layer, &x, &x));
    TRY(ds41_ctx_synchronize(ctx));
    printf("1 token decoded: cache of %llu bytes\n", (unsigned long long)ds41_seq_get_bytes(seq));
    exit_status = EXIT_SUCCESS;

failed:
    if (exit_status != EXIT_SUCCESS) fprintf(stderr, "load: %s\n", ds41_last_error());
    ds41_buffer_destroy(buffer);
    ds41_seq_destroy(seq);
    ds41_ctx_destroy(ctx);
    ds41_model_destroy(model);
    return exit_status;
}
