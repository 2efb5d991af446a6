// What the API tests share: small random models, deterministic inputs, guarded rows, steps that check what every step
// must keep, and the check of a refusal. Everything goes through the public header. DS41_TEST_BACKEND names the backend
// that they test.
#pragma once

#include "ds41/ds41.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace api_test {

template <auto destroy> struct Destroy {
    template <typename T> void operator()(T *object) const { destroy(object); }
};
using Model = std::unique_ptr<ds41_model, Destroy<ds41_model_destroy>>;
using Ctx = std::unique_ptr<ds41_ctx, Destroy<ds41_ctx_destroy>>;
using Seq = std::unique_ptr<ds41_seq, Destroy<ds41_seq_destroy>>;
using Buffer = std::unique_ptr<ds41_buffer, Destroy<ds41_buffer_destroy>>;
using File = std::unique_ptr<ds41_file, Destroy<ds41_file_destroy>>;
using Checkpoint = std::unique_ptr<ds41_checkpoint, Destroy<ds41_checkpoint_destroy>>;

// ---- Statuses and messages ------------------------------------------------------------------------------------------

// Stop the test unless a call succeeded, and show why it did not.
void must(ds41_status status);

// Whether `text` holds one of the alternatives in `words` ("a|b") between characters that do not belong to a word.
bool has_word(std::string_view text, std::string_view words);

// A refusal: one of the accepted statuses, and a sentence that names the function and holds every one of `words`.
void check_refused(ds41_status status, const std::vector<ds41_status> &accepted, const char *function,
                   const std::vector<std::string> &words);

// Whether memory that cannot be had comes back as an exception: sanitizers and valgrind end the process instead.
bool allocation_can_fail();

// ---- Backend --------------------------------------------------------------------------------------------------------

// Options with which tests create and load models: the tested backend, which is the best one unless the environment
// names another.
ds41_model_options tested_options(int32_t topk_rule = DS41_TOPK_STABLE);

// Whether that backend computes in memory of a device: rows live in buffers, and weights are copied, whoever owns them.
bool on_device();

// Whether that device is the simulated one, on which a layer takes some ten thousand times as long: tests then take
// fewer rows of the same kinds.
bool is_simulated();

// ---- Models ---------------------------------------------------------------------------------------------------------

enum class Format { bf16, f32, fp8, fp8_plain, q2_k, q2_k_plain };
const char *name_of(Format format);

// Seven backbone layers and a draft layer, of every role: window only, ratio 4, a ratio-2 source and its consumer, the
// candidate source, a consumer, an index source inside its blocks. Window, selection and candidates bind within 40
// tokens.
ds41_config small_config();

// Wide enough for Q2_K rows of 256 values; four layers.
ds41_config wide_config();

// Six layers of ratio 1 in which the three things a layer may read come from three different layers: layer 5 reads the
// rows of layer 3, the selection of layer 4 and through it the candidates of layer 0.
ds41_config chained_config();

ds41_config config_for(Format format);

enum class Kind { projection, vector, pooled_product };

// One member of ds41_layer_weights: what the header says about it for a layer.
struct TensorSpec {
    const char *name;
    ds41_tensor ds41_layer_weights::*member;
    Kind kind; // pooled_product: the products of a ratio > 1 compressor, F32 or BF16 only
    int64_t rows;
    int64_t cols; // 0: a vector
    bool present; // the layer's role has it
};
std::vector<TensorSpec> tensor_specs(const ds41_config &config, int32_t layer);

// The role of a layer by the rules of the header, told independently of the library.
ds41_layer_role expected_role(const ds41_config &config, int32_t layer);

// Weights of one layer and the memory under them. Moves only: a copy would point into the original.
struct LayerStorage {
    LayerStorage() = default;
    LayerStorage(LayerStorage &&) noexcept = default;
    LayerStorage &operator=(LayerStorage &&) noexcept = default;

    ds41_layer_weights weights = {};
    std::vector<std::vector<uint64_t>> memory;
};
LayerStorage random_layer(const ds41_config &config, int32_t layer, Format format, uint64_t seed);

struct TestModel {
    ds41_config config;
    std::vector<LayerStorage> layers;
    Model handle;

    ds41_model *get() const { return handle.get(); }
};

constexpr uint64_t kSeed = 20260101;

