// Counts the bytes that an executable's operator new hands out, to hold a reader of files to memory that the input's
// size justifies. Linking allocation_meter.cc replaces operator new, of the statically linked library too.
#pragma once

#include <cstdint>

namespace ds41::test {

// What the calling thread allocates while one of these lives, freed meanwhile or not. They do not nest.
class AllocationMeter {
public:
    AllocationMeter() noexcept;
    ~AllocationMeter();
    AllocationMeter(const AllocationMeter &) = delete;
    AllocationMeter &operator=(const AllocationMeter &) = delete;

    std::uint64_t n_bytes() const noexcept;
};

} // namespace ds41::test
