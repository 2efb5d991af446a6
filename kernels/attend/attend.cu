#include "attend/kernel.cuh"
#include "attend/launch.h"
#include "attend/tensor.cuh"
#include "rows/launch.h"

namespace ds41::kernels {

namespace {

constexpr int kInvalidValue = 1; // the number that CUDA has for it

// What is left to do behind the kernel that reads the rings, where no join does it.
int then_commit(simt::Stream stream, const AttendParams &p, int error) {
    if (error != 0 || !p.commit) return error;
    CommitWindowParams window{};
    window.window_new = p.window_new;
    window.tokens = p.tokens;
    window.spans = p.spans;
    window.n_tokens = p.n;
    window.window_size = p.window_size;
    window.row_bytes = static_cast<std::int32_t>(window_row_bytes(p.head_dim));
    return launch_commit_window(stream, window);
}

} // namespace

int launch_attend(simt::Stream stream, const AttendParams &p) {
    if (p.n == 0 || p.n_heads == 0) return then_commit(stream, p, 0);
    constexpr simt::Dim3 kBlock{kAttendThreads, 1, 1};
    const int n_chunks = attend_chunks(p), per_split = attend_chunks_per_split(p);
    const auto n = static_cast<unsigned>(p.n), n_heads = static_cast<unsigned>(p.n_heads);
    const auto n_splits = static_cast<unsigned>((n_chunks + per_split - 1) / per_split);
    const auto n_pieces = static_cast<unsigned>((p.head_dim + kAttendColumns - 1) / kAttendColumns);
    const simt::Dim3 grid{n, n_splits, (n_heads + kAttendHeads - 1) / kAttendHeads * n_pieces};
    if (n_splits == 1) return then_commit(stream, p, SIMT_LAUNCH(stream, (attend_rows<true>), grid, kBlock, 0, p));
    const int error = SIMT_LAUNCH(stream, (attend_rows<false>), grid, kBlock, 0, p);
    if (error != 0) return error;
    return SIMT_LAUNCH(stream, (attend_join), (simt::Dim3{n, n_heads, n_pieces}), kBlock, 0, p);
}

int launch_attend_tensor(simt::Stream stream, const AttendParams &p) {
    if (p.quantised.form != QuantisedForm::kNone) return kInvalidValue;
    if (!attend_on_tensor_cores(p)) return launch_attend(stream, p);
    if (p.n == 0 || p.n_heads == 0) return then_commit(stream, p, 0);
    const auto n_head_blocks = static_cast<unsigned>((p.n_heads + kTensorHeads - 1) / kTensorHeads);
    const simt::Dim3 grid{static_cast<unsigned>(p.n), n_head_blocks, 1};
    return then_commit(
        stream, p, SIMT_LAUNCH(stream, (attend_tensor), grid, (simt::Dim3{kTensorThreads, 1, 1}), kTensorShared, p));
}

} // namespace ds41::kernels
