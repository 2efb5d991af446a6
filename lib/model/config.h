// The validated, immutable configuration and what its lists say about each layer. Later code relies on it and does not
// check again.
#pragma once

#include "ds41/ds41.h"

#include <cstdint>
#include <vector>

namespace ds41 {

struct LayerRole {
    int ratio = 0;         // tokens per compressed row; 0: window only
    int kv_source = -1;    // layer whose compressed rows are read, itself included
    int index_source = -1; // layer whose selection is taken, itself included
    bool is_kv_source = false;
    bool is_index_source = false;
    bool is_candidate_source = false;
    bool uses_candidates = false; // scores only inside the candidate source's blocks
    bool is_draft = false;

    bool writes_index_keys() const { return is_kv_source && is_index_source; }
    bool has_group_state() const { return is_kv_source && ratio > 1; }
};

// Throws INVALID_CONFIG for the first member that is wrong.
void validate_sizes(const ds41_config &config);

// Roles of all layers, draft layers included. Throws INVALID_CONFIG where the lists contradict each other.
// `config` has passed validate_sizes.
std::vector<LayerRole> derive_roles(const ds41_config &config);

class Config : public ds41_config {
public:
    explicit Config(const ds41_config &raw);

    int n_layers_total() const { return n_compress_ratios; }
    // Throws INVALID_LAYER.
    void check_layer(int layer) const;
    const LayerRole &role(int layer) const { return roles_[static_cast<std::size_t>(layer)]; }

    std::int64_t q_width() const { return std::int64_t{n_heads} * head_dim; }
    std::int64_t o_group_width() const { return q_width() / o_groups; }
    std::int64_t o_lora_width() const { return std::int64_t{o_groups} * o_lora_rank; }
    std::int64_t index_q_width() const { return std::int64_t{index_n_heads} * index_head_dim; }
    // Both are products of f64 powers, rounded once: the reference multiplies by such a scalar.
    float attention_scale() const;
    float index_weight_scale() const;

private:
    std::vector<LayerRole> roles_;
};

} // namespace ds41
