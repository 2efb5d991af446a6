#include "backend/cuda/plugin/operations.h"

#include "attend/launch.h"
#include "linear/launch.h"
#include "rows/launch.h"
#include "score/launch.h"
#include "topk/launch.h"

namespace ds41 {

using namespace kernels;

int launch_operation(simt::Stream stream, DeviceOp op, const void *params) {
    switch (op) {
    case DeviceOp::kLinear:
        return launch_linear(stream, *static_cast<const LinearParams *>(params));
    case DeviceOp::kQuantiseQ8:
        return launch_quantise_q8(stream, *static_cast<const QuantiseQ8Params *>(params));
    case DeviceOp::kRows:
        return launch_rows(stream, *static_cast<const RowsParams *>(params));
    case DeviceOp::kGroupState:
        return launch_group_state(stream, *static_cast<const GroupStateParams *>(params));
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
    case DeviceOp::kCount:
        break;
    }
    return 1; // cudaErrorInvalidValue
}

const char *operation_name(DeviceOp op) {
    constexpr const char *kNames[] = {"linear", "quantise_q8", "rows",        "group_state", "commit_window",
                                      "score",  "topk",        "keep_blocks", "attend",      "attend_tensor"};
    static_assert(sizeof kNames / sizeof *kNames == static_cast<std::size_t>(DeviceOp::kCount));
    return op < DeviceOp::kCount ? kNames[static_cast<std::size_t>(op)] : "no operation";
}

} // namespace ds41
