// Statuses, messages, steps and rows of the API tests; the models are in support_model.cc.
#include "support.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace api_test {

void must(ds41_status status) {
    if (status == DS41_STATUS_OK) return;
    const std::string text = std::string(ds41_status_name(status)) + ": " + ds41_last_error();
    REQUIRE_MESSAGE(status == DS41_STATUS_OK, text);
}

static bool is_word_char(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool has_one_word(std::string_view text, std::string_view word) {
    for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
        const size_t end = at + word.size();
        const bool starts = at == 0 || !is_word_char(text[at - 1]) || !is_word_char(word.front());
        const bool ends = end == text.size() || !is_word_char(text[end]) || !is_word_char(word.back());
        if (starts && ends) return true;
    }
    return false;
}

bool has_word(std::string_view text, std::string_view words) {
    while (true) {
        const size_t bar = words.find('|');
        if (has_one_word(text, words.substr(0, bar))) return true;
        if (bar == std::string_view::npos) return false;
        words.remove_prefix(bar + 1);
    }
}

void check_refused(ds41_status status, const std::vector<ds41_status> &accepted, const char *function,
                   const std::vector<std::string> &words) {
    std::string names;
    bool ok = false;
    for (const ds41_status one : accepted) {
        ok = ok || one == status;
        names += (names.empty() ? "" : " or ") + std::string(ds41_status_name(one));
    }
    const std::string message = ds41_last_error();
    CAPTURE(message);
    const std::string got = ds41_status_name(status);
    CHECK_MESSAGE(ok, got, ", expected ", names);
    if (status == DS41_STATUS_OK) return; // the message belongs to another call
    CHECK_MESSAGE(has_word(message, function), "the function's name is missing: ", std::string(function));
    for (const std::string &word : words) CHECK_MESSAGE(has_word(message, word), "the message lacks: ", word);
}

bool allocation_can_fail() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
    return false;
#endif
#endif
    const char *preloaded = std::getenv("LD_PRELOAD");
    return preloaded == nullptr || std::strstr(preloaded, "vgpreload") == nullptr;
}

ds41_tensor view(const void *data, int32_t dtype, std::initializer_list<int64_t> shape) {
    ds41_tensor tensor;
    ds41_tensor_init(&tensor, const_cast<void *>(data), dtype, static_cast<int32_t>(shape.size()), shape.begin());
    return tensor;
}

float bf16_to_float(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
}

// ---- Rows -----------------------------------------------------------------------------------------------------------

constexpr uint16_t kPoison = 0x7FA5; // a NaN, so that a value computed from it shows
constexpr uint16_t kGuardWord = 0xFFC7;

constexpr int64_t kGuard = 64; // 128 bytes: rows stay as aligned as the allocation

static uint64_t bytes_of(size_t n_values) {
    return n_values * sizeof(uint16_t);
}

// Buffers of all rows are made on a model that no test destroys.
static ds41_model *home_model() {
    static const TestModel home = empty_model(small_config());
    return home.get();
}

bool on_device() {
    static const bool is_device = has_word(ds41_model_get_backend(home_model()), "cuda|sim");
    return is_device;
}

bool is_simulated() {
    const char *backend = tested_options().backend; // the best one is never this
    return backend && std::strcmp(backend, "sim") == 0;
}

static std::vector<uint16_t> guarded_image(int64_t n_values) {
    std::vector<uint16_t> image(static_cast<size_t>(n_values + 2 * kGuard), kGuardWord);
    std::fill(image.begin() + kGuard, image.end() - kGuard, kPoison);
    return image;
}

Rows::Rows(std::vector<uint16_t> image, int64_t guard) : image_(std::move(image)), guard_(guard) {
    if (!on_device()) {
        memory_ = image_;
        return;
    }
    ds41_buffer *buffer = nullptr;
    must(ds41_buffer_create(&buffer, home_model(), bytes_of(image_.size())));
    buffer_.reset(buffer);
    must(ds41_buffer_upload(buffer, 0, image_.data(), bytes_of(image_.size())));
}

Rows::Rows(const std::vector<uint16_t> &values) : Rows(values, 0) {}

Rows::Rows(int64_t n_values) : Rows(guarded_image(n_values), kGuard) {}

void *Rows::at(int64_t value) const {
    void *first = buffer_ ? ds41_buffer_get_data(buffer_.get()) : const_cast<uint16_t *>(memory_.data());
    return static_cast<uint16_t *>(first) + guard_ + value;
}

