#include "topk/kernel.cuh"
#include "topk/launch.h"

namespace ds41::kernels {

int launch_topk(simt::Stream stream, const TopkParams &p) {
    if (p.n == 0 || p.n_group_slots == 0) return 0;
    return SIMT_LAUNCH(stream, (topk_groups), (simt::Dim3{static_cast<unsigned>(p.n), 1, 1}),
                       (simt::Dim3{kTopkThreads, 1, 1}), 0, p);
}

int launch_keep_blocks(simt::Stream stream, const KeepBlocksParams &p) {
    if (p.n == 0 || p.n_block_slots == 0) return 0;
    return SIMT_LAUNCH(stream, (topk_blocks), (simt::Dim3{static_cast<unsigned>(p.n), 1, 1}),
                       (simt::Dim3{kTopkThreads, 1, 1}), 0, p);
}

} // namespace ds41::kernels
