// The configuration's derived values and its construction: validation first, then roles.
#include "model/config.h"

#include <cmath>

namespace ds41 {

namespace {

const ds41_config &validated(const ds41_config &raw) {
    validate_sizes(raw);
    return raw;
}

} // namespace

Config::Config(const ds41_config &raw) : ds41_config(validated(raw)), roles_(derive_roles(raw)) {}

float Config::attention_scale() const {
    return static_cast<float>(std::pow(double(head_dim), -0.5));
}

float Config::index_weight_scale() const {
    return static_cast<float>(std::pow(double(index_head_dim), -0.5) * std::pow(double(index_n_heads), -0.5));
}

} // namespace ds41