void Rows::put(int64_t at, const std::vector<uint16_t> &values) {
    const size_t first = static_cast<size_t>(guard_ + at);
    std::copy(values.begin(), values.end(), image_.begin() + static_cast<int64_t>(first));
    if (buffer_) {
        must(ds41_buffer_upload(buffer_.get(), bytes_of(first), values.data(), bytes_of(values.size())));
    } else {
        std::copy(values.begin(), values.end(), memory_.begin() + static_cast<int64_t>(first));
    }
}

std::vector<uint16_t> Rows::everything() const {
    if (!buffer_) return memory_;
    std::vector<uint16_t> all(image_.size());
    must(ds41_buffer_download(buffer_.get(), 0, all.data(), bytes_of(all.size())));
    return all;
}

std::vector<uint16_t> Rows::values() const {
    const std::vector<uint16_t> all = everything();
    return {all.begin() + guard_, all.end() - guard_};
}

bool Rows::guards_intact() const {
    const std::vector<uint16_t> all = everything();
    const auto is_guard = [](uint16_t word) { return word == kGuardWord; };
    return std::all_of(all.begin(), all.begin() + guard_, is_guard) &&
           std::all_of(all.end() - guard_, all.end(), is_guard);
}

bool Rows::untouched() const {
    return everything() == image_;
}

// ---- Record ---------------------------------------------------------------------------------------------------------

void Record::append(int32_t layer, const uint16_t *values, int64_t n_values) {
    if (layers.size() <= static_cast<size_t>(layer)) layers.resize(static_cast<size_t>(layer) + 1);
    layers[static_cast<size_t>(layer)].insert(layers[static_cast<size_t>(layer)].end(), values, values + n_values);
}

void Record::append(int32_t layer, const std::vector<uint16_t> &values) {
    append(layer, values.data(), static_cast<int64_t>(values.size()));
}

bool operator==(const Record &a, const Record &b) {
    return a.layers == b.layers;
}

std::string first_difference(const Record &a, const Record &b, int32_t dim) {
    for (size_t layer = 0; layer < std::max(a.layers.size(), b.layers.size()); layer++) {
        const std::vector<uint16_t> none;
        const auto &x = layer < a.layers.size() ? a.layers[layer] : none;
        const auto &y = layer < b.layers.size() ? b.layers[layer] : none;
        for (size_t i = 0; i < std::min(x.size(), y.size()); i++) {
            if (x[i] == y[i]) continue;
            char text[160];
            std::snprintf(text, sizeof(text), "layer %zu token %zu column %zu: %04x (%g), expected %04x (%g)", layer,
                          i / static_cast<size_t>(dim), i % static_cast<size_t>(dim), x[i], bf16_to_float(x[i]), y[i],
                          bf16_to_float(y[i]));
            return text;
        }
        if (x.size() != y.size()) {
            return "layer " + std::to_string(layer) + ": " + std::to_string(x.size()) + " values, expected " +
                   std::to_string(y.size());
        }
    }
    return "";
}

void check_same(const Record &got, const Record &expected, const ds41_config &config) {
    const std::string difference = first_difference(got, expected, config.dim);
    CHECK_MESSAGE(difference.empty(), difference);
}

// ---- Steps ----------------------------------------------------------------------------------------------------------

Ctx new_ctx(ds41_model *model) {
    ds41_ctx *ctx = nullptr;
    must(ds41_ctx_create(&ctx, model, nullptr));
    return Ctx(ctx);
}

Seq new_seq(ds41_model *model) {
    ds41_seq *seq = nullptr;
    must(ds41_seq_create(&seq, model));
    return Seq(seq);
}

static int64_t position_of(ds41_seq *seq, int32_t layer) {
    int64_t position = -1;
    must(ds41_seq_get_position(seq, layer, &position));
    return position;
}

// The values of out, every one of them written.
static std::vector<uint16_t> written_values(const Rows &out) {
    CHECK_MESSAGE(out.guards_intact(), "written beyond out");
    const std::vector<uint16_t> values = out.values();
    const bool all = std::find(values.begin(), values.end(), kPoison) == values.end();
    CHECK_MESSAGE(all, "a value of out was not written");
    return values;
}