TestModel empty_model(const ds41_config &config, int32_t topk_rule = DS41_TOPK_STABLE);
TestModel random_model(const ds41_config &config, Format format = Format::bf16, uint64_t seed = kSeed,
                       int32_t ownership = DS41_OWNERSHIP_COPY, int32_t topk_rule = DS41_TOPK_STABLE);
TestModel random_model(Format format);

// Most rows of a step that the same kernels compute, however many they are. On a device, steps of more rows multiply
// BF16 weights by another routine, which adds in another order; what they give is the same bits for the same step only.
int32_t n_same_rows(const TestModel &model);

Ctx new_ctx(ds41_model *model);
Seq new_seq(ds41_model *model);

// ---- Steps ----------------------------------------------------------------------------------------------------------

ds41_tensor view(const void *data, int32_t dtype, std::initializer_list<int64_t> shape);
float bf16_to_float(uint16_t bits);

// Rows of bf16 where the tested backend computes: in a buffer on a device, in plain memory elsewhere.
class Rows {
public:
    // These and nothing around them, so that a read beyond them is seen by a sanitizer or by the simulated device.
    explicit Rows(const std::vector<uint16_t> &values);
    // Between guard bands, and NaN patterns until somebody writes them.
    explicit Rows(int64_t n_values);

    int64_t size() const { return static_cast<int64_t>(image_.size()) - 2 * guard_; }
    void *at(int64_t value) const; // the address for a tensor
    void put(int64_t at, const std::vector<uint16_t> &values);

    // What there is now. Not while a step that writes them goes on: ds41_ctx_synchronize() comes first.
    std::vector<uint16_t> values() const;
    bool guards_intact() const;
    bool untouched() const; // as they were made and put, guards included

private:
    explicit Rows(std::vector<uint16_t> image, int64_t guard);
    std::vector<uint16_t> everything() const;

    std::vector<uint16_t> image_; // guards included
    int64_t guard_;
    std::vector<uint16_t> memory_; // empty on a device
    Buffer buffer_;
};

// The tokens of one conversation: each layer's input rows, a function of the seed, the layer and the position alone.
struct Tape {
    uint64_t seed;
    std::vector<uint16_t> rows(const ds41_config &config, int32_t layer, int64_t start_pos, int64_t n_tokens) const;
};

// What the layers of one sequence put out, token after token.
struct Record {
    std::vector<std::vector<uint16_t>> layers;
    void append(int32_t layer, const uint16_t *values, int64_t n_values);
    void append(int32_t layer, const std::vector<uint16_t> &values);
};
bool operator==(const Record &a, const Record &b);
std::string first_difference(const Record &a, const Record &b, int32_t dim);
void check_same(const Record &got, const Record &expected, const ds41_config &config);

// Both calls check: the status, inputs unchanged, guards intact, every output value written, the position advanced.
void prefill_layer(const TestModel &model, ds41_ctx *ctx, ds41_seq *seq, int32_t layer, const Tape &tape,
                   int64_t start_pos, int32_t n_tokens, Record *record);
void prefill(const TestModel &model, ds41_ctx *ctx, ds41_seq *seq, const Tape &tape, int64_t start_pos,
             int32_t n_tokens, Record *record);

struct SpanRun {
    ds41_seq *seq;
    Tape tape;
    int64_t start_pos;
    int32_t n_tokens;
    Record *record;
};
void prep(ds41_ctx *ctx, const std::vector<SpanRun> &spans);
void decode_layer(const TestModel &model, ds41_ctx *ctx, int32_t layer, const std::vector<SpanRun> &spans,
                  bool in_place = false);
void decode(const TestModel &model, ds41_ctx *ctx, const std::vector<SpanRun> &spans, bool in_place = false);

// One prefill of everything (on a device, of n_same_rows() tokens after the other) on a fresh context and sequence:
// what all other ways of running must repeat.
Record whole_prefill(const TestModel &model, const Tape &tape, int32_t n_tokens);

// ---- Files ----------------------------------------------------------------------------------------------------------

// A file in the folder for temporary files; gone with the object.
class TempFile {
public:
    explicit TempFile(std::string_view contents);
    ~TempFile();
    TempFile(const TempFile &) = delete;
    TempFile &operator=(const TempFile &) = delete;
    const char *path() const { return path_.c_str(); }

private:
    std::string path_;
};

// A well-formed safetensors file: its JSON header, then `data`.
std::string safetensors(std::string_view header, std::string_view data);

// A configuration under the flat names of the reference.
std::string to_json(const ds41_config &config);

} // namespace api_test
