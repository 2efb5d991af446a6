/*
 * The public header alone in a C99 file: it needs no other header before it, may be included twice, and a C program
 * links and runs against the library. Compiled with -std=c99 -pedantic.
 */
#include "ds41/ds41.h"

#include <stdio.h>
#include <string.h>

static int failures = 0;

static void expect(int condition, const char *what) {
    if (!condition) {
        failures++;
        fprintf(stderr, "header_c99: %s; last error: \"%s\"\n", what, ds41_last_error());
    }
}

/* A callback of each kind must be writable in plain C. */
static void count_log(int32_t level, const char *message, void *user) {
    (void)level;
    (void)message;
    ++*(int *)user;
}

static void count_tap(const ds41_tap *tap, void *user) {
    (void)tap;
    ++*(int *)user;
}

int main(void) {
    char version[64];
    ds41_config config;
    ds41_model_options options;
    ds41_model *model = NULL;
    ds41_ctx *ctx = NULL;
    ds41_seq *seq = NULL;
    ds41_layer_role role;
    int64_t position = -1;
    int n_messages = 0, n_taps = 0;

    sprintf(version, "%d.%d.%d", DS41_VERSION_MAJOR, DS41_VERSION_MINOR, DS41_VERSION_PATCH);
    expect(strcmp(ds41_version(), version) == 0, "ds41_version() differs from the header");
    expect(ds41_last_error()[0] == '\0', "an error before any call failed");

    ds41_config_flash(&config, sizeof(config));
    ds41_layer_role_init(&role, sizeof(role));
    expect(ds41_config_get_role(&config, 20, &role) == DS41_STATUS_OK, "role of layer 20");
    expect(role.ratio == 1 && role.is_candidate_source == 1, "layer 20 is the candidate source");

    ds41_model_options_init(&options, sizeof(options));
    options.backend = "reference";
    options.log = count_log;
    options.log_user = &n_messages;
    expect(ds41_model_create(&model, &config, &options) == DS41_STATUS_OK, "model");
    expect(ds41_ctx_create(&ctx, model, NULL) == DS41_STATUS_OK, "context");
    expect(ds41_seq_create(&seq, model) == DS41_STATUS_OK, "sequence");
    expect(ds41_ctx_set_tap(ctx, NULL, 0, count_tap, &n_taps) == DS41_STATUS_OK, "tap");
    expect(ds41_seq_get_position(seq, DS41_ALL_LAYERS, &position) == DS41_STATUS_OK && position == 0, "position");
    expect(ds41_seq_get_position(seq, 43, &position) == DS41_STATUS_INVALID_LAYER, "layer 43 of 43");
    expect(ds41_last_error()[0] != '\0', "no sentence for a failure");
    ds41_model_destroy(model);
    ds41_seq_destroy(seq);
    ds41_ctx_destroy(ctx);
    return failures != 0;
}