void prefill_layer(const TestModel &model, ds41_ctx *ctx, ds41_seq *seq, int32_t layer, const Tape &tape,
                   int64_t start_pos, int32_t n_tokens, Record *record) {
    CAPTURE(layer);
    CAPTURE(start_pos);
    CAPTURE(n_tokens);
    const int64_t dim = model.config.dim;
    const Rows x(tape.rows(model.config, layer, start_pos, n_tokens));
    const Rows out(n_tokens * dim);
    const ds41_tensor x_view = view(x.at(0), DS41_DTYPE_BF16, {n_tokens, dim});
    const ds41_tensor out_view = view(out.at(0), DS41_DTYPE_BF16, {n_tokens, dim});
    must(ds41_layer_prefill(ctx, layer, seq, &x_view, n_tokens, start_pos, &out_view));
    must(ds41_ctx_synchronize(ctx));
    CHECK(x.untouched());
    const std::vector<uint16_t> values = written_values(out);
    CHECK(position_of(seq, layer) == start_pos + n_tokens);
    if (record) record->append(layer, values);
}

void prefill(const TestModel &model, ds41_ctx *ctx, ds41_seq *seq, const Tape &tape, int64_t start_pos,
             int32_t n_tokens, Record *record) {
    for (int32_t layer = 0; layer < model.config.n_compress_ratios; layer++) {
        prefill_layer(model, ctx, seq, layer, tape, start_pos, n_tokens, record);
    }
}

void prep(ds41_ctx *ctx, const std::vector<SpanRun> &spans) {
    std::vector<ds41_span> list;
    for (const SpanRun &span : spans) list.push_back({span.seq, span.start_pos, span.n_tokens, 0});
    must(ds41_decode_prep(ctx, list.data(), static_cast<int32_t>(list.size())));
}

void decode_layer(const TestModel &model, ds41_ctx *ctx, int32_t layer, const std::vector<SpanRun> &spans,
                  bool in_place) {
    CAPTURE(layer);
    const int64_t dim = model.config.dim;
    std::vector<uint16_t> inputs;
    for (const SpanRun &span : spans) {
        const std::vector<uint16_t> rows = span.tape.rows(model.config, layer, span.start_pos, span.n_tokens);
        inputs.insert(inputs.end(), rows.begin(), rows.end());
    }
    const Rows x(inputs);
    const int64_t n_rows = x.size() / dim;
    Rows out(x.size());
    if (in_place) out.put(0, inputs);
    const ds41_tensor x_view = view(in_place ? out.at(0) : x.at(0), DS41_DTYPE_BF16, {n_rows, dim});
    const ds41_tensor out_view = view(out.at(0), DS41_DTYPE_BF16, {n_rows, dim});
    must(ds41_decode_body(ctx, layer, &x_view, &out_view));
    must(ds41_ctx_synchronize(ctx));
    CHECK(x.untouched());
    const std::vector<uint16_t> outputs = written_values(out);
    const uint16_t *values = outputs.data();
    for (const SpanRun &span : spans) {
        CHECK(position_of(span.seq, layer) == span.start_pos + span.n_tokens);
        if (span.record) span.record->append(layer, values, span.n_tokens * dim);
        values += span.n_tokens * dim;
    }
}

void decode(const TestModel &model, ds41_ctx *ctx, const std::vector<SpanRun> &spans, bool in_place) {
    prep(ctx, spans);
    for (int32_t layer = 0; layer < model.config.n_compress_ratios; layer++) {
        decode_layer(model, ctx, layer, spans, in_place);
    }
}

Record whole_prefill(const TestModel &model, const Tape &tape, int32_t n_tokens) {
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    Record record;
    for (int32_t at = 0, n; at < n_tokens; at += n) {
        n = std::min(n_tokens - at, n_same_rows(model));
        prefill(model, ctx.get(), seq.get(), tape, at, n, &record);
    }
    return record;
}

// ---- Files ----------------------------------------------------------------------------------------------------------

TempFile::TempFile(std::string_view contents) {
    const char *folder = std::getenv("TMPDIR");
    path_ = std::string(folder && *folder ? folder : "/tmp") + "/ds41-api-XXXXXX";
    const int descriptor = mkstemp(path_.data());
    REQUIRE(descriptor >= 0);
    const bool written = write(descriptor, contents.data(), contents.size()) == static_cast<ssize_t>(contents.size());
    close(descriptor);
    REQUIRE(written);
}

TempFile::~TempFile() {
    unlink(path_.c_str());
}

std::string safetensors(std::string_view header, std::string_view data) {
    std::string file;
    for (int byte = 0; byte < 8; byte++) file += static_cast<char>(header.size() >> (8 * byte) & 0xFF);
    return file + std::string(header) + std::string(data);
}

} // namespace api_test
