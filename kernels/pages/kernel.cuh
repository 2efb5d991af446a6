#pragma once

#include "pages/params.h"
#include "simt.h"

namespace ds41::kernels {

// One block; a thread writes an entry.
__global__ void __launch_bounds__(kMaxPageWrites) write_pages(const __grid_constant__ WritePagesParams p) {
    const int i = static_cast<int>(threadIdx.x);
    if (i < p.n) simt::store(p.writes[i].entry, p.writes[i].page);
}

} // namespace ds41::kernels
