// Inputs come from a hash of layer and position, so that they are the same in every program and for every range of
// layers.
#include "loading.h"

#include <cstring>
#include <stdexcept>

namespace checkpoint_test {

namespace {

constexpr int64_t kPrefill = 9; // past the windows of the small cases, and one more than whole groups
constexpr int64_t kDecodes = 1;

uint64_t mix(uint64_t z) {
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

// bf16 in [1, 2) with either sign.
uint16_t input(int32_t layer, int64_t pos, int64_t column) {
    const uint64_t bits =
        mix(mix(static_cast<uint64_t>(layer)) ^ mix(static_cast<uint64_t>(pos) << 20) ^ static_cast<uint64_t>(column));
    return static_cast<uint16_t>(0x3F80u | (bits & 0x807Fu));
}

struct Listener {
    Result *result;
    int cancel_at;
};

void listen_log(int32_t level, const char *message, void *user) {
    static_cast<Listener *>(user)->result->log.emplace_back(level, message);
}

int32_t listen_progress(uint64_t n_done, uint64_t n_total, const char *tensor, void *user) {
    Listener &listener = *static_cast<Listener *>(user);
    std::vector<Progress> &calls = listener.result->progress;
    calls.push_back({n_done, n_total, tensor ? tensor : "(null)"});
    return listener.cancel_at >= 0 && static_cast<int>(calls.size()) > listener.cancel_at ? 1 : 0;
}

void must(ds41_status status) {
    if (status != DS41_STATUS_OK) throw std::runtime_error(ds41_last_error());
}

// False when a layer that this one reads from is not in the model.
bool run_layer(ds41_ctx *ctx, ds41_seq *seq, const ds41_config &config, int32_t layer, int64_t start_pos,
               int64_t n_tokens, std::vector<uint16_t> &out) {
    const int64_t shape[2] = {n_tokens, config.dim};
    std::vector<uint16_t> x(static_cast<size_t>(n_tokens * config.dim)), y(x.size(), 0x7FC1);
    for (int64_t i = 0; i < n_tokens; ++i)
        for (int64_t c = 0; c < config.dim; ++c)
            x[static_cast<size_t>(i * config.dim + c)] = input(layer, start_pos + i, c);
    ds41_tensor x_view, y_view;
    ds41_tensor_init(&x_view, x.data(), DS41_DTYPE_BF16, 2, shape);
    ds41_tensor_init(&y_view, y.data(), DS41_DTYPE_BF16, 2, shape);
    const ds41_status status =
        ds41_layer_prefill(ctx, layer, seq, &x_view, static_cast<int32_t>(n_tokens), start_pos, &y_view);
    if (status == DS41_STATUS_MISSING_WEIGHTS || status == DS41_STATUS_WRONG_ORDER) return false;
    must(status);
    must(ds41_ctx_synchronize(ctx));
    out.insert(out.end(), y.begin(), y.end());
    return true;
}

} // namespace

ds41_load_options default_options() {
    ds41_load_options options;
    ds41_load_options_init(&options, sizeof(options));
    return options;
}

Result load(const std::string &path, ds41_load_options options, int cancel_at) {
    Result result;
    Listener listener{&result, cancel_at};
    ds41_model_options model_options;
    if (options.model)
        model_options = *options.model;
    else
        ds41_model_options_init(&model_options, sizeof(model_options));
    model_options.log = listen_log;
    model_options.log_user = &listener;
    options.model = &model_options;
    options.progress = listen_progress;
    options.progress_user = &listener;

    int mark = 0;
    ds41_model *const untouched = reinterpret_cast<ds41_model *>(&mark);
    ds41_model *model = untouched;
    result.status = ds41_model_load(&model, path.c_str(), &options);
    if (result.status == DS41_STATUS_OK) {
        result.model.reset(model);
    } else {
        result.message = ds41_last_error();
        result.handle_untouched = model == untouched;
    }
    return result;
}

Outputs outputs_of(ds41_ctx *ctx, ds41_seq *seq, const ds41_config &config) {
    Outputs outputs;
    int64_t start_pos = 0;
    for (int64_t step = 0; step <= kDecodes; ++step) {
        const int64_t n_tokens = step == 0 ? kPrefill : 1;
        for (int32_t layer = 0; layer < config.n_compress_ratios; ++layer) {
            if (step > 0 && outputs.count(layer) == 0) continue; // its source is missing: it has not moved
            std::vector<uint16_t> out;
            if (run_layer(ctx, seq, config, layer, start_pos, n_tokens, out))
                outputs[layer].insert(outputs[layer].end(), out.begin(), out.end());
        }
        start_pos += n_tokens;
    }
    return outputs;
}

Outputs outputs_of(ds41_model *model) {
    ds41_ctx *ctx = nullptr;
    must(ds41_ctx_create(&ctx, model, nullptr));
    const Ctx ctx_owner(ctx);
    ds41_seq *seq = nullptr;
    must(ds41_seq_create(&seq, model));
    const Seq seq_owner(seq);
    return outputs_of(ctx, seq, config_of(model));
}

ds41_config config_of(const ds41_model *model) {
    ds41_config config;
    ds41_config_init(&config, sizeof(config));
    must(ds41_model_get_config(model, &config));
    return config;
}

} // namespace checkpoint_test
