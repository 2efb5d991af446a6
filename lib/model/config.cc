// The configuration's derived values and its construction: validation first, then roles.
#include "model/config.h"

#include "error.h"

#include <cmath>

namespace ds41 {

namespace {

const ds41_config &validated(const ds41_config &raw) {
    validate_sizes(raw);
    return raw;
}

} // namespace

Config::Config(const ds41_config &raw) : ds41_config(validated(raw)), roles_(derive_roles(raw)) {}

void Config::check_layer(int layer) const {
    DS41_CHECK(layer >= 0 && layer < n_layers_total(), DS41_STATUS_INVALID_LAYER,
               "layer is %d, need a value in [0, %d]", layer, n_layers_total() - 1);
}

float Config::attention_scale() const {
    return static_cast<float>(std::pow(double(head_dim), -0.5));
}

float Config::index_weight_scale() const {
    return static_cast<float>(std::pow(double(index_head_dim), -0.5) * std::pow(double(index_n_heads), -0.5));
}

} // namespace ds41
