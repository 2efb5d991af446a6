// The table of backends, and the choice by name.
#include "backend/backend.h"

#include "backend/cpu/stages.h"
#include "backend/reference/rank.h"
#include "backend/reference/stages.h"
#include "error.h"

#include <cstdio>
#include <cstring>
#include <iterator>

namespace ds41 {

namespace {

bool always() noexcept {
    return true;
}

std::unique_ptr<Stages> create_reference_stages(const StageOptions &) {
    return std::make_unique<ReferenceStages>();
}

constexpr Backend kBackends[] = {
    {"cpu", always, host_memory, create_cpu_stages, reference::has_torch_cpu_ranking, false, false},
    {"reference", always, host_memory, create_reference_stages, reference::has_torch_cpu_ranking, false, false},
};

} // namespace

const Backend *backend_at(int index) noexcept {
    return index >= 0 && static_cast<std::size_t>(index) < std::size(kBackends) ? &kBackends[index] : nullptr;
}

const Backend &choose_backend(const char *name) {
    const bool automatic = name == nullptr || std::strcmp(name, "auto") == 0;
    char names[128] = "";
    std::size_t used = 0;
    for (const Backend &backend : kBackends) {
        if ((automatic || std::strcmp(name, backend.name) == 0) && backend.available()) return backend;
        const int n = std::snprintf(names + used, sizeof names - used, "%s, ", backend.name);
        used += static_cast<std::size_t>(n);
        if (used >= sizeof names) used = sizeof names - 1;
    }
    throw Error(DS41_STATUS_NO_BACKEND, "options.backend is \"%.64s\", need one that can run here of: %sauto",
                name ? name : "auto", names);
}

} // namespace ds41
