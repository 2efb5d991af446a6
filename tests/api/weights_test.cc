// What ds41_model_set_layer() accepts and refuses, member by member; and who owns the memory afterwards.
#include "support.h"

#include <climits>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

using namespace api_test;

namespace {

constexpr const char *kSetLayer = "ds41_model_set_layer";
constexpr ds41_status kArgument = DS41_STATUS_INVALID_ARGUMENT;
constexpr ds41_status kDtype = DS41_STATUS_INVALID_DTYPE;
constexpr ds41_status kShape = DS41_STATUS_INVALID_SHAPE;
const int32_t kTokens = is_simulated() ? 5 : 13;

// A full model on which wrong weights are tried; the outputs afterwards must be those of a model that saw none.
class Attempts {
public:
    explicit Attempts(const ds41_config &config = small_config(), Format format = Format::bf16)
        : model_(random_model(config, format)), expected_(whole_prefill(random_model(config, format), {3}, kTokens)) {}

    void refuse(int32_t layer, const std::string &name, const std::vector<ds41_status> &accepted,
                const std::vector<std::string> &words, const std::function<void(ds41_layer_weights &)> &spoil) {
        CAPTURE(layer);
        CAPTURE(std::string(name));
        ds41_layer_weights weights = model_.layers[static_cast<size_t>(layer)].weights;
        spoil(weights);
        check_refused(ds41_model_set_layer(model_.get(), layer, &weights), accepted, kSetLayer, words);
    }
    void check_unharmed() { check_same(whole_prefill(model_, {3}, kTokens), expected_, model_.config); }
    const ds41_config &config() const { return model_.config; }
    TestModel &model() { return model_; }

private:
    TestModel model_;
    Record expected_;
};

std::string text(int64_t value) {
    return std::to_string(value);
}

} // namespace

TEST_CASE("a layer takes exactly the tensors of its role") {
    Attempts attempts;
    LayerStorage spare = random_layer(attempts.config(), 1, Format::bf16, kSeed); // has every member
    for (int32_t layer = 0; layer < attempts.config().n_compress_ratios; layer++) {
        for (const TensorSpec &spec : tensor_specs(attempts.config(), layer)) {
            attempts.refuse(layer, std::string(spec.name) + (spec.present ? " absent" : " without use"), {kArgument},
                            {spec.name, text(layer)}, [&](ds41_layer_weights &w) {
                                if (spec.present) w.*spec.member = ds41_tensor{};
                                if (!spec.present) w.*spec.member = spare.weights.*spec.member;
                            });
        }
    }
    attempts.check_unharmed();
}

TEST_CASE("every dimension of every tensor is checked") {
    Attempts attempts;
    for (const int32_t layer : {0, 1, 4, 6}) {
        for (const TensorSpec &spec : tensor_specs(attempts.config(), layer)) {
            if (!spec.present) continue;
            const auto refuse = [&](const char *name, const std::vector<std::string> &words,
                                    const std::function<void(ds41_tensor &)> &spoil) {
                std::vector<std::string> all = words;
                all.push_back(spec.name);
                attempts.refuse(layer, std::string(spec.name) + ": " + name, {kShape}, all,
                                [&](ds41_layer_weights &w) { spoil(w.*spec.member); });
            };
            refuse("a row more", {text(spec.rows + 1), text(spec.rows)}, [](ds41_tensor &t) { t.shape[0]++; });
            refuse("a row less", {text(spec.rows - 1), text(spec.rows)}, [](ds41_tensor &t) { t.shape[0]--; });
            refuse("no rows", {"0", text(spec.rows)}, [](ds41_tensor &t) { t.shape[0] = 0; });
            refuse("INT64_MIN rows", {text(spec.rows)}, [](ds41_tensor &t) { t.shape[0] = INT64_MIN; });
            refuse("2^32 rows more", {text(spec.rows)}, [](ds41_tensor &t) { t.shape[0] += int64_t(1) << 32; });
            refuse("one dimension more", {text(spec.rows)}, [](ds41_tensor &t) { t.shape[t.n_dims++] = 1; });
            refuse("n_dims 0", {"0"}, [](ds41_tensor &t) { t.n_dims = 0; });
            refuse("n_dims 5", {"5"}, [](ds41_tensor &t) { t.n_dims = 5; });
            refuse("n_dims -1", {"-1"}, [](ds41_tensor &t) { t.n_dims = -1; });
            refuse("n_dims INT32_MAX", {"2147483647"}, [](ds41_tensor &t) { t.n_dims = INT32_MAX; });
            if (spec.cols == 0) continue;
            refuse("a column more", {text(spec.cols + 1), text(spec.cols)}, [](ds41_tensor &t) { t.shape[1]++; });
            refuse("a column less", {text(spec.cols - 1), text(spec.cols)}, [](ds41_tensor &t) { t.shape[1]--; });
            refuse("INT64_MAX columns", {text(spec.cols)}, [](ds41_tensor &t) { t.shape[1] = INT64_MAX; });
            refuse("flat", {text(spec.rows)}, [](ds41_tensor &t) {
                t.n_dims = 1;
                t.shape[0] *= t.shape[1];
                t.shape[1] = 0;
            });
        }
    }
    attempts.check_unharmed();
}

