// The backends of this build, best first, and the choice among them.
#pragma once

#include "backend/memory.h"
#include "backend/stages.h"

#include <memory>

namespace ds41 {

// 64 tokens of V4.1-Flash are 4 MiB of queries: enough to share weights that are read, little enough that a prefill of
// any length fits.
constexpr std::int32_t kHostTile = 64;

struct Backend {
    const char *name;
    const char *(*why_not)() noexcept; // null: it can run on this machine; otherwise a sentence that says why not
    const Memory &(*memory)() noexcept;
    std::unique_ptr<Stages> (*create_stages)(const StageOptions &options);
    bool (*has_torch_topk)() noexcept; // whether DS41_TOPK_TORCH_CPU can be kept
    bool has_streams;                  // whether a context may bring one
    bool has_graphs;                   // whether a decode step can be captured
    std::int32_t (*n_tile)() noexcept; // tokens that go through a layer's stages together
};

// Those that are listed; null past the end.
const Backend *backend_at(int index) noexcept;

// "auto" or null: the first that can run. Throws NO_BACKEND with the names that there are.
const Backend &choose_backend(const char *name);

} // namespace ds41
