// In the order of --help.
#include "modes.h"

namespace bench {

std::span<const Mode> all_modes() {
    static constexpr Mode kModes[] = {
        {"read", "bandwidth of a plain read of memory, which is the floor of other modes", false, "", "1", "4K",
         run_read},
        {"load", "loading the checkpoint at PATH, beside a plain sequential read of as many bytes of its files", true,
         " --layers --backend ", "1", "4K", run_load},
        {"step", "one layer's part of a decode step at DeepSeek-V4.1-Flash's sizes, a layer of each kind", false,
         " --layers --backend --formats --contexts --rows --scale ", "1", "4K,64K", run_step},
        {"stack", "a decode step of all layers at DeepSeek-V4.1-Flash's sizes, each with weights of its own", false,
         " --backend --formats --contexts --rows --scale ", "1", "4K", run_stack},
        {"proj", "the five projections of a layer for one row, on the CPU, beside other libraries", false,
         " --formats --rows --scale ", "1", "4K", run_proj},
        {"prefill", "the same for 64 and for 512 rows", false, " --formats --rows --scale ", "64,512", "4K",
         run_prefill},
        {"attend", "attention of one token over its window and its selected rows, on the CPU", false,
         " --contexts --scale ", "1", "64K", run_attend},
        {"index", "index scores of one token over 64K and 1M keys, and the choice of the best, on the CPU", false,
         " --contexts --scale ", "1", "64K,1024K", run_index},
    };
    return kModes;
}

const Mode *find_mode(const std::string &name) {
    for (const Mode &mode : all_modes())
        if (mode.name == name) return &mode;
    return nullptr;
}

} // namespace bench
