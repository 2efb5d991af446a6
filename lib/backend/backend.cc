// The table of backends, and the choice by name.
#include "backend/backend.h"

#include "backend/cpu/stages.h"
#include "backend/cuda/stages.h"
#include "backend/reference/rank.h"
#include "backend/reference/stages.h"
#include "error.h"

#include <cstdio>
#include <cstring>
#include <iterator>

namespace ds41 {

namespace {

const char *always() noexcept {
    return nullptr;
}
const char *why_not_cuda() noexcept {
    return cuda_plugin().functions() ? nullptr : cuda_plugin().why_not();
}
const char *why_not_sim() noexcept {
    return sim_plugin().functions() ? nullptr : sim_plugin().why_not();
}

// A GPU wants more rows for its products.
std::int32_t host_tile() noexcept {
    return kHostTile;
}
std::int32_t device_tile() noexcept {
    return 256;
}

std::unique_ptr<Stages> create_reference_stages(const StageOptions &) {
    return std::make_unique<ReferenceStages>();
}

constexpr Backend kBackends[] = {
    {"cuda", why_not_cuda, cuda_memory, create_cuda_stages, reference::has_torch_cpu_ranking, true, true, device_tile},
    {"cpu", always, host_memory, create_cpu_stages, reference::has_torch_cpu_ranking, false, false, cpu_tile},
    {"reference", always, host_memory, create_reference_stages, reference::has_torch_cpu_ranking, false, false,
     host_tile},
};
// The cuda backend on the simulated device, for tests: taken by name where its library is found, and listed nowhere.
constexpr Backend kSim = {"sim", why_not_sim, sim_memory, create_sim_stages, reference::has_torch_cpu_ranking,
                          true,  true,        device_tile};

} // namespace

const Backend *backend_at(int index) noexcept {
    return index >= 0 && static_cast<std::size_t>(index) < std::size(kBackends) ? &kBackends[index] : nullptr;
}

const Backend &choose_backend(const char *name) {
    const bool automatic = name == nullptr || std::strcmp(name, "auto") == 0;
    if (!automatic && std::strcmp(name, kSim.name) == 0 && !kSim.why_not()) return kSim;
    char names[128] = "";
    std::size_t used = 0;
    for (const Backend &backend : kBackends) {
        const bool named = !automatic && std::strcmp(name, backend.name) == 0;
        if (named || automatic) {
            const char *why_not = backend.why_not();
            if (!why_not) return backend;
            DS41_CHECK(!named, DS41_STATUS_NO_BACKEND, "options.backend is \"%s\", which cannot run here: %s", name,
                       why_not);
        }
        const int n = std::snprintf(names + used, sizeof names - used, "%s, ", backend.name);
        used += static_cast<std::size_t>(n);
        if (used >= sizeof names) used = sizeof names - 1;
    }
    throw Error(DS41_STATUS_NO_BACKEND, "options.backend is \"%.64s\", need one of: %sauto", name ? name : "auto",
                names);
}

} // namespace ds41
