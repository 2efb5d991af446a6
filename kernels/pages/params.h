// Entries of page tables that a step's sequences have gained since their tables were last brought to the device.
#pragma once

#include "sequence/rows_view.h"

#include <cstdint>

namespace ds41::kernels {

constexpr int kMaxPageWrites = 64;

// What is written goes with the launch: no copy from the host.
struct WritePagesParams {
    PageWrite writes[kMaxPageWrites];
    std::int32_t n;
    std::int32_t reserved;
};

} // namespace ds41::kernels
