// The table of layers in words: what each layer is and what it is stored as, neighbours that are alike in one row.
#pragma once

#include "contents.h"

#include <cstdint>
#include <string>
#include <vector>

namespace inspect {

struct LayerRow {
    int32_t first = 0, last = 0;
    int32_t ratio = 0;
    std::string role;
    std::string projections; ///< Types of the five that every layer has.
    std::string sources;     ///< Types of the matrices that only sources have; empty where there are none.
    uint64_t n_bytes = 0, n_model_bytes = 0; ///< Of each layer.
};

/// "rows and selection of 2", "makes rows, selects"; what README's "Layer kinds" explains.
std::string role_words(const ds41_layer_role &role, int32_t layer, int32_t candidate_source);

std::vector<LayerRow> fold_layers(const Contents &contents);

} // namespace inspect
