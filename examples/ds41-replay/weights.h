// Hands weights to a model: a fixture's own, or a checkpoint's.
#pragma once

#include "case.h"
#include "runner.h"

#include <deque>

namespace replay {

/// Set layer `layer` of the model. Large tensors are borrowed: the fixture and `kept` must outlive the model.
void set_layer(ds41_model *model, const Fixture &fixture, const Case &replayed, int32_t layer, bool plain_activations,
               std::deque<Loaded> &kept);

/// A model with the weights of the checkpoint at options.weights, the caller's to destroy. Throws CannotRun when it
/// cannot be loaded or is of another configuration than the case.
ds41_model *load_checkpoint(const RunOptions &options, const Case &replayed, bool plain_activations,
                            const ds41_model_options &model_options);

} // namespace replay
