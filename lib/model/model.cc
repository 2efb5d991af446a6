// A model's construction, its layers, and the moment from which it does not change.
#include "model/model.h"

#include "error.h"

#include <cstdio>

namespace ds41 {

namespace {

ds41_topk_rule checked_rule(int rule, const Backend &backend) {
    DS41_CHECK(rule == DS41_TOPK_STABLE || rule == DS41_TOPK_TORCH_CPU, DS41_STATUS_INVALID_ARGUMENT,
               "options.topk_rule is %d, need DS41_TOPK_STABLE or DS41_TOPK_TORCH_CPU", rule);
    DS41_CHECK(
        rule == DS41_TOPK_STABLE || backend.has_torch_topk(), DS41_STATUS_UNSUPPORTED,
        "options.topk_rule is DS41_TOPK_TORCH_CPU, which needs a build with libstdc++, the library that torch uses");
    return static_cast<ds41_topk_rule>(rule);
}

} // namespace

Model::Model(const ds41_config &config, const ds41_model_options &options)
    : config_(config), backend_(choose_backend(options.backend)), n_tile_(backend_.n_tile()),
      topk_rule_(checked_rule(options.topk_rule, backend_)), rope_plain_(RopeTable::plain_of(config)),
      rope_compressed_(RopeTable::compressed_of(config)), layers_(static_cast<std::size_t>(config_.n_layers_total())),
      log_(options.log), log_user_(options.log_user) {
    char message[96];
    std::snprintf(message, sizeof message, "backend %s chosen (asked for: %.40s)", backend_.name,
                  options.backend ? options.backend : "auto");
    log(DS41_LOG_INFO, message);
}

const LayerWeights &Model::weights(int layer) const {
    config_.check_layer(layer);
    DS41_CHECK(has_layer(layer), DS41_STATUS_MISSING_WEIGHTS,
               "layer %d has no weights: neither ds41_model_load nor ds41_model_set_layer gave it any", layer);
    return *this->layer(layer);
}

void Model::set_layer(int layer, const ds41_layer_weights &weights) {
    config_.check_layer(layer);
    DS41_CHECK(!sealed_.load(std::memory_order_relaxed), DS41_STATUS_WRONG_ORDER,
               "layer %d cannot be set: the model is immutable since a context or sequence was created on it", layer);
    DS41_CHECK(weights.ownership == DS41_OWNERSHIP_COPY || weights.ownership == DS41_OWNERSHIP_BORROW,
               DS41_STATUS_INVALID_ARGUMENT,
               "weights.ownership is %d, need DS41_OWNERSHIP_COPY or DS41_OWNERSHIP_BORROW", weights.ownership);
    adopt_layer(layer,
                take_weights(config_, layer, weights,
                             weights.ownership == DS41_OWNERSHIP_BORROW ? WeightSource::kBorrow : WeightSource::kCopy,
                             memory()));
}

void Model::adopt_layer(int layer, LayerWeights &&weights) {
    layers_[static_cast<std::size_t>(layer)] = std::make_unique<const LayerWeights>(std::move(weights));
}

void Model::log(ds41_log_level level, const char *message) const {
    if (log_) log_(level, message, log_user_);
}

} // namespace ds41
