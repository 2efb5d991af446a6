// A GGUF's metadata to ds41_config. Which layers are sources has no agreed key: where no known spelling is present, it
// is read off the tensors that the layers have.
#pragma once

#include "checkpoint/gguf_metadata.h"
#include "checkpoint/inventory.h"

#include <vector>

namespace ds41 {

// Throws DS41_STATUS_INVALID_FILE: keys that are missing (all are named), of another type, or that contradict each
// other or the tensors. Whether the numbers make a model is for the validation that follows.
ds41_config gguf_config(const GgufMetadata &metadata, const std::vector<FoundTensor> &found);

} // namespace ds41
