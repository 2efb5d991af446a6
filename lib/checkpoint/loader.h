// From a checkpoint to a model: which layers, what each tensor becomes, and the reading itself, on several threads.
#pragma once

#include "checkpoint/checkpoint.h"
#include "model/model.h"

#include <memory>
#include <span>
#include <vector>

namespace ds41 {

class LoadJobs;
struct MatrixLoad;

// `options` as the caller's struct says. What can be known without reading a tensor.
class LoadPlan {
public:
    // Throws what is wrong with the options, the configuration, or tensors of the chosen layers; the latter are logged
    // one by one.
    LoadPlan(std::shared_ptr<const Checkpoint> checkpoint, const ds41_load_options &options);

    // Without weights until load() is done.
    const std::shared_ptr<Model> &model() const { return model_; }
    const std::vector<bool> &layers() const { return layers_; }
    std::uint64_t copied_bytes() const; // of weights that the model will own

    // Read everything and hand it to the model. Once only. Throws IO_ERROR, CANCELLED, OUT_OF_MEMORY, and INVALID_FILE
    // for values that a model refuses (a scale byte of 255, a sink that is NaN).
    void load();

private:
    struct Layer;

    void choose_layers(const Inventory &inventory);
    void refuse_problems(const Inventory &inventory) const;
    Conversion conversion_of(const PlacedTensor &tensor) const;
    bool stays_mapped(const PlacedTensor &tensor, const Conversion &conversion) const;
    // Prepares a tensor of `layer`: read at once, mapped, or added to `matrices`. Returns the bytes left in the
    // mapping.
    std::uint64_t add(const PlacedTensor &placed, Layer &layer, LoadJobs &jobs,
                      std::vector<std::unique_ptr<MatrixLoad>> &matrices);
    LayerWeights take_over(int layer, const ds41_layer_weights &weights) const;
    void log_expansions(std::span<const std::unique_ptr<MatrixLoad>> matrices) const;

    std::shared_ptr<const Checkpoint> checkpoint_;
    ds41_load_options options_;
    std::shared_ptr<Model> model_;
    std::vector<bool> layers_;
    std::unique_ptr<const Inventory> own_inventory_; // by a configuration other than the checkpoint's
    std::vector<PlacedTensor> tensors_;              // of the chosen layers
};

} // namespace ds41
