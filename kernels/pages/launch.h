#pragma once

#include "pages/params.h"
#include "simt/types.h"

namespace ds41::kernels {

// 0, or the number of the error. Enqueues; nothing where there is nothing to write.
int launch_write_pages(simt::Stream stream, const WritePagesParams &params);

} // namespace ds41::kernels
