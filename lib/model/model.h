// A model: configuration, backend, rotary tables, and the weights of its layers. Set up by one thread, sealed by the
// first context or sequence, immutable and shared from then on.
#pragma once

#include "backend/backend.h"
#include "model/config.h"
#include "model/rope_tables.h"
#include "model/weights.h"

#include <atomic>
#include <memory>
#include <vector>

namespace ds41 {

class Model {
public:
    Model(const ds41_config &config, const ds41_model_options &options);

    const Config &config() const { return config_; }
    const Backend &backend() const { return backend_; }
    std::int32_t n_tile() const { return n_tile_; } // tokens that go through a layer's stages together
    const Memory &memory() const { return backend_.memory(); }
    ds41_topk_rule topk_rule() const { return topk_rule_; }
    const RopeTable &rope_plain() const { return rope_plain_; }
    const RopeTable &rope_compressed() const { return rope_compressed_; }
    const RopeTable &rope(int layer) const { return config_.role(layer).ratio > 0 ? rope_compressed_ : rope_plain_; }

    // Null while the layer's weights are not set. `layer` is a layer of the configuration.
    const LayerWeights *layer(int layer) const { return layers_[static_cast<std::size_t>(layer)].get(); }
    bool has_layer(int layer) const { return layers_[static_cast<std::size_t>(layer)] != nullptr; }

    // Throws INVALID_LAYER or MISSING_WEIGHTS.
    const LayerWeights &weights(int layer) const;

    void set_layer(int layer, const ds41_layer_weights &weights);
    // Weights that have been taken over for this model's configuration and memory.
    void adopt_layer(int layer, LayerWeights &&weights);
    void seal() { sealed_.store(true, std::memory_order_relaxed); }

    void log(ds41_log_level level, const char *message) const;

private:
    Config config_;
    const Backend &backend_;
    std::int32_t n_tile_;
    ds41_topk_rule topk_rule_;
    RopeTable rope_plain_, rope_compressed_;
    std::vector<std::unique_ptr<const LayerWeights>> layers_;
    std::atomic<bool> sealed_{false};
    ds41_log_fn log_;
    void *log_user_;
};

} // namespace ds41
