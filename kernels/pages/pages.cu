#include "pages/kernel.cuh"
#include "pages/launch.h"

namespace ds41::kernels {

int launch_write_pages(simt::Stream stream, const WritePagesParams &p) {
    if (p.n == 0) return 0;
    return SIMT_LAUNCH(stream, (write_pages), simt::Dim3{1}, simt::Dim3{kMaxPageWrites}, 0, p);
}

} // namespace ds41::kernels
