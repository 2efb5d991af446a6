/* What a user writes first, compiled as C99 against the installed header and library alone. */
#include <ds41/ds41.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    char built_with[32];
    snprintf(built_with, sizeof(built_with), "%d.%d.%d", DS41_VERSION_MAJOR, DS41_VERSION_MINOR, DS41_VERSION_PATCH);
    if (strcmp(ds41_version(), built_with) != 0) {
        fprintf(stderr, "header %s, library %s\n", built_with, ds41_version());
        return 1;
    }
    ds41_config config;
    ds41_config_flash(&config, sizeof(config));
    ds41_model *model = NULL;
    if (ds41_model_create(&model, &config, NULL) != DS41_STATUS_OK) {
        fprintf(stderr, "%s\n", ds41_last_error());
        return 1;
    }
    /* A C++ exception is thrown and caught inside. */
    ds41_model *none = NULL;
    config.dim = -1;
    if (ds41_model_create(&none, &config, NULL) != DS41_STATUS_INVALID_CONFIG || !strstr(ds41_last_error(), "dim")) {
        fprintf(stderr, "a dim of -1 gives: %s\n", ds41_last_error());
        return 1;
    }
    ds41_model_destroy(model);
    printf("%s\n", ds41_version());
    return 0;
}
