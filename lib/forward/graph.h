// A captured decode step, or a part of one: what was baked into it, which every launch compares.
#pragma once

#include "backend/stages.h"
#include "forward/step.h"

#include <memory>
#include <vector>

namespace ds41 {

struct Graph {
    // Rows that the caller handed over, of each allocation some: asking about memory costs a launch time.
    struct Rows {
        std::uint64_t allocation; // its number; 0: unknown
        const void *data;
        std::size_t n_bytes;
        const char *name; // of the argument
        int layer;
    };

    std::int32_t n_tokens = 0;
    std::vector<int> layers; // ascending
    std::vector<Rows> rows;
    Published selection;                  // where its index sources leave theirs, and its other layers look for one
    std::unique_ptr<StageGraph> captured; // keeps the backend's memory
    std::vector<std::shared_ptr<const Block>> workspace;
    bool by_caller = false;
    bool is_broken = false; // a layer could not be recorded

    // Throws WRONG_ORDER where the step's selections lie elsewhere than the layers of the graph look for them.
    void check_selection(const Config &config, const Step &step) const;
};

} // namespace ds41
