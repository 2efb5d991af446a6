// What the library tells about a checkpoint, with the options applied. Everything that both reports show is in here;
// the library's handles are not.
#pragma once

#include "options.h"

#include <ds41/ds41.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace inspect {

struct File {
    std::string path;
    uint64_t n_bytes = 0;
};

struct Tensor {
    int32_t layer = 0;
    std::string member; ///< Of ds41_layer_weights.
    std::string name, type;
    std::vector<int64_t> shape;
    int32_t file = 0;
    int32_t dtype = DS41_DTYPE_NONE; ///< Once loaded.
    bool expands = false;            ///< It takes another form at load.
    uint64_t n_bytes = 0;            ///< In the file.
    uint64_t n_model_bytes = 0;      ///< Once loaded.
};

/// A chosen layer and those of its tensors that are as they should be.
struct Layer {
    int32_t index = 0;
    ds41_layer_role role{};
    std::vector<Tensor> tensors;
    uint64_t n_bytes = 0, n_model_bytes = 0;
};

struct Memory {
    ds41_memory sizes{};
    uint64_t in_files = 0; ///< Weights that are not copied.
    uint64_t total = 0;    ///< Of `sizes`.
};

struct Contents {
    std::string format;
    std::vector<File> files;
    std::optional<ds41_config> config;
    std::string backend;
    std::vector<Layer> layers;                   ///< Without a configuration none is known.
    uint64_t n_bytes = 0, n_model_bytes = 0;     ///< Of all of them.
    int64_t context = 0, batch = 0, prefill = 0; ///< The options or their defaults.
    std::optional<Memory> memory;                ///< None where there are problems.
    std::vector<std::string> problems;           ///< Of the chosen layers.
    std::vector<std::string> other_problems;     ///< Of layers that were not asked for.

    bool is_good() const { return problems.empty(); }
};

/// Throws BadUsage where the options do not suit the checkpoint, and std::runtime_error with the library's sentence
/// where it cannot be opened.
Contents read_contents(const Options &options);

} // namespace inspect
