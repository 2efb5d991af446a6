#include "backend/cuda/plugin/operations.h"

#include "attend/launch.h"
#include "linear/launch.h"
#include "pages/launch.h"
#include "rows/launch.h"
#include "score/launch.h"
#include "topk/launch.h"

namespace ds41 {

using namespace kernels;

int launch_operation(simt::Stream stream, DeviceOp op, const void *params) {
    switch (op) {
    case DeviceOp::kLinear:
        return launch_linear(stream, *static_cast<const LinearParams *>(params));
    case DeviceOp::kQuantise:
        return launch_quantise(stream, *static_cast<const QuantiseParams *>(params));
    case DeviceOp::kRows:
        return launch_rows(stream, *static_cast<const RowsParams *>(params));
    case DeviceOp::kCommitWindow:
        return launch_commit_window(stream, *static_cast<const CommitWindowParams *>(params));
    case DeviceOp::kScore:
        return launch_score(stream, *static_cast<const ScoreParams *>(params));
    case DeviceOp::kTopk:
        return launch_topk(stream, *static_cast<const TopkParams *>(params));
    case DeviceOp::kKeepBlocks:
        return launch_keep_blocks(stream, *static_cast<const KeepBlocksParams *>(params));
    case DeviceOp::kAttend:
        return launch_attend(stream, *static_cast<const AttendParams *>(params));
    case DeviceOp::kAttendTensor:
        return launch_attend_tensor(stream, *static_cast<const AttendParams *>(params));
    case DeviceOp::kWritePages:
        return launch_write_pages(stream, *static_cast<const WritePagesParams *>(params));
    case DeviceOp::kCount:
        break;
    }
    return 1; // cudaErrorInvalidValue
}

const char *operation_name(DeviceOp op) {
    constexpr const char *kNames[] = {"linear", "quantise",    "rows",   "commit_window", "score",
                                      "topk",   "keep_blocks", "attend", "attend_tensor", "write_pages"};
    static_assert(sizeof kNames / sizeof *kNames == static_cast<std::size_t>(DeviceOp::kCount));
    return op < DeviceOp::kCount ? kNames[static_cast<std::size_t>(op)] : "no operation";
}

} // namespace ds41
