// What a deployment will take, before any of it exists.
#pragma once

#include "model/model.h"

#include <cstdint>
#include <vector>

namespace ds41 {

// Caches of n_seqs sequences in the layers chosen and the workspace of one context; `weights` is left at 0. Throws
// INVALID_ARGUMENT for counts out of range.
ds41_memory estimate_memory(const Model &model, const std::vector<bool> &layers, std::int64_t n_seqs,
                            std::int64_t n_positions, std::int64_t n_tokens);

} // namespace ds41
