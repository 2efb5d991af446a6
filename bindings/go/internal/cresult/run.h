#include <stdint.h>

// Outputs, bf16, of the file's steps in order of steps and layers. Returns a ds41_status.
int32_t cresult_run(const char *path, const int64_t *start_pos, const int64_t *n_tokens, int32_t n_steps,
                    uint16_t *values);
