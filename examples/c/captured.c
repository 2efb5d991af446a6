/*
 * captured: decode tokens of two sequences through all layers of a checkpoint; where the backend has graphs, each step
 * is one launch.
 *
 * The layers work in place on the same rows, to keep this short: a real model captures on a stream of its own, with the
 * norms and the MoE in between (DS41_GRAPH_EXTERNAL). Usage: captured PATH [BACKEND]
 */
#include <ds41/ds41.h>
#include <stdio.h>
#include <stdlib.h>

#define TRY(call)                                                                                                      \
    do                                                                                                                 \
        if ((call) != DS41_STATUS_OK) goto failed;                                                                     \
    while (0)
enum { N_SEQS = 2, N_TOKENS = 8 };

int main(int argc, char **argv) {
    ds41_model *model = NULL;
    ds41_ctx *ctx = NULL;
    ds41_seq *seqs[N_SEQS] = {NULL};
    ds41_buffer *buffer = NULL;
    ds41_graph *graph = NULL;
    uint16_t *rows = NULL; /* bf16, on the host */
    ds41_config config;
    int exit_status = EXIT_FAILURE;
    if (argc < 2) {
        fprintf(stderr, "usage: captured PATH [BACKEND]\n");
        return EXIT_FAILURE;
    }
    ds41_model_options model_options;
    ds41_load_options options;
    ds41_model_options_init(&model_options, sizeof(model_options));
    ds41_load_options_init(&options, sizeof(options));
    model_options.backend = argc > 2 ? argv[2] : NULL;
    options.model = &model_options;
    TRY(ds41_model_load(&model, argv[1], &options));
    ds41_config_init(&config, sizeof(config));
    TRY(ds41_model_get_config(model, &config));
    TRY(ds41_ctx_create(&ctx, model, NULL));
    for (int i = 0; i < N_SEQS; ++i) TRY(ds41_seq_create(&seqs[i], model));

    const size_t n_values = (size_t)N_SEQS * (size_t)config.dim;
    TRY(ds41_buffer_create(&buffer, model, n_values * sizeof(uint16_t)));
    rows = malloc(n_values * sizeof(uint16_t));
    if (!rows) goto failed;
    for (size_t i = 0; i < n_values; ++i) rows[i] = (uint16_t)((i & 1) << 15 | (0x3E00 + i * 37 % 256));
    const int64_t shape[2] = {N_SEQS, config.dim};
    ds41_tensor x;
    ds41_tensor_init(&x, ds41_buffer_get_data(buffer), DS41_DTYPE_BF16, 2, shape);

    int32_t capturable = 1;
    for (int layer = 0; layer < config.n_layers && capturable; ++layer)
        TRY(ds41_decode_capturable(ctx, layer, &capturable));
    for (int64_t pos = 0; pos < N_TOKENS; ++pos) {
        const ds41_span spans[N_SEQS] = {{seqs[0], pos, 1, 0}, {seqs[1], pos, 1, 0}};
        TRY(ds41_buffer_upload(buffer, 0, rows, n_values * sizeof(uint16_t)));
        TRY(ds41_decode_prep(ctx, spans, N_SEQS));
        if (capturable && !graph) { /* once; the capture runs nothing */
            TRY(ds41_graph_begin(ctx, 0));
            for (int layer = 0; layer < config.n_layers; ++layer) TRY(ds41_decode_body(ctx, layer, &x, &x));
            TRY(ds41_graph_end(ctx, &graph));
        }
        if (graph)
            TRY(ds41_graph_launch(graph));
        else
            for (int layer = 0; layer < config.n_layers; ++layer) TRY(ds41_decode_body(ctx, layer, &x, &x));
        TRY(ds41_ctx_synchronize(ctx));
        TRY(ds41_buffer_download(buffer, 0, rows, n_values * sizeof(uint16_t))); /* the next tokens */
    }
    printf("backend %s, %s: %d tokens of %d sequences, last value %04x\n", ds41_model_get_backend(model),
           graph ? "captured" : "layer by layer", N_TOKENS, N_SEQS, (unsigned)rows[n_values - 1]);
    exit_status = EXIT_SUCCESS;

failed:
    if (exit_status != EXIT_SUCCESS) fprintf(stderr, "captured: %s\n", ds41_last_error());
    free(rows);
    ds41_graph_destroy(graph);
    ds41_buffer_destroy(buffer);
    for (int i = 0; i < N_SEQS; ++i) ds41_seq_destroy(seqs[i]);
    ds41_ctx_destroy(ctx);
    ds41_model_destroy(model);
    return exit_status;
}
