#include "checkpoint/loader.h"

#include "checkpoint/load_jobs.h"
#include "checkpoint/text.h"
#include "model/tensor.h"
#include "numeric/ue8m0.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>

namespace ds41 {

namespace {

constexpr std::uint32_t kKnownFlags = DS41_LOAD_MAP | DS41_LOAD_EXPAND_FP8 | DS41_LOAD_PLAIN_Q2_K;
constexpr int kMostThreads = 1024;
constexpr std::size_t kMostTold = 12; // problems that the sentence of an error names

std::shared_ptr<Model> create_model(const Checkpoint &checkpoint, const ds41_load_options &options) {
    ds41_config config = options.config ? *options.config : checkpoint.config();
    if (options.max_seq_len > 0) config.max_seq_len = options.max_seq_len;
    ds41_model_options defaults;
    ds41_model_options_init(&defaults, sizeof(defaults));
    return std::make_shared<Model>(config, options.model ? *options.model : defaults);
}

// Norms and sinks come to the model as floats.
std::vector<std::uint8_t> widened(const FoundTensor &vector, const std::vector<std::uint8_t> &bytes) {
    std::vector<std::uint8_t> floats(static_cast<std::size_t>(vector.shape[0]) * sizeof(float));
    std::vector<float> values;
    RowExpander(*vector.type, vector.shape[0], nullptr, DS41_DTYPE_F32)
        .expand(0, 1, bytes.data(), floats.data(), values);
    return floats;
}

void check_scales(const std::vector<std::uint8_t> &scales, const FoundTensor &tensor) {
    const auto invalid = std::find(scales.begin(), scales.end(), kUe8m0Nan);
    DS41_CHECK(invalid == scales.end(), DS41_STATUS_INVALID_FILE,
               "%s has scale byte 255 at index %lld, need bytes in [0, 254]", quoted(tensor.name).c_str(),
               static_cast<long long>(invalid - scales.begin()));
}

void check_sinks(const std::vector<std::uint8_t> &floats, const FoundTensor &tensor) {
    for (std::size_t head = 0; head < floats.size() / sizeof(float); ++head) {
        float value;
        std::memcpy(&value, floats.data() + head * sizeof value, sizeof value);
        DS41_CHECK(!is_nan(value), DS41_STATUS_INVALID_FILE, "%s is NaN for head %zu, need numbers",
                   quoted(tensor.name).c_str(), head);
    }
}

} // namespace

LoadPlan::LoadPlan(std::shared_ptr<const Checkpoint> checkpoint, const ds41_load_options &options)
    : checkpoint_(std::move(checkpoint)), options_(options) {
    DS41_CHECK((options.flags & ~kKnownFlags) == 0, DS41_STATUS_INVALID_ARGUMENT,
               "options.flags is 0x%x, need a subset of 0x%x (DS41_LOAD_*)", options.flags, kKnownFlags);
    DS41_CHECK(options.reserved == 0, DS41_STATUS_INVALID_ARGUMENT, "options.reserved is %d, need 0", options.reserved);
    DS41_CHECK(options.n_threads >= 0 && options.n_threads <= kMostThreads, DS41_STATUS_INVALID_ARGUMENT,
               "options.n_threads is %d, need a value in [0, %d]", options.n_threads, kMostThreads);
    DS41_CHECK(options.max_seq_len >= 0, DS41_STATUS_INVALID_ARGUMENT,
               "options.max_seq_len is %" PRId64 ", need 0 or more", options.max_seq_len);
    model_ = create_model(*checkpoint_, options);

    // What is expected of the tensors depends on neither the longest sequence nor anything else that options change.
    const bool own_config = options.config == nullptr && checkpoint_->inventory() != nullptr;
    if (!own_config)
        own_inventory_ =
            std::make_unique<const Inventory>(checkpoint_->format(), checkpoint_->found(), model_->config());
    const Inventory &inventory = own_config ? *checkpoint_->inventory() : *own_inventory_;
    choose_layers(inventory);
    refuse_problems(inventory);
    for (const PlacedTensor &tensor : inventory.tensors())
        if (layers_[static_cast<std::size_t>(tensor.layer)]) tensors_.push_back(tensor);
}

void LoadPlan::choose_layers(const Inventory &inventory) {
    const Config &config = model_->config();
    const int n_total = config.n_layers_total();
    DS41_CHECK(options_.first_layer >= 0 && options_.first_layer < n_total, DS41_STATUS_INVALID_LAYER,
               "options.first_layer is %d, need a value in [0, %d]", options_.first_layer, n_total - 1);
    DS41_CHECK(options_.n_layers >= 0 && options_.n_layers <= n_total - options_.first_layer, DS41_STATUS_INVALID_LAYER,
               "options.n_layers is %d from layer %d on, need a value in [0, %d]", options_.n_layers,
               options_.first_layer, n_total - options_.first_layer);
    const int end = options_.n_layers == 0 ? n_total : options_.first_layer + options_.n_layers;
    layers_.assign(static_cast<std::size_t>(n_total), false);
    for (int layer = options_.first_layer; layer < end; ++layer) {
        const bool left_out = config.role(layer).is_draft && !inventory.has_layer(layer);
        DS41_CHECK(!left_out || options_.n_layers == 0, DS41_STATUS_MISSING_TENSOR,
                   "the checkpoint holds nothing of draft layer %d, such as %s", layer,
                   tensor_name(checkpoint_->format(), weight_places()[0], layer, config.n_layers).c_str());
        layers_[static_cast<std::size_t>(layer)] = !left_out;
    }
    DS41_CHECK(std::find(layers_.begin(), layers_.end(), true) != layers_.end(), DS41_STATUS_MISSING_TENSOR,
               "the checkpoint holds nothing of layers %d to %d", options_.first_layer, end - 1);
}

void LoadPlan::refuse_problems(const Inventory &inventory) const {
    const bool all = options_.first_layer == 0 && options_.n_layers == 0;
    std::string text;
    std::size_t n = 0;
    const Problem *first = nullptr;
    for (const Problem &problem : inventory.problems()) {
        const bool concerns = all || (problem.layer < model_->config().n_layers_total() &&
                                      layers_[static_cast<std::size_t>(problem.layer)]);
        if (!concerns) continue;
        if (!first) first = &problem;
        if (++n <= kMostTold) text.append(n > 1 ? "; " : "").append(problem.text);
        model_->log(DS41_LOG_ERROR, problem.text.c_str());
    }
    if (n == 0) return;
    if (n > kMostTold)
        text.append("; and ")
            .append(std::to_string(n - kMostTold))
            .append(" more, which the log has, and "
                    "ds41_checkpoint_get_problem()");
    if (!checkpoint_->shard_of().empty())
        text.append("; the file is one shard of a checkpoint: its folder, ")
            .append(shortened_path(checkpoint_->shard_of()))
            .append(", is the whole");
    throw Error(first->status, "%zu problem%s: %s", n, n > 1 ? "s" : "", text.c_str());
}

Conversion LoadPlan::conversion_of(const PlacedTensor &tensor) const {
    return convert_to(*tensor.weight->type, tensor.place->kind(model_->config().role(tensor.layer)), options_.flags);
}

bool LoadPlan::stays_mapped(const PlacedTensor &tensor, const Conversion &conversion) const {
    if (!(options_.flags & DS41_LOAD_MAP) || !model_->memory().is_host() || conversion.expands) return false;
    const auto address = reinterpret_cast<std::uintptr_t>(
        checkpoint_->files()[static_cast<std::size_t>(tensor.weight->range.file)].mapping.bytes().data());
    return (address + tensor.weight->range.offset) % std::max<std::size_t>(element_bytes(conversion.dtype), 1) == 0;
}

std::uint64_t LoadPlan::copied_bytes() const {
    std::uint64_t sum = 0;
    for (const PlacedTensor &tensor : tensors_) {
        const Conversion conversion = conversion_of(tensor);
        const std::uint64_t n_bytes = model_bytes(tensor, conversion);
        // Scales are copied in any case: they are read when the tensor is checked.
        const bool mapped = tensor.place->matrix && stays_mapped(tensor, conversion);
        sum += mapped ? (conversion.dtype == DS41_DTYPE_FP8_E4M3 ? tensor.scale->range.n_bytes : 0) : n_bytes;
    }
    return sum;
}

// One layer's tensors as the model takes them over, and the memory behind them.
struct LoadPlan::Layer {
    ds41_layer_weights weights;
    std::vector<std::vector<std::uint8_t>> small; // vectors and scales
    std::vector<Block> blocks;
    bool is_lent = false; // something is left in the mapping
};

void LoadPlan::load() {
    std::uint64_t n_total = 0, n_mapped = 0;
    for (const PlacedTensor &tensor : tensors_)
        n_total += tensor.weight->range.n_bytes + (tensor.scale ? tensor.scale->range.n_bytes : 0);

    const Memory &memory = model_->memory();
    LoadJobs jobs(*checkpoint_, memory, options_, n_total);
    std::vector<std::unique_ptr<MatrixLoad>> matrices;
    if (!tensors_.empty()) jobs.advance(0, tensors_[0].weight->name);

    for (std::size_t i = 0; i < tensors_.size();) {
        const int index = tensors_[i].layer;
        Layer layer;
        ds41_layer_weights_init(&layer.weights, sizeof(layer.weights));
        for (; i < tensors_.size() && tensors_[i].layer == index; ++i)
            n_mapped += add(tensors_[i], layer, jobs, matrices);
        LayerWeights taken = take_over(index, layer.weights);
        for (Block &block : layer.blocks) taken.adopt(std::move(block));
        if (layer.is_lent) taken.lender = checkpoint_;
        model_->adopt_layer(index, std::move(taken));
    }
    jobs.run(matrices);
    log_expansions(matrices);

    char message[160];
    std::snprintf(message, sizeof message, "%zu layers loaded: %" PRIu64 " bytes read, %" PRIu64 " left in the files",
                  static_cast<std::size_t>(std::count(layers_.begin(), layers_.end(), true)), n_total - n_mapped,
                  n_mapped);
    model_->log(DS41_LOG_INFO, message);
}

// While the matrices are still empty: nothing in them is looked at, but in vectors.
LayerWeights LoadPlan::take_over(int layer, const ds41_layer_weights &weights) const {
    try {
        return take_weights(model_->config(), layer, weights, WeightSource::kInPlace, model_->memory());
    } catch (const Error &error) {
        throw Error(DS41_STATUS_INVALID_FILE, "%s", error.what()); // it was no argument of the caller's
    }
}

std::uint64_t LoadPlan::add(const PlacedTensor &placed, Layer &layer, LoadJobs &jobs,
                            std::vector<std::unique_ptr<MatrixLoad>> &matrices) {
    const FoundTensor &weight = *placed.weight;
    const Conversion conversion = conversion_of(placed);
    ds41_tensor &tensor = layer.weights.*placed.place->tensor;
    if (placed.place->vector) {
        layer.small.push_back(widened(weight, jobs.read_whole(weight)));
        if (placed.place->tensor == &ds41_layer_weights::attn_sink) check_sinks(layer.small.back(), weight);
        ds41_tensor_init(&tensor, layer.small.back().data(), DS41_DTYPE_F32, 1, weight.shape.data());
        return 0;
    }
    ds41_tensor_init(&tensor, nullptr, conversion.dtype, 2, weight.shape.data());
    if (conversion.dtype == DS41_DTYPE_Q2_K && (options_.flags & DS41_LOAD_PLAIN_Q2_K))
        tensor.flags = DS41_TENSOR_PLAIN_ACTIVATIONS;
    std::vector<std::uint8_t> scales;
    if (placed.scale) {
        scales = jobs.read_whole(*placed.scale);
        check_scales(scales, *placed.scale);
    }
    if (conversion.dtype == DS41_DTYPE_FP8_E4M3) {
        std::copy(placed.scale->shape.begin(), placed.scale->shape.end(), tensor.scale_shape);
        layer.small.push_back(std::move(scales));
        tensor.scales = layer.small.back().data();
    }

    if (stays_mapped(placed, conversion)) {
        const Mapping &mapping = checkpoint_->files()[static_cast<std::size_t>(weight.range.file)].mapping;
        tensor.data = const_cast<std::byte *>(mapping.bytes().data()) + weight.range.offset;
        layer.is_lent = true;
        mapping.read_ahead(weight.range.offset, weight.range.n_bytes);
        jobs.advance(weight.range.n_bytes, weight.name);
        return weight.range.n_bytes;
    }
    Block block(model_->memory(),
                static_cast<std::size_t>(weight.shape[0]) * weight_row_bytes(conversion.dtype, weight.shape[1]));
    tensor.data = block.data();
    matrices.push_back(std::make_unique<MatrixLoad>(&placed, conversion, block.as<std::uint8_t>()));
    if (conversion.expands && placed.scale) matrices.back()->scales = std::move(scales);
    layer.blocks.push_back(std::move(block));
    return 0;
}

void LoadPlan::log_expansions(std::span<const std::unique_ptr<MatrixLoad>> matrices) const {
    struct Sum {
        std::uint64_t n_tensors = 0, n_values = 0, n_rounded = 0;
    };
    std::map<std::pair<std::string, ds41_dtype>, Sum> sums;
    for (const auto &matrix : matrices) {
        if (!matrix->conversion.expands) continue;
        const FoundTensor &weight = *matrix->tensor->weight;
        Sum &sum = sums[{weight.type_name, matrix->conversion.dtype}];
        ++sum.n_tensors;
        sum.n_values += static_cast<std::uint64_t>(weight.shape[0]) * static_cast<std::uint64_t>(weight.shape[1]);
        sum.n_rounded += matrix->n_rounded;
        if (matrix->n_rounded == 0) continue;
        char message[240];
        std::snprintf(message, sizeof message, "%s: %s expanded to %s, %" PRIu64 " values rounded",
                      quoted(weight.name).c_str(), weight.type_name, ds41_dtype_name(matrix->conversion.dtype),
                      matrix->n_rounded.load());
        model_->log(DS41_LOG_DEBUG, message);
    }
    for (const auto &[types, sum] : sums) {
        char message[240];
        std::snprintf(message, sizeof message,
                      "%s expanded to %s in %" PRIu64 " tensors, %" PRIu64 " of %" PRIu64 " values rounded",
                      types.first.c_str(), ds41_dtype_name(types.second), sum.n_tensors, sum.n_rounded, sum.n_values);
        model_->log(sum.n_rounded ? DS41_LOG_WARNING : DS41_LOG_INFO, message);
    }
}

} // namespace ds41
