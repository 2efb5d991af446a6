// Memory that runs out on demand. The executable's operator new counts what the library allocates, and fails the n-th
// of its allocations; what the test itself allocates is left alone. Linked statically with the library, so that its
// calls of operator new come here.
#pragma once

#include <cstdint>

namespace api_test {

// The library's allocations while one of these lives. Nested ones add up.
class AllocationScope {
public:
    // The fail_at-th allocation (from 0) throws std::bad_alloc; all succeed with -1.
    explicit AllocationScope(int64_t fail_at = -1);
    ~AllocationScope();
    AllocationScope(const AllocationScope &) = delete;
    AllocationScope &operator=(const AllocationScope &) = delete;

    int64_t n_allocations() const; // tried so far
    bool failed() const;           // one was refused
};

// What a callback allocates is not the library's.
class OutsideLibrary {
public:
    OutsideLibrary();
    ~OutsideLibrary();

private:
    bool inside_;
};

// Blocks that the library has and has not given back.
int64_t live_allocations();

} // namespace api_test
