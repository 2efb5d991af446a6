// Drives the library: model, context and sequence, inputs and outputs in device buffers, taps into chunks.
#include "runner.h"

#include "assemble.h"
#include "weights.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <map>

namespace replay {

namespace {

/// Where the tap function puts what it gets: the last chunk of the layer that runs.
struct Sink {
    std::map<int32_t, std::vector<Chunk>> chunks; // of the step, by layer
    std::exception_ptr error;                     // no exception may cross the C interface
};

void receive(const ds41_tap *tap, void *user) {
    Sink &sink = *static_cast<Sink *>(user);
    try {
        Chunk &chunk = sink.chunks.at(tap->layer).back();
        if (tap->start_pos != chunk.start_pos || tap->n_tokens != chunk.n_tokens || tap->span != 0)
            throw CannotRun(std::string("tap ") + tap->name + " of layer " + std::to_string(tap->layer) +
                            " came for a span that was not asked for");
        chunk.taps[tap->name] = to_array(tap->tensor);
    } catch (...) {
        sink.error = std::current_exception();
    }
}

class Runner {
public:
    Runner(const Fixture &fixture, const Case &replayed, size_t mode, const RunOptions &options);

    ModeResult run();

private:
    void begin_sequence(const Step &step);
    void run_step(size_t index);
    void run_layer(size_t index, int32_t layer, int64_t start_pos, int64_t n_tokens);
    void compare_step(size_t index, std::vector<Record> &records);
    Comparison compare_tensor(const Expected &expected);
    void settle_exceptions(std::vector<Record> &records) const;
    Geometry geometry_of(size_t step, int32_t layer) const;
    void take_fingerprint(const Array &values);

    const Fixture &fixture_;
    const Case &case_;
    const Mode &mode_;
    const std::vector<Expected> &expected_;
    const RunOptions &options_;
    std::string topk_;

