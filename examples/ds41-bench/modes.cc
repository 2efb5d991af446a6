// In the order of --help.
#include "modes.h"

namespace bench {

std::span<const Mode> all_modes() {
    static constexpr Mode kModes[] = {
        {"read", "bandwidth of a plain read of memory, which is the floor of other modes", false, "", run_read},
        {"load", "loading the checkpoint at PATH, beside a plain sequential read of as many bytes of its files", true,
         " --layers --backend ", run_load},
        {"step", "one layer's part of a decode step at DeepSeek-V4.1-Flash's sizes, a layer of each kind", false,
         " --layers --backend --formats --contexts --rows --scale ", run_step},
    };
    return kModes;
}

const Mode *find_mode(const std::string &name) {
    for (const Mode &mode : all_modes())
        if (mode.name == name) return &mode;
    return nullptr;
}

} // namespace bench
