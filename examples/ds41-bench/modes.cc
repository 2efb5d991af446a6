// In the order of --help.
#include "modes.h"

namespace bench {

std::span<const Mode> all_modes() {
    static constexpr Mode kModes[] = {
        {"read", "bandwidth of a plain read of memory, which is the floor of other modes", false, "", run_read},
        {"load", "loading the checkpoint at PATH, beside a plain sequential read of as many bytes of its files", true,
         " --layers --backend ", run_load},
    };
    return kModes;
}

const Mode *find_mode(const std::string &name) {
    for (const Mode &mode : all_modes())
        if (mode.name == name) return &mode;
    return nullptr;
}

} // namespace bench