TEST_CASE("a place takes only its dtypes, aligned memory, known flags") {
    Attempts attempts;
    for (const int32_t layer : {1, 4}) {
        for (const TensorSpec &spec : tensor_specs(attempts.config(), layer)) {
            if (!spec.present) continue;
            const auto refuse = [&](const std::string &name, const std::vector<ds41_status> &accepted,
                                    const std::vector<std::string> &words,
                                    const std::function<void(ds41_tensor &)> &spoil) {
                std::vector<std::string> all = words;
                all.push_back(spec.name);
                attempts.refuse(layer, std::string(spec.name) + ": " + name, accepted, all,
                                [&](ds41_layer_weights &w) { spoil(w.*spec.member); });
            };
            for (const int32_t dtype : {int32_t(DS41_DTYPE_I32), int32_t(DS41_DTYPE_U8), int32_t(DS41_DTYPE_I8),
                                        int32_t(DS41_DTYPE_F16), int32_t(DS41_DTYPE_UE8M0), 10, -1, INT32_MAX}) {
                refuse("dtype " + text(dtype), {kDtype}, {ds41_dtype_name(dtype) + std::string("|") + text(dtype)},
                       [=](ds41_tensor &t) { t.dtype = dtype; });
            }
            if (spec.kind != Kind::projection) {
                for (const int32_t dtype : {DS41_DTYPE_FP8_E4M3, DS41_DTYPE_Q2_K}) {
                    refuse(ds41_dtype_name(dtype), {kDtype}, {ds41_dtype_name(dtype)},
                           [=](ds41_tensor &t) { t.dtype = dtype; });
                }
            }
            refuse("data NULL", {kArgument}, {"NULL|null"}, [](ds41_tensor &t) { t.data = nullptr; });
            refuse("an unknown flag", {DS41_STATUS_UNSUPPORTED, kArgument}, {"flags"},
                   [](ds41_tensor &t) { t.flags = 2; });
            refuse("reserved", {DS41_STATUS_UNSUPPORTED, kArgument}, {"reserved"},
                   [](ds41_tensor &t) { t.reserved = 1; });
            if (spec.kind == Kind::projection) {
                refuse("Q2_K rows of no multiple of 256", {kShape, kDtype}, {"256"},
                       [](ds41_tensor &t) { t.dtype = DS41_DTYPE_Q2_K; });
                refuse("FP8 without scales", {kArgument}, {"scales"},
                       [](ds41_tensor &t) { t.dtype = DS41_DTYPE_FP8_E4M3; });
            }
        }
    }
    attempts.check_unharmed();
}

