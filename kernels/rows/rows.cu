#include "rows/kernel.cuh"
#include "rows/launch.h"

#include <algorithm>

namespace ds41::kernels {

int launch_rows(simt::Stream stream, const RowsParams &p) {
    if (p.n == 0 || p.n_jobs == 0) return 0;
    int rows_per_token = 1, width = 0;
    for (int i = 0; i < p.n_jobs; ++i) {
        rows_per_token = std::max(rows_per_token, p.jobs[i].rows_per_token);
        width = std::max(width, p.jobs[i].width);
    }
    const simt::Dim3 grid{static_cast<unsigned>(p.n) * static_cast<unsigned>(rows_per_token),
                          static_cast<unsigned>(p.n_jobs)};
    return SIMT_LAUNCH(stream, (rows), grid, simt::Dim3{kRowThreads},
                       simt::shared_bytes<Bf16>(static_cast<std::size_t>(width)), p);
}

int launch_commit_window(simt::Stream stream, const CommitWindowParams &p) {
    if (p.n_tokens == 0) return 0;
    return SIMT_LAUNCH(stream, (commit_window), simt::Dim3{static_cast<unsigned>(p.n_tokens)}, simt::Dim3{kRowThreads},
                       0, p);
}

} // namespace ds41::kernels
