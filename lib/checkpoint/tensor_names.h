// What the tensors of these layers are called in checkpoints: `layers.L.attn.NAME` and `mtp.M.attn.NAME` in the
// release's safetensors, `blk.L.NAME` in GGUF.
#pragma once

#include "model/weight_places.h"

#include <string>
#include <string_view>

namespace ds41 {

enum class CheckpointFormat { kSafetensors, kGguf };

struct TensorName {
    int number = 0;                     // of the layer, or of the draft layer
    bool is_draft = false;              // counts from n_layers on
    const WeightPlace *place = nullptr; // null for a name of attention that is none of ours
    bool is_scale = false;              // the fp8 scales of the place

    int layer(int n_layers) const { return is_draft ? n_layers + number : number; }
};

// False for what does not belong to attention layers.
bool parse_tensor_name(CheckpointFormat format, std::string_view text, TensorName &name);

// The name that a tensor should have: for sentences about one that is not there.
std::string tensor_name(CheckpointFormat format, const WeightPlace &place, int layer, int n_layers);
std::string scale_name(const WeightPlace &place, int layer, int n_layers); // safetensors only

} // namespace ds41
