// The places of ds41_layer_weights: which tensors a layer's role needs, of what shape, and what each accepts. One table
// for whoever hands weights over, whether a caller with pointers or a checkpoint.
#pragma once

#include "model/config.h"
#include "model/weights.h"

#include <array>
#include <cstdint>
#include <span>

namespace ds41 {

// What a place accepts.
enum class PlaceKind {
    kVector,          // F32 or BF16, kept as F32
    kProjection,      // any weight format; quantised activations where the format has them
    kPlainProjection, // any weight format; fp8 takes activations as they are, as in the reference
    kFloatMatrix,     // F32 or BF16: the compressor of ratio > 1 runs in f32
};

struct PlaceShape {
    std::array<std::int64_t, 2> sizes; // outermost first
    int n_dims;
};

struct WeightPlace {
    const char *name; // the member of ds41_layer_weights
    ds41_tensor ds41_layer_weights::*tensor;
    Matrix LayerWeights::*matrix;       // null for vectors
    const float *LayerWeights::*vector; // null for matrices
    bool (*is_needed)(const LayerRole &role);
    const char *why_absent; // of a layer that has none, after "layer N "
    PlaceShape (*shape)(const Config &config);
    PlaceKind (*kind)(const LayerRole &role);
};

// In the order of ds41_layer_weights.
std::span<const WeightPlace> weight_places();

} // namespace ds41
