// DS41_CHECK_STAGES makes calls wait for a device after every stage. The simulated device shows it: it refuses a
// download of what has not been waited for, and nobody here waits. A program of its own, since a device keeps its first
// error.
#define DOCTEST_CONFIG_IMPLEMENT // support.h reports through it
#include "support.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace api_test;

int main() {
    const TestModel model = random_model(Format::bf16);
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    constexpr int32_t kTokens = 3;
    const int64_t shape[] = {kTokens, model.config.dim};
    std::vector<uint16_t> rows = Tape{kSeed}.rows(model.config, 0, 0, kTokens);
    const uint64_t n_bytes = rows.size() * sizeof rows[0];
    ds41_buffer *buffer = nullptr;
    ds41_tensor x;
    ds41_status status = ds41_buffer_create(&buffer, model.get(), n_bytes);
    if (status == DS41_STATUS_OK) status = ds41_buffer_upload(buffer, 0, rows.data(), n_bytes);
    ds41_tensor_init(&x, ds41_buffer_get_data(buffer), DS41_DTYPE_BF16, 2, shape);
    if (status == DS41_STATUS_OK) status = ds41_layer_prefill(ctx.get(), 0, seq.get(), &x, kTokens, 0, &x);
    if (status != DS41_STATUS_OK) {
        std::fprintf(stderr, "%s: %s\n", ds41_status_name(status), ds41_last_error());
        return 1;
    }
    status = ds41_buffer_download(buffer, 0, rows.data(), n_bytes);
    const bool refused = status == DS41_STATUS_DEVICE_ERROR && std::strstr(ds41_last_error(), "waited for") != nullptr;
    const bool waits = std::getenv("DS41_CHECK_STAGES") != nullptr;
    if (waits ? status != DS41_STATUS_OK : !refused)
        std::fprintf(stderr, "%s: %s\n", ds41_status_name(status), ds41_last_error());
    ds41_buffer_destroy(buffer);
    return waits ? status != DS41_STATUS_OK : !refused;
}
