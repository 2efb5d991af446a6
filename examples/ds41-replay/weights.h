// Hands a fixture's weights to a model.
#pragma once

#include "case.h"

#include <deque>

namespace replay {

/// Set layer `layer` of the model. Large tensors are borrowed: the fixture and `kept` must outlive the model.
void set_layer(ds41_model *model, const Fixture &fixture, const Case &replayed, int32_t layer, bool plain_activations,
               std::deque<Loaded> &kept);

} // namespace replay
