// Shapes of the attention kernels, and their plan of shared memory.
#pragma once

#include "attend/params.h"
#include "simt/types.h"

namespace ds41::kernels {

constexpr int kAttendThreads = 128; // each has 4 of 512 columns, of 8 heads: 32 sums
constexpr int kAttendWarps = kAttendThreads / simt::kWarp;
constexpr int kThreadColumns = kAttendColumns / kAttendThreads;
constexpr int kTileRows = 32; // a lane each, and 33 KiB with their padding: all fits into 48 KiB
constexpr int kWarpRows = 4;  // times 8 heads are 32 sums, one for each lane in the end

constexpr int kTileStride = kAttendColumns + 8; // in values; rows begin in different banks
static_assert(kAttendChunkRows % kTileRows == 0 && kTileRows == simt::kWarp);
static_assert(kWarpRows * kAttendHeads == simt::kWarp);
static_assert(kAttendHeads % kAttendWarps == 0);

constexpr int kWarpHeads = kAttendHeads / kAttendWarps; // whose softmax a warp does

} // namespace ds41::kernels
