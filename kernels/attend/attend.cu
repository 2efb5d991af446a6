#include "attend/kernel.cuh"
#include "attend/launch.h"
#include "attend/tensor.cuh"

namespace ds41::kernels {

int launch_attend(simt::Stream stream, const AttendParams &p) {
    if (p.n == 0 || p.n_heads == 0) return 0;
    constexpr simt::Dim3 kBlock{kAttendThreads, 1, 1};
    const int n_chunks = attend_chunks(p), per_split = attend_chunks_per_split(p);
    const auto n = static_cast<unsigned>(p.n), n_heads = static_cast<unsigned>(p.n_heads);
    const auto n_splits = static_cast<unsigned>((n_chunks + per_split - 1) / per_split);
    const auto n_pieces = static_cast<unsigned>((p.head_dim + kAttendColumns - 1) / kAttendColumns);
    const simt::Dim3 grid{n, n_splits, (n_heads + kAttendHeads - 1) / kAttendHeads * n_pieces};
    if (n_splits == 1) return SIMT_LAUNCH(stream, (attend_rows<true>), grid, kBlock, 0, p);
    const int error = SIMT_LAUNCH(stream, (attend_rows<false>), grid, kBlock, 0, p);
    if (error != 0) return error;
    return SIMT_LAUNCH(stream, (attend_join), (simt::Dim3{n, n_heads, n_pieces}), kBlock, 0, p);
}

int launch_attend_tensor(simt::Stream stream, const AttendParams &p) {
    if (!attend_on_tensor_cores(p)) return launch_attend(stream, p);
    if (p.n == 0 || p.n_heads == 0) return 0;
    const auto n_head_blocks = static_cast<unsigned>((p.n_heads + kTensorHeads - 1) / kTensorHeads);
    return SIMT_LAUNCH(stream, (attend_tensor), (simt::Dim3{static_cast<unsigned>(p.n), n_head_blocks, 1}),
                       (simt::Dim3{kTensorThreads, 1, 1}), kTensorShared, p);
}

} // namespace ds41::kernels