    Sink sink_;
    std::deque<Loaded> kept_; // weights that the model borrows
    Handle<ds41_model> model_;
    Handle<ds41_buffer> x_, out_; // rows of the largest step
    Handle<ds41_ctx> ctx_;
    Handle<ds41_seq> seq_;
    std::vector<const char *> tap_names_;
    uint64_t fingerprint_ = 0xcbf29ce484222325; // FNV-1a of nothing
};

Runner::Runner(const Fixture &fixture, const Case &replayed, size_t mode, const RunOptions &options)
    : fixture_(fixture), case_(replayed), mode_(replayed.modes[mode]), expected_(replayed.expected[mode]),
      options_(options), topk_(options.topk.empty() ? replayed.tie : options.topk) {
    ds41_model_options model_options;
    ds41_model_options_init(&model_options, sizeof(model_options));
    model_options.topk_rule = topk_ == "torch_cpu" ? DS41_TOPK_TORCH_CPU : DS41_TOPK_STABLE;
    if (!options.backend.empty()) model_options.backend = options.backend.c_str();
    ds41_model *model = nullptr;
    if (options.weights.empty()) {
        check(ds41_model_create(&model, &case_.config, &model_options), "creating the model");
        model_.reset(model);
        for (int32_t layer : case_.layers) set_layer(model, fixture, case_, layer, mode_.plain_activations, kept_);
    } else {
        model_.reset(model = load_checkpoint(options, case_, mode_.plain_activations, model_options));
    }

    int64_t n_rows = 0;
    for (const Step &step : case_.steps) n_rows = std::max(n_rows, step.n_tokens);
    for (Handle<ds41_buffer> *buffer : {&x_, &out_}) {
        ds41_buffer *created = nullptr;
        const uint64_t n_bytes = static_cast<uint64_t>(n_rows) * static_cast<uint64_t>(case_.config.dim) * 2;
        check(ds41_buffer_create(&created, model, n_bytes), "creating a buffer");
        buffer->reset(created);
    }
    for (const Expected &expected : expected_) {
        const char *tap = tap_of(expected.kind);
        if (tap && std::find(tap_names_.begin(), tap_names_.end(), tap) == tap_names_.end()) tap_names_.push_back(tap);
    }
}

ModeResult Runner::run() {
    ModeResult result{ds41_model_get_backend(model_.get()), topk_, 0, {}};
    if (case_.steps[0].start_pos != 0) throw CannotRun("the first step does not start at position 0");
    for (size_t i = 0; i < case_.steps.size(); ++i) {
        run_step(i);
        compare_step(i, result.records);
    }
    settle_exceptions(result.records);
    result.fingerprint = fingerprint_;
    return result;
}

/// A context of its own for each sequence: torch's rule depends on where the sequence's prefill ends.
void Runner::begin_sequence(const Step &step) {
    ds41_ctx_options ctx_options;
    ds41_ctx_options_init(&ctx_options, sizeof(ctx_options));
    ctx_options.n_threads = options_.threads;
    if (topk_ == "torch_cpu") ctx_options.topk_end_pos = step.n_tokens;
    ds41_ctx *ctx = nullptr;
    check(ds41_ctx_create(&ctx, model_.get(), &ctx_options), "creating a context");
    ctx_.reset(ctx);
    if (!tap_names_.empty()) // no names would ask for all of them
        check(ds41_ctx_set_tap(ctx, tap_names_.data(), static_cast<int32_t>(tap_names_.size()), receive, &sink_),
              "setting the tap");
    ds41_seq *seq = nullptr;
    check(ds41_seq_create(&seq, model_.get()), "creating a sequence");
    seq_.reset(seq);
}

void Runner::run_step(size_t index) {
    const Step &step = case_.steps[index];
    sink_.chunks.clear();
    if (step.start_pos == 0) begin_sequence(step);
    const int64_t n_chunk = options_.chunk > 0 ? std::min(options_.chunk, step.n_tokens) : step.n_tokens;
    for (int64_t done = 0; done < step.n_tokens; done += n_chunk) {
        const int64_t n_tokens = std::min(n_chunk, step.n_tokens - done);
        if (step.start_pos > 0) {
            const ds41_span span{seq_.get(), step.start_pos, static_cast<int32_t>(n_tokens), 0};
            check(ds41_decode_prep(ctx_.get(), &span, 1), "step " + std::to_string(index));
        }
        for (int32_t layer : case_.layers) run_layer(index, layer, step.start_pos + done, n_tokens);
    }
}

void Runner::run_layer(size_t index, int32_t layer, int64_t start_pos, int64_t n_tokens) {
    const Step &step = case_.steps[index];
    const std::string name = "step" + std::to_string(index) + ".layer" + std::to_string(layer) + ".x";
    if (!fixture_.has(name)) return;
    const std::string doing = "step " + std::to_string(index) + ", layer " + std::to_string(layer);
    const Loaded input = fixture_.load(name);
    const int64_t dim = case_.config.dim;
    if (input.view.dtype != DS41_DTYPE_BF16 || input.view.n_dims != 2 || input.view.shape[0] != step.n_tokens ||
        input.view.shape[1] != dim)
        throw CannotRun(name + " must be BF16 [" + std::to_string(step.n_tokens) + ", " + std::to_string(dim) + "]");

    std::vector<Chunk> &chunks = sink_.chunks[layer];
    const Geometry geometry = geometry_of(index, layer);
    if (!chunks.empty()) forget_replaced(geometry, chunks.back());
    chunks.push_back({start_pos, n_tokens, {}});

    const int64_t shape[] = {n_tokens, dim};
    const uint64_t n_bytes = static_cast<uint64_t>(n_tokens * dim) * 2;
    const char *rows = static_cast<const char *>(input.view.data) + (start_pos - step.start_pos) * dim * 2;
    std::vector<uint16_t> host(static_cast<size_t>(n_tokens * dim), 0xFFFF); // NaN: rows left unwritten will show
    check(ds41_buffer_upload(x_.get(), 0, rows, n_bytes), doing);
    check(ds41_buffer_upload(out_.get(), 0, host.data(), n_bytes), doing);
    ds41_tensor x, out;
    ds41_tensor_init(&x, ds41_buffer_get_data(x_.get()), DS41_DTYPE_BF16, 2, shape);
    ds41_tensor_init(&out, ds41_buffer_get_data(out_.get()), DS41_DTYPE_BF16, 2, shape);
    check(step.start_pos > 0
              ? ds41_decode_body(ctx_.get(), layer, &x, &out)
              : ds41_layer_prefill(ctx_.get(), layer, seq_.get(), &x, static_cast<int32_t>(n_tokens), start_pos, &out),
          doing);
    check(ds41_ctx_synchronize(ctx_.get()), doing);
    if (sink_.error) std::rethrow_exception(sink_.error);
    check(ds41_buffer_download(out_.get(), 0, host.data(), n_bytes), doing);
    ds41_tensor_init(&out, host.data(), DS41_DTYPE_BF16, 2, shape);
    chunks.back().taps["out"] = to_array(out);
}

/// FNV-1a over the values as floats, which hold every dtype of a tap exactly.
void Runner::take_fingerprint(const Array &values) {
    for (const float value : values.values) {
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof(bits));
        for (int shift = 0; shift < 32; shift += 8)
            fingerprint_ = (fingerprint_ ^ (bits >> shift & 0xff)) * 0x100000001b3;
    }
}

Geometry Runner::geometry_of(size_t step, int32_t layer) const {
    ds41_layer_role role;
    ds41_layer_role_init(&role, sizeof(role));
    check(ds41_config_get_role(&case_.config, layer, &role), "layer " + std::to_string(layer));
    return {case_.steps[step].start_pos,
            case_.steps[step].n_tokens,
            case_.config.window_size,
            case_.config.index_topk,
            role.ratio,
            case_.config.candidate_block_size};
}

void Runner::compare_step(size_t index, std::vector<Record> &records) {
    for (const Expected &expected : expected_)
        if (expected.step == index)
            records.push_back({index, case_.steps[index].start_pos, expected.layer, mode_.prefix + expected.kind,
                               compare_tensor(expected)});
}

Comparison Runner::compare_tensor(const Expected &expected) {
    Array wanted = fixture_.array(expected.tensor);
    // A torch_cpu case holds the values of the reference itself, stored only where the selection is ours too; its
    // scores may still be those against the shared slot.
    if (expected.kind == "index_score" && case_.tie == "torch_cpu" &&
        shares_index_keys(case_, expected.step, expected.layer)) {
        Comparison result;
        result.left_out = static_cast<int64_t>(wanted.values.size());
        result.verdict = "ok";
        result.note = "not compared, the reference scores against another source's keys here";
        return result;
    }
    Assembled assembled;
    try {
        assembled =
            assemble(expected.kind, geometry_of(expected.step, expected.layer), sink_.chunks.at(expected.layer));
    } catch (const Undelivered &undelivered) {
        Comparison result;
        result.n = result.outside = static_cast<int64_t>(wanted.values.size());
        result.verdict = undelivered.verdict;
        result.note = undelivered.note;
        return result;
    }
    Array &got = assembled.values;
    take_fingerprint(got);
    int64_t n_undefined = 0;
    if (expected.kind == "out_tail") {
        got.keep_rows(std::max<int64_t>(got.n_rows() - wanted.n_rows(), 0), got.n_rows());
    } else if (expected.kind == "state_kv" || expected.kind == "state_gate") { // leftovers would also count as maximum
        n_undefined = static_cast<int64_t>(wanted.values.size());
        wanted.keep_rows(0, std::min(got.n_rows(), wanted.n_rows()));
        n_undefined -= static_cast<int64_t>(wanted.values.size());
    }
    Comparison result = compare(wanted, got, assembled.given, case_.tolerance.rule_of(mode_.prefix, expected.kind));
    result.left_out += n_undefined;
    return result;
}

/// Exceptions are counted over all steps and layers of a kind; beyond the allowance none of them is excused.
void Runner::settle_exceptions(std::vector<Record> &records) const {
    std::map<std::string, std::pair<int64_t, int64_t>> rows; // tensor -> exceptions, rows compared
    for (const Record &record : records) {
        rows[record.tensor].first += record.result.exception_rows;
        rows[record.tensor].second += record.result.n_rows;
    }
    for (Record &record : records) {
        const auto [n_exceptions, n_rows] = rows[record.tensor];
        if (record.result.exception_rows == 0) continue;
        const std::string kind = record.tensor.substr(mode_.prefix.size());
        const double allowed = case_.tolerance.rule_of(mode_.prefix, kind).exception_fraction;
        record.result.note = std::to_string(n_exceptions) + " of " + std::to_string(n_rows) + " rows of all " +
                             record.tensor + " leave the bound";
        if (static_cast<double>(n_exceptions) <= allowed * static_cast<double>(n_rows)) continue;
        record.result.outside += record.result.exception_count;
        record.result.verdict = "outside";
    }
}

} // namespace

ModeResult run_mode(const Fixture &fixture, const Case &replayed, size_t mode, const RunOptions &options) {
    return Runner(fixture, replayed, mode, options).run();
}

} // namespace replay
