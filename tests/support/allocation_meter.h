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

// False under valgrind, which puts its operator new in the place of every other. Asked in the caller's file: calls from
// where the operators are defined are not redirected.
inline bool allocations_are_counted() {
    const AllocationMeter meter;
    char *volatile block = new char;
    delete block;
    return meter.n_bytes() > 0;
}

} // namespace ds41::test
