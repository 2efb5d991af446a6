// model.safetensors.index.json: which shard holds which tensor. Only the text is judged here (syntax, types, names that
// leave the folder); whether the shards keep its word is for whoever opens them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ds41 {

struct IndexEntry {
    std::string tensor;
    std::string file; // A plain file name: no folder, no NUL.
};

// In ascending order of the tensors' names. Throws DS41_STATUS_INVALID_FILE.
std::vector<IndexEntry> parse_safetensors_index(std::string_view json);

} // namespace ds41
