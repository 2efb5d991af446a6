// What a decode step costs where a device counts it, beside the least that it could cost.
#pragma once

#include "model/config.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace bench {

/// Of one stage, or of all.
struct StageCost {
    std::string stage;
    uint64_t launches = 0;
    uint64_t requested_bytes = 0; ///< Of all accesses of the kernels, reads and writes.
    uint64_t distinct_bytes = 0;  ///< Of those, each byte once.
    uint64_t floor_bytes = 0;     ///< That have to be read or written, each byte once.
    double microseconds = 0;      ///< On a GPU, without a graph.
};

/// What the host does for a step, and launches.
struct HostCost {
    uint64_t launches = 0; ///< Of kernels.
    uint64_t graph_launches = 0;
    uint64_t uploads = 0, uploaded_bytes = 0;
    uint64_t synchronisations = 0;
    uint64_t requested_bytes = 0; ///< Of kernels: a graph's may look at room that the step does not need.
};

struct StepCost {
    std::string name, kind, format, backend;
    int layer = 0;
    int64_t context = 0;
    int32_t n_rows = 0, scale = 0;
    std::vector<StageCost> stages; ///< In the order in which they run.
    HostCost prep, body;
    std::optional<HostCost> captured_prep, captured; ///< Nothing where the backend has no graphs.
    double copied_gbs = 0; ///< On a GPU: what a copy on it reads and writes a nanosecond, in bytes.

    StageCost all() const; ///< The sum of the stages.
};

/// The stages of a layer with their floors and nothing counted. Weights, and every row and key that has to be looked
/// at, are read once; what a stage hands on is written once by it and read once by the next.
std::vector<StageCost> step_floor(const ds41::Config &config, int layer, ds41_dtype format, int64_t context,
                                  int32_t n_rows);

} // namespace bench
