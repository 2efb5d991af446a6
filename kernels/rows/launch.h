#pragma once

#include "rows/params.h"
#include "simt/types.h"

namespace ds41::kernels {

// 0, or the number of the error. Each enqueues.
int launch_rows(simt::Stream stream, const RowsParams &params);
int launch_group_state(simt::Stream stream, const GroupStateParams &params);
int launch_commit_window(simt::Stream stream, const CommitWindowParams &params);

} // namespace ds41::kernels
