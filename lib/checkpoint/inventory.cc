#include "checkpoint/inventory.h"

#include "checkpoint/text.h"
#include "numeric/fp8_linear.h"

#include <algorithm>
#include <map>

namespace ds41 {

const GgufType kFp8Type = {UINT32_MAX, "F8_E4M3", 1, 1, nullptr};
const GgufType kUe8m0Type = {UINT32_MAX, "F8_E8M0", 1, 1, nullptr};

namespace {

constexpr std::uint32_t kKeptFloats[] = {kGgufF32, kGgufBf16};

bool is_kept_float(const GgufType &type) {
    return std::find(std::begin(kKeptFloats), std::end(kKeptFloats), type.id) != std::end(kKeptFloats);
}

bool fits(const GgufType *type, PlaceKind kind) {
    if (!type || type == &kUe8m0Type) return false;
    if (kind == PlaceKind::kVector) return is_kept_float(*type) || type->id == kGgufF16;
    return type == &kFp8Type || type->expand != nullptr;
}

const char *types_for(CheckpointFormat format, PlaceKind kind) {
    if (kind == PlaceKind::kVector) return "F32, BF16 or F16";
    return format == CheckpointFormat::kSafetensors
               ? "F32, BF16, F16 or F8_E4M3"
               : "F32, BF16, F16, Q8_0, Q6_K, Q5_K, Q5_1, Q5_0, Q4_K, Q4_1, Q4_0, Q3_K, Q2_K or MXFP4";
}

std::string shape_of(const PlaceShape &shape) {
    return shape_text({shape.sizes.data(), static_cast<std::size_t>(shape.n_dims)});
}

bool same_shape(const std::vector<std::int64_t> &shape, const PlaceShape &wanted) {
    return shape.size() == static_cast<std::size_t>(wanted.n_dims) &&
           std::equal(shape.begin(), shape.end(), wanted.sizes.begin());
}

} // namespace

// Sorts what was found into places, then goes through the places layer by layer.
class Inventory::Builder {
public:
    Builder(Inventory &out, CheckpointFormat format, const Config &config)
        : out_(out), format_(format), config_(config), n_places_(weight_places().size()),
          slots_(static_cast<std::size_t>(config.n_layers_total()) * n_places_) {
        out_.has_layer_.assign(static_cast<std::size_t>(config.n_layers_total()), false);
    }

    void sort_in(const FoundTensor &found) {
        const int layer = found.where.layer(config_.n_layers);
        // A GGUF counts draft layers on; the release has its own name for them.
        const bool beyond = layer >= config_.n_layers_total() || (format_ == CheckpointFormat::kSafetensors &&
                                                                  !found.where.is_draft && layer >= config_.n_layers);
        if (beyond) {
            report(layer, DS41_STATUS_INVALID_FILE,
                   quoted(found.name) + " is unexpected: the configuration has " + std::to_string(config_.n_layers) +
                       " layers and " + std::to_string(config_.n_layers_total() - config_.n_layers) + " draft layers");
            return;
        }
        out_.has_layer_[static_cast<std::size_t>(layer)] = true;
        if (!found.where.place) {
            report(layer, DS41_STATUS_INVALID_FILE,
                   quoted(found.name) + " is unexpected: no tensor of an attention layer has that name");
            return;
        }
        const FoundTensor *&slot = found.where.is_scale ? slot_of(layer, found).scale : slot_of(layer, found).weight;
        if (slot)
            report(layer, DS41_STATUS_INVALID_FILE,
                   quoted(found.name) + " is unexpected: " + quoted(slot->name) + " holds the same tensor");
        else
            slot = &found;
    }

    void check_layer(int layer) {
        const bool is_there = out_.has_layer_[static_cast<std::size_t>(layer)];
        if (!is_there) {
            if (!config_.role(layer).is_draft)
                report(layer, DS41_STATUS_MISSING_TENSOR,
                       "layer " + std::to_string(layer) + " is missing: none of its tensors is there, such as " +
                           tensor_name(format_, weight_places()[0], layer, config_.n_layers));
            return;
        }
        // One sentence a file, however many tensors were to come from it.
        std::map<std::string, std::pair<int, ds41_status>> faults;
        for (std::size_t i = 0; i < n_places_; ++i)
            check_place(layer, weight_places()[i], slots_[slot_index(layer, i)], faults);
        for (const auto &[fault, count] : faults)
            report(layer, count.second,
                   "layer " + std::to_string(layer) + " lacks " + std::to_string(count.first) +
                       (count.first == 1 ? " tensor: " : " tensors: ") + fault);
    }

private:
    struct Slot {
        const FoundTensor *weight = nullptr, *scale = nullptr;
    };

    std::size_t slot_index(int layer, std::size_t place) const {
        return static_cast<std::size_t>(layer) * n_places_ + place;
    }
    Slot &slot_of(int layer, const FoundTensor &found) {
        return slots_[slot_index(layer, static_cast<std::size_t>(found.where.place - weight_places().data()))];
    }

    void report(int layer, ds41_status status, std::string text) {
        out_.problems_.push_back({layer, status, std::move(text)});
    }

