// Every operation's launch behind one function, the same for both plugins.
#pragma once

#include "backend/cuda/device.h"
#include "simt/types.h"

namespace ds41 {

int launch_operation(simt::Stream stream, DeviceOp op, const void *params);
const char *operation_name(DeviceOp op);

// Whether device 0 has code for the kernels: 0, or the error that the first launch would give.
int probe_image();

} // namespace ds41
