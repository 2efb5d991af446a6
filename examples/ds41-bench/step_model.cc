// Numbers of weights and rows are noise whose exponents keep every product finite; nothing depends on them but which
// groups are selected.
#include "step_model.h"

#include "noise.h"

#include "model/weight_places.h"
#include "numeric/q2_k.h"
#include "numeric/rows.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>

namespace bench {

using namespace ds41;

namespace {

// Every block of a matrix starts at a multiple of this: Q2_K blocks of all layers then stand where the filling has
// them.
constexpr size_t kPlaceAlignment = 64 * kQ2KBytes;

/// A stretch of weights that can be repeated.
std::vector<std::byte> weight_noise(ds41_dtype dtype) {
    std::vector<std::byte> noise(200 * kPlaceAlignment); // 1 MB
    Noise source(1);
    switch (dtype) {
    case DS41_DTYPE_BF16:
        source.fill<uint16_t>(noise.data(), noise.size() / 2, 0x807f, 0x3c00); // 2^-7
        break;
    case DS41_DTYPE_FP8_E4M3:
        source.fill<uint8_t>(noise.data(), noise.size(), kE4m3Keep, kE4m3Set);
        break;
    case DS41_DTYPE_Q2_K:
        source.fill<uint8_t>(noise.data(), noise.size(), 0xff, 0);
        for (size_t block = 0; block < noise.size(); block += kQ2KBytes) {
            constexpr uint16_t kScales[] = {0x1400, 0x1600}; // 2^-10 and 1.5 times that: values around 0
            std::memcpy(noise.data() + block + 80, kScales, sizeof(kScales));
        }
        break;
    default:
        source.fill<uint32_t>(noise.data(), noise.size() / 4, kF32Keep, kF32Set);
    }
    return noise;
}

void fill_weights(const Memory &memory, std::byte *data, size_t n_bytes, ds41_dtype dtype) {
    const std::vector<std::byte> noise = weight_noise(dtype);
    for (size_t at = 0; at < n_bytes; at += noise.size())
        memory.upload(data + at, noise.data(), std::min(noise.size(), n_bytes - at));
}

int32_t scaled(int32_t size, int32_t scale, int32_t multiple) {
    return std::max(size / scale / multiple * multiple, multiple);
}

} // namespace

ds41_dtype dtype_of_format(const std::string &format) {
    if (format == "bf16") return DS41_DTYPE_BF16;
    if (format == "fp8") return DS41_DTYPE_FP8_E4M3;
    if (format == "q2_k") return DS41_DTYPE_Q2_K;
    throw std::logic_error("no format " + format); // parse_options() refuses it
}

ds41_config step_config(int32_t scale) {
    ds41_config config;
    ds41_config_flash(&config, sizeof(config));
    if (scale == 1) return config;
    config.dim = scaled(config.dim, scale, kQ2KBlock);
    config.q_lora_rank = scaled(config.q_lora_rank, scale, kQ2KBlock);
    config.head_dim = scaled(config.head_dim, scale, kQ2KBlock);
    config.n_heads = scaled(config.n_heads, scale, config.o_groups);
    config.o_lora_rank = scaled(config.o_lora_rank, scale, kQ2KBlock / config.o_groups);
    config.index_n_heads = scaled(config.index_n_heads, scale, 1);
    config.window_size = scaled(config.window_size, scale, 1);
    config.index_topk = scaled(config.index_topk, scale, 1);
    config.candidate_topk_blocks = scaled(config.candidate_topk_blocks, scale, 1);
    return config;
}

std::string kind_of(const LayerRole &role) {
    if (role.ratio == 0) return "window only";
    const std::string ratio = "ratio " + std::to_string(role.ratio) + ", ";
    if (role.is_kv_source) return ratio + (role.is_candidate_source ? "source of candidates" : "source");
    if (role.is_index_source) return ratio + (role.uses_candidates ? "index source in candidates" : "index source");
    return ratio + "consumer";
}

std::vector<int> layers_of_each_kind(const Config &config) {
    std::vector<int> layers;
    std::set<std::string> kinds;
    for (int layer = 0; layer < config.n_layers_total(); ++layer)
        if (kinds.insert(kind_of(config.role(layer))).second) layers.push_back(layer);
    return layers;
}

std::vector<int> layers_before(const Config &config, int layer) {
    std::set<int> layers;
    const LayerRole &role = config.role(layer);
    if (role.ratio == 0) return {};
    for (const int source :
         {role.kv_source, role.index_source, role.uses_candidates ? config.candidate_source_layer : -1}) {
        if (source < 0 || source == layer) continue;
        layers.insert(source);
        for (const int earlier : layers_before(config, source)) layers.insert(earlier);
    }
    return {layers.begin(), layers.end()};
}

// ---- Weights.

StepWeights::StepWeights(const Config &config, const Memory &memory, ds41_dtype format)
    : config_(config), memory_(memory), format_(format) {
    size_t n_bytes = 0, n_float_bytes = 0, n_scales = 0, n_values = 0;
    for (int layer = 0; layer < config.n_layers_total(); ++layer)
        for (size_t i = 0; const Place &place : places_of(layer)) {
            size_t &sum = place.dtype == format ? n_bytes : n_float_bytes;
            sum = std::max(sum, place.offset + place.n_bytes);
            n_scales = std::max(n_scales, place.n_scales);
            if (weight_places()[i].vector) n_values = std::max(n_values, place.n_bytes / sizeof(float));
            ++i;
        }
    if (memory.is_host()) {
        pages_.emplace(n_bytes);
        data_ = pages_->take(n_bytes).data();
    } else {
        block_ = Block(memory, n_bytes);
        data_ = block_.as<std::byte>();
    }
    fill_weights(memory, const_cast<std::byte *>(data_), n_bytes, format);
    float_block_ = Block(memory, n_float_bytes);
    fill_weights(memory, float_block_.as<std::byte>(), n_float_bytes, DS41_DTYPE_F32);
    scales_.assign(n_scales, 120); // 2^-7
    vector_.assign(n_values, 1.0f);
}

ds41_dtype StepWeights::dtype_of(int layer, size_t place) const {
    const PlaceKind kind = weight_places()[place].kind(config_.role(layer));
    return kind == PlaceKind::kVector || kind == PlaceKind::kFloatMatrix ? DS41_DTYPE_F32 : format_;
}

std::vector<StepWeights::Place> StepWeights::places_of(int layer) const {
    std::vector<Place> places;
    size_t end = 0, float_end = 0;
    for (size_t i = 0; i < weight_places().size(); ++i) {
        const WeightPlace &place = weight_places()[i];
        Place at = {0, 0, 0, dtype_of(layer, i)};
        if (place.is_needed(config_.role(layer))) {
            const PlaceShape shape = place.shape(config_);
            const int64_t rows = place.vector ? 1 : shape.sizes[0],
                          cols = place.vector ? shape.sizes[0] : shape.sizes[1];
            at.n_bytes = static_cast<size_t>(rows) * weight_row_bytes(at.dtype, cols);
            if (at.dtype == DS41_DTYPE_FP8_E4M3)
                at.n_scales =
                    static_cast<size_t>((rows + kFp8WeightBlock - 1) / kFp8WeightBlock * (cols / kFp8WeightBlock));
            if (place.matrix) {
                size_t &behind = at.dtype == format_ ? end : float_end;
                at.offset = behind;
                behind += (at.n_bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
            }
        }
        places.push_back(at);
    }
    return places;
}

LayerWeights StepWeights::of(int layer) const {
    ds41_layer_weights weights;
    ds41_layer_weights_init(&weights, sizeof(weights));
    const std::vector<Place> places = places_of(layer);
    for (size_t i = 0; i < places.size(); ++i) {
        const WeightPlace &place = weight_places()[i];
        const Place &at = places[i];
        if (at.n_bytes == 0) continue;
        const PlaceShape shape = place.shape(config_);
        ds41_tensor &tensor = weights.*place.tensor;
        tensor.dtype = at.dtype;
        tensor.n_dims = shape.n_dims;
        std::copy_n(shape.sizes.begin(), shape.n_dims, tensor.shape);
        if (place.vector)
            tensor.data = const_cast<float *>(vector_.data());
        else
            tensor.data =
                const_cast<std::byte *>((at.dtype == format_ ? data_ : float_block_.as<std::byte>()) + at.offset);
        if (at.n_scales == 0) continue;
        tensor.scales = scales_.data();
        tensor.scale_shape[0] = (shape.sizes[0] + kFp8WeightBlock - 1) / kFp8WeightBlock;
        tensor.scale_shape[1] = shape.sizes[1] / kFp8WeightBlock;
    }
    return take_weights(config_, layer, weights, WeightSource::kInPlace, memory_);
}

uint64_t StepWeights::bytes_of(int layer) const {
    uint64_t sum = 0;
    for (const Place &place : places_of(layer)) sum += place.n_bytes + place.n_scales;
    return sum;
}

std::span<const std::byte> StepWeights::matrices_of(int layer) const {
    size_t end = 0;
    for (size_t i = 0; const Place &place : places_of(layer))
        if (weight_places()[i++].matrix && place.dtype == format_) end = std::max(end, place.offset + place.n_bytes);
    return {data_, end};
}

// ---- The rig.

StepRig::StepRig(const ds41_config &config, const std::string &backend, int threads) : threads_(threads) {
    ds41_model_options options;
    ds41_model_options_init(&options, sizeof(options));
    if (!backend.empty()) options.backend = backend.c_str();
    model_ = std::make_shared<Model>(config, options);
}

StepRig::~StepRig() {
    try {
        if (ctx_) ctx_->synchronize(); // before the graph goes
    } catch (const std::exception &) { // has been told by what came before
    }
}

void StepRig::set_up(const std::vector<StepLayer> &before, const std::vector<StepLayer> &measured, int64_t context,
                     int32_t n_rows) {
    context_ = context;
    n_rows_ = n_rows;
    for (const StepLayer &each : before) {
        model_->adopt_layer(each.layer, each.weights->of(each.layer));
        before_.push_back(each.layer);
    }
    for (const StepLayer &each : measured) {
        model_->adopt_layer(each.layer, each.weights->of(each.layer));
        measured_.push_back(each.layer);
    }
    std::vector<int> layers = before_;
    layers.insert(layers.end(), measured_.begin(), measured_.end());
    model_->seal();

    ds41_ctx_options options;
    ds41_ctx_options_init(&options, sizeof(options));
    options.n_threads = threads_;
    ctx_ = std::make_unique<Context>(model_, options);
    for (int32_t row = 0; row < n_rows; ++row) {
        seqs_.push_back(std::make_shared<Sequence>(model_));
        for (const int each : layers) {
            seqs_.back()->reserve(each, context);
            fill(*seqs_.back(), each, static_cast<uint64_t>(row * 1000 + each));
        }
    }
    const auto n_values = static_cast<size_t>(n_rows) * static_cast<size_t>(model_->config().dim);
    std::vector<uint16_t> values(n_values);
    Noise(7).fill<uint16_t>(values.data(), n_values, kBf16Keep, kBf16Set);
    x_ = Block(model_->memory(), n_values * sizeof(uint16_t));
    out_ = Block(model_->memory(), n_values * sizeof(uint16_t));
    model_->memory().upload(x_.data(), values.data(), x_.n_bytes());
}

void StepRig::fill(Sequence &seq, int layer, uint64_t seed) const {
    const Config &config = model_->config();
    const LayerRole &role = config.role(layer);
    Noise noise(seed + 1);
    std::vector<uint8_t> page;
    const auto fill_rows = [&](const RowsView &view, int64_t n_rows, size_t n_codes, uint8_t keep, uint8_t set,
                               uint8_t scale) {
        constexpr int64_t kFresh = 64 * kPageRows; // a page of noise serves that many rows: noise is dear
        for (int64_t first = 0; first < n_rows; first += kPageRows) {
            const auto n = static_cast<size_t>(std::min<int64_t>(kPageRows, n_rows - first));
            if (first % kFresh == 0) {
                page.resize(kPageRows * view.row_bytes);
                bench::fill_rows(noise, page.data(), kPageRows, view.row_bytes, n_codes, keep, set, scale);
            }
            model_->memory().upload(view.row(first), page.data(), n * view.row_bytes);
        }
    };
    Sequence::LayerState &state = seq.layer(layer);
    const auto head_dim = static_cast<size_t>(config.head_dim);
    fill_rows(state.window.view(), std::min<int64_t>(context_, config.window_size), head_dim, kE4m3Keep, kE4m3Set,
              kUe8m0One);
    if (!role.is_kv_source) return;
    const int64_t n_groups = groups_among(context_, role.ratio);
    fill_rows(state.compressed.view(), n_groups, head_dim / 2, 0xff, 0, kE4m3One);
    if (role.writes_index_keys())
        fill_rows(state.index_keys.view(), n_groups, static_cast<size_t>(config.index_head_dim) / 2, 0xff, 0,
                  kUe8m0One);
    if (!role.has_group_state()) return;
    std::vector<std::byte> values(state.group_state.n_bytes());
    noise.fill<uint32_t>(values.data(), values.size() / sizeof(uint32_t), kF32Keep, kF32Set);
    model_->memory().upload(state.group_state.data(), values.data(), values.size());
}

void StepRig::prep_at(int64_t pos) {
    std::vector<Span> spans;
    for (const auto &seq : seqs_) {
        for (const std::vector<int> *layers : {&before_, &measured_})
            for (const int layer : *layers) seq->layer(layer).position = pos;
        spans.push_back({seq, pos, 1});
    }
    ctx_->prep(std::move(spans));
}

void StepRig::prep() {
    prep_at(context_ - 1);
}

void StepRig::prep_previous() {
    prep_at(context_ - 2);
}

void StepRig::prep_next() {
    const int64_t n_last = std::min<int64_t>(context_, 32);
    prep_at(context_ - n_last + n_steps_++ % n_last);
}

void StepRig::body(int layer) {
    ds41_tensor x = {};
    x.data = x_.data();
    x.shape[0] = n_rows_;
    x.shape[1] = model_->config().dim;
    x.dtype = DS41_DTYPE_BF16;
    x.n_dims = 2;
    ds41_tensor out = x;
    out.data = out_.data();
    ctx_->body(layer, x, out);
}

void StepRig::run_before() {
    for (const int layer : before_) body(layer);
}

void StepRig::run() {
    for (const int layer : measured_) body(layer);
}

void StepRig::capture() {
    ctx_->begin_graph(false);
    run();
    graph_ = ctx_->end_graph();
}

void StepRig::launch() {
    ctx_->launch(*graph_);
}

} // namespace bench
