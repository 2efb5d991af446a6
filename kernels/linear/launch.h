#pragma once

#include "linear/params.h"
#include "simt/types.h"

namespace ds41::kernels {

// 0, or the number of the error. Enqueues.
int launch_linear(simt::Stream stream, const LinearParams &params);
int launch_quantise(simt::Stream stream, const QuantiseParams &params);

} // namespace ds41::kernels