TEST_CASE("FP8 scales are checked: present, shape, bytes") {
    Attempts attempts(small_config(), Format::fp8);
    for (const int32_t layer : {0, 4}) {
        for (const TensorSpec &spec : tensor_specs(attempts.config(), layer)) {
            if (!spec.present || spec.kind != Kind::projection) continue;
            const int64_t rows = (spec.rows + 31) / 32, cols = spec.cols / 32;
            const auto refuse = [&](const char *name, const std::vector<ds41_status> &accepted,
                                    const std::vector<std::string> &words,
                                    const std::function<void(ds41_tensor &)> &spoil) {
                std::vector<std::string> all = words;
                all.push_back(spec.name);
                attempts.refuse(layer, std::string(spec.name) + ": " + name, accepted, all,
                                [&](ds41_layer_weights &w) { spoil(w.*spec.member); });
            };
            refuse("scales NULL", {kArgument}, {"scales", "NULL|null"}, [](ds41_tensor &t) { t.scales = nullptr; });
            for (int i = 0; i < 2; i++) {
                const int64_t right = i == 0 ? rows : cols;
                for (const int64_t wrong : {right + 1, right - 1, int64_t(-1), INT64_MAX}) {
                    refuse("scale_shape", {kShape}, {"scale_shape|scales", text(wrong), text(right)},
                           [=](ds41_tensor &t) { t.scale_shape[i] = wrong; });
                }
            }
            for (const int64_t at : {int64_t(0), rows * cols - 1}) {
                std::vector<uint8_t> scales(static_cast<size_t>(rows * cols), 127);
                scales[static_cast<size_t>(at)] = 255;
                refuse("a scale byte of 255", {kArgument}, {"255", "scale|scales"},
                       [&](ds41_tensor &t) { t.scales = scales.data(); });
            }
        }
    }
    attempts.check_unharmed();

    // Rows of FP8 that are no multiple of 32.
    ds41_config config = small_config();
    config.dim = 48;
    Attempts narrow(config);
    std::vector<uint8_t> scales(64, 127);
    narrow.refuse(0, "48 columns of FP8", {kShape, kDtype}, {"wq_a", "48", "32"}, [&](ds41_layer_weights &w) {
        w.wq_a.dtype = DS41_DTYPE_FP8_E4M3;
        w.wq_a.scales = scales.data();
        w.wq_a.scale_shape[0] = 1;
        w.wq_a.scale_shape[1] = 1;
    });
    narrow.check_unharmed();
}

TEST_CASE("a sink that is NaN is refused, an infinite one means something") {
    Attempts attempts;
    float sinks[4] = {0, 0, 0, std::nanf("")};
    const uint16_t bf16_sinks[4] = {0, 0x7FC0, 0, 0};
    attempts.refuse(0, "F32 NaN", {kArgument}, {"attn_sink", "NaN|nan"},
                    [&](ds41_layer_weights &w) { w.attn_sink = view(sinks, DS41_DTYPE_F32, {4}); });
    attempts.refuse(0, "BF16 NaN", {kArgument}, {"attn_sink", "NaN|nan"},
                    [&](ds41_layer_weights &w) { w.attn_sink = view(bf16_sinks, DS41_DTYPE_BF16, {4}); });
    attempts.check_unharmed();

    const auto run = [](float sink) {
        const ds41_config config = small_config();
        TestModel model = empty_model(config);
        const std::vector<float> all(4, sink);
        for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) {
            model.layers.push_back(random_layer(config, layer, Format::bf16, kSeed));
            model.layers.back().weights.attn_sink = view(all.data(), DS41_DTYPE_F32, {4});
            must(ds41_model_set_layer(model.get(), layer, &model.layers.back().weights));
        }
        return whole_prefill(model, {3}, kTokens);
    };
    const float inf = std::numeric_limits<float>::infinity();
    const Record zeros = run(inf), none = run(-inf), hardly_any = run(-1e30f);
    bool all_zero = true, some = false;
    for (const auto &layer : zeros.layers) {
        for (const uint16_t bits : layer) all_zero = all_zero && (bits & 0x7FFF) == 0;
    }
    for (const auto &layer : none.layers) {
        for (const uint16_t bits : layer) {
            some = some || (bits & 0x7FFF) != 0;
            CHECK(std::isfinite(bf16_to_float(bits)));
        }
    }
    CHECK(all_zero);
    CHECK(some);
    check_same(none, hardly_any, small_config());
}

TEST_CASE("a wrong layer or ownership is refused") {
    Attempts attempts;
    for (const int32_t layer : {-1, 8, INT32_MAX, INT32_MIN}) {
        check_refused(ds41_model_set_layer(attempts.model().get(), layer, &attempts.model().layers[0].weights),
                      {DS41_STATUS_INVALID_LAYER}, kSetLayer, {"layer", text(layer), "7|8"});
    }
    for (const int32_t ownership : {-1, 2, INT32_MAX}) {
        attempts.refuse(0, "ownership", {kArgument}, {"ownership", text(ownership)},
                        [=](ds41_layer_weights &w) { w.ownership = ownership; });
    }
    attempts.check_unharmed();
}

