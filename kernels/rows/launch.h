#pragma once

#include "rows/params.h"
#include "simt/types.h"

namespace ds41::kernels {

// 0, or the number of the error. Each enqueues. Any number of tokens and jobs, none included.
int launch_rows(simt::Stream stream, const RowsParams &params);
int launch_commit_window(simt::Stream stream, const CommitWindowParams &params);

} // namespace ds41::kernels