    template <typename Faults> void check_place(int layer, const WeightPlace &place, const Slot &slot, Faults &faults) {
        const LayerRole &role = config_.role(layer);
        const FoundTensor *weight = slot.weight, *scale = slot.scale;
        if (!place.is_needed(role)) {
            for (const FoundTensor *found : {weight, scale})
                if (found)
                    report(layer, DS41_STATUS_INVALID_FILE,
                           quoted(found->name) + " is unexpected: layer " + std::to_string(layer) + " " +
                               place.why_absent);
            return;
        }
        const PlaceKind kind = place.kind(role);
        const PlaceShape shape = place.shape(config_);
        if (!weight) {
            report(layer, DS41_STATUS_MISSING_TENSOR,
                   tensor_name(format_, place, layer, config_.n_layers) + " is missing, need " + shape_of(shape));
            return;
        }
        for (const FoundTensor *found : {weight, scale}) {
            if (!found || !found->fault) continue;
            auto &fault = faults[*found->fault];
            ++fault.first;
            fault.second = found->fault_status;
        }
        if (weight->fault || (scale && scale->fault)) return;

        const std::string is = quoted(weight->name) + " is " + weight->type_name + " " + shape_text(weight->shape);
        bool good = true;
        if (!fits(weight->type, kind)) {
            report(layer, DS41_STATUS_INVALID_DTYPE, is + ", need " + types_for(format_, kind) + " " + shape_of(shape));
            good = false;
        } else if (!same_shape(weight->shape, shape)) {
            report(layer, DS41_STATUS_INVALID_SHAPE, is + ", need " + shape_of(shape));
            good = false;
        } else if (weight->type == &kFp8Type && shape.sizes[1] % kFp8WeightBlock != 0) {
            report(layer, DS41_STATUS_INVALID_SHAPE, is + ", F8_E4M3 needs a multiple of 32 columns");
            good = false;
        }
        if (good && check_scale(layer, place, *weight, scale, shape))
            out_.tensors_.push_back({layer, &place, weight, scale});
    }

    bool check_scale(int layer, const WeightPlace &place, const FoundTensor &weight, const FoundTensor *scale,
                     const PlaceShape &shape) {
        if (weight.type != &kFp8Type) {
            if (scale)
                report(layer, DS41_STATUS_INVALID_FILE,
                       quoted(scale->name) + " is unexpected: " + quoted(weight.name) + " is " + weight.type_name +
                           ", not F8_E4M3");
            return !scale;
        }
        const PlaceShape wanted = {
            {(shape.sizes[0] + kFp8WeightBlock - 1) / kFp8WeightBlock, shape.sizes[1] / kFp8WeightBlock}, 2};
        const std::string need =
            "need F8_E8M0 " + shape_of(wanted) + " (one scale per 32 x 32 block of " + quoted(weight.name) + ")";
        if (!scale) {
            report(layer, DS41_STATUS_MISSING_TENSOR,
                   scale_name(place, layer, config_.n_layers) + " is missing, " + need);
        } else if (scale->type != &kUe8m0Type || !same_shape(scale->shape, wanted)) {
            report(layer, scale->type != &kUe8m0Type ? DS41_STATUS_INVALID_DTYPE : DS41_STATUS_INVALID_SHAPE,
                   quoted(scale->name) + " is " + scale->type_name + " " + shape_text(scale->shape) + ", " + need);
        } else {
            return true;
        }
        return false;
    }

    Inventory &out_;
    CheckpointFormat format_;
    const Config &config_;
    std::size_t n_places_;
    std::vector<Slot> slots_; // [layer][place]
};

Inventory::Inventory(CheckpointFormat format, const std::vector<FoundTensor> &found, const Config &config) {
    Builder builder(*this, format, config);
    for (const FoundTensor &tensor : found) builder.sort_in(tensor);
    for (int layer = 0; layer < config.n_layers_total(); ++layer) builder.check_layer(layer);
    std::stable_sort(problems_.begin(), problems_.end(),
                     [](const Problem &a, const Problem &b) { return a.layer < b.layer; });
}

Conversion convert_to(const GgufType &type, PlaceKind kind, std::uint32_t load_flags) {
    if (is_kept_float(type)) return {type.id == kGgufF32 ? DS41_DTYPE_F32 : DS41_DTYPE_BF16, false};
    // Exact values matter most where the arithmetic is f32; these tensors are small.
    const bool wants_f32 = kind == PlaceKind::kVector || kind == PlaceKind::kFloatMatrix;
    if (&type == &kFp8Type) {
        if (kind == PlaceKind::kFloatMatrix || (load_flags & DS41_LOAD_EXPAND_FP8)) return {DS41_DTYPE_BF16, true};
        return {DS41_DTYPE_FP8_E4M3, false};
    }
    if (type.id == kGgufQ2K && kind != PlaceKind::kFloatMatrix) return {DS41_DTYPE_Q2_K, false};
    return {wants_f32 ? DS41_DTYPE_F32 : DS41_DTYPE_BF16, true};
}

std::uint64_t model_bytes(const PlacedTensor &tensor, const Conversion &conversion) {
    const std::vector<std::int64_t> &shape = tensor.weight->shape;
    if (tensor.place->vector) return static_cast<std::uint64_t>(shape[0]) * sizeof(float); // widened when taken over
    const std::uint64_t scales = conversion.dtype == DS41_DTYPE_FP8_E4M3 ? tensor.scale->range.n_bytes : 0;
    return static_cast<std::uint64_t>(shape[0]) * weight_row_bytes(conversion.dtype, shape[1]) + scales;
}

} // namespace ds41