TEST_CASE("copied weights need their memory no more, borrowed ones are the same bits") {
    for (const Format format : {Format::bf16, Format::fp8}) {
        CAPTURE(std::string(name_of(format)));
        const ds41_config config = config_for(format);
        TestModel copied = random_model(config, format);
        for (LayerStorage &layer : copied.layers) {
            for (auto &block : layer.memory) std::memset(block.data(), 0xFF, block.size() * 8);
            layer.memory.clear();
        }
        const TestModel borrowed = random_model(config, format, kSeed, DS41_OWNERSHIP_BORROW);
        check_same(whole_prefill(copied, {3}, kTokens), whole_prefill(borrowed, {3}, kTokens), config);
    }
}

TEST_CASE("weights that are copied need no alignment, those that are borrowed do") {
    for (const Format format : {Format::bf16, Format::f32, Format::fp8}) {
        CAPTURE(std::string(name_of(format)));
        const ds41_config config = config_for(format);
        TestModel model = empty_model(config);
        for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) {
            const LayerStorage storage = random_layer(config, layer, format, kSeed);
            ds41_layer_weights weights = storage.weights;
            std::vector<std::vector<uint8_t>> moved;
            for (const TensorSpec &spec : tensor_specs(config, layer)) {
                if (!spec.present) continue;
                ds41_tensor &t = weights.*spec.member;
                uint64_t n_bytes = 0;
                must(ds41_tensor_get_bytes(&t, &n_bytes));
                moved.emplace_back(n_bytes + 1);
                std::memcpy(moved.back().data() + 1, t.data, n_bytes);
                t.data = moved.back().data() + 1;
                if (spec.kind == Kind::vector || t.dtype == DS41_DTYPE_FP8_E4M3) continue;
                ds41_layer_weights borrowed = storage.weights;
                borrowed.ownership = DS41_OWNERSHIP_BORROW;
                (borrowed.*spec.member).data = t.data;
                check_refused(ds41_model_set_layer(model.get(), layer, &borrowed), {kArgument}, kSetLayer,
                              {spec.name, "2|4"});
            }
            must(ds41_model_set_layer(model.get(), layer, &weights));
        }
        check_same(whole_prefill(model, {3}, kTokens), whole_prefill(random_model(format), {3}, kTokens), config);
    }
}

TEST_CASE("setting a layer again replaces its weights") {
    const ds41_config config = small_config();
    TestModel model = random_model(config, Format::bf16, 99);
    for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) {
        const LayerStorage storage = random_layer(config, layer, Format::bf16, kSeed);
        must(ds41_model_set_layer(model.get(), layer, &storage.weights));
    }
    check_same(whole_prefill(model, {3}, kTokens), whole_prefill(random_model(config), {3}, kTokens), config);
}

TEST_CASE("a model is immutable once it has had a context or a sequence, and only then") {
    const ds41_config config = small_config();
    for (const bool by_ctx : {true, false}) {
        TestModel model = random_model(config, Format::bf16, 99);
        const LayerStorage storage = random_layer(config, 0, Format::bf16, kSeed);
        ds41_buffer *buffer = nullptr;
        must(ds41_buffer_create(&buffer, model.get(), 64));
        ds41_ctx *refused = nullptr;
        ds41_ctx_options options;
        ds41_ctx_options_init(&options, sizeof(options));
        options.topk_end_pos = -1;
        CHECK(ds41_ctx_create(&refused, model.get(), &options) == kArgument);
        CHECK(refused == nullptr);
        must(ds41_model_set_layer(model.get(), 0, &storage.weights)); // neither of them froze it
        if (by_ctx) new_ctx(model.get()).reset();
        if (!by_ctx) new_seq(model.get()).reset();
        check_refused(ds41_model_set_layer(model.get(), 0, &storage.weights), {DS41_STATUS_WRONG_ORDER}, kSetLayer,
                      {"context|sequence"});
        ds41_buffer_destroy(buffer);
    }
}
