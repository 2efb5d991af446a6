// What a checkpoint holds for the layers of a configuration, and everything that is wrong with it: tensors that are
// missing, unexpected, of a wrong type or shape, all found in one pass over what the files' headers list.
#pragma once

#include "checkpoint/gguf_types.h"
#include "checkpoint/tensor_names.h"
#include "ds41/ds41.h"
#include "model/config.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ds41 {

// A range of bytes in one of a checkpoint's files.
struct FileRange {
    int file = -1;
    std::uint64_t offset = 0;
    std::uint64_t n_bytes = 0;
};

// A tensor of attention as a file lists it.
struct FoundTensor {
    TensorName where;
    std::string name;
    const GgufType *type = nullptr; // null for one that cannot be a weight
    const char *type_name = "";     // as the file calls it; static
    std::vector<std::int64_t> shape;
    FileRange range;
    // Why the file cannot give it, shared by all of a file; null when it can.
    std::shared_ptr<const std::string> fault;
    ds41_status fault_status = DS41_STATUS_OK;
};

// F8_E4M3 and F8_E8M0 as a type of files; they are expanded together with each other, not block by block.
extern const GgufType kFp8Type, kUe8m0Type;

// A tensor in its place, checked.
struct PlacedTensor {
    int layer;
    const WeightPlace *place;
    const FoundTensor *weight;
    const FoundTensor *scale; // F8_E4M3 only, else null
};

struct Problem {
    int layer;
    ds41_status status;
    std::string text;
};

class Inventory {
public:
    // `found` is borrowed until destruction.
    Inventory(CheckpointFormat format, const std::vector<FoundTensor> &found, const Config &config);

    // By layer, and within one in the order of ds41_layer_weights. Those with problems are not among them.
    const std::vector<PlacedTensor> &tensors() const { return tensors_; }
    const std::vector<Problem> &problems() const { return problems_; }

    // Whether the files list anything for the layer.
    bool has_layer(int layer) const { return has_layer_[static_cast<std::size_t>(layer)]; }

private:
    class Builder;

    std::vector<PlacedTensor> tensors_;
    std::vector<Problem> problems_;
    std::vector<bool> has_layer_;
};

// How a tensor of `type` is kept in a place.
struct Conversion {
    ds41_dtype dtype;
    bool expands; // decoded value by value; otherwise its bytes stay
};
Conversion convert_to(const GgufType &type, PlaceKind kind, std::uint32_t load_flags);

// Bytes of a placed tensor in a model, scales included.
std::uint64_t model_bytes(const PlacedTensor &tensor, const Conversion &conversion);

} // namespace ds41
