// The backends of this build, best first, and the choice among them.
#pragma once

#include "backend/memory.h"
#include "backend/stages.h"

#include <memory>

namespace ds41 {

struct Backend {
    const char *name;
    bool (*available)() noexcept; // can it run on this machine
    const Memory &(*memory)() noexcept;
    std::unique_ptr<Stages> (*create_stages)(const StageOptions &options);
    bool (*has_torch_topk)() noexcept; // whether DS41_TOPK_TORCH_CPU can be kept
    bool has_streams;                  // whether a context may bring one
    bool has_graphs;                   // whether a decode step can be captured
};

// Null past the end.
const Backend *backend_at(int index) noexcept;

// "auto" or null: the first that can run. Throws NO_BACKEND with the names that there are.
const Backend &choose_backend(const char *name);

} // namespace ds41
