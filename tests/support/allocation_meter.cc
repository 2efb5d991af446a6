#include "allocation_meter.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local bool metered = false;
thread_local std::uint64_t n_allocated = 0;

void *allocate(std::size_t n_bytes) noexcept {
    if (metered) n_allocated += n_bytes;
    return std::malloc(n_bytes > 0 ? n_bytes : 1);
}

void *allocate_aligned(std::size_t n_bytes, std::align_val_t alignment) noexcept {
    if (metered) n_allocated += n_bytes;
    const std::size_t a = static_cast<std::size_t>(alignment);
    if (n_bytes > PTRDIFF_MAX - a) return nullptr;
    return std::aligned_alloc(a, (n_bytes + a) / a * a);
}

void *or_throw(void *block) {
    if (block == nullptr) throw std::bad_alloc();
    return block;
}

} // namespace

namespace ds41::test {

AllocationMeter::AllocationMeter() noexcept {
    n_allocated = 0;
    metered = true;
}

AllocationMeter::~AllocationMeter() {
    metered = false;
}

std::uint64_t AllocationMeter::n_bytes() const noexcept {
    return n_allocated;
}

} // namespace ds41::test

// Every form there is: a form left out would pair the sanitizer's with ours.
void *operator new(std::size_t n) {
    return or_throw(allocate(n));
}
void *operator new[](std::size_t n) {
    return or_throw(allocate(n));
}
void *operator new(std::size_t n, std::align_val_t a) {
    return or_throw(allocate_aligned(n, a));
}
void *operator new[](std::size_t n, std::align_val_t a) {
    return or_throw(allocate_aligned(n, a));
}
void *operator new(std::size_t n, const std::nothrow_t &) noexcept {
    return allocate(n);
}
void *operator new[](std::size_t n, const std::nothrow_t &) noexcept {
    return allocate(n);
}
void *operator new(std::size_t n, std::align_val_t a, const std::nothrow_t &) noexcept {
    return allocate_aligned(n, a);
}
void *operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t &) noexcept {
    return allocate_aligned(n, a);
}
void operator delete(void *block) noexcept {
    std::free(block);
}
void operator delete[](void *block) noexcept {
    std::free(block);
}
void operator delete(void *block, std::size_t) noexcept {
    std::free(block);
}
void operator delete[](void *block, std::size_t) noexcept {
    std::free(block);
}
void operator delete(void *block, std::align_val_t) noexcept {
    std::free(block);
}
void operator delete[](void *block, std::align_val_t) noexcept {
    std::free(block);
}
void operator delete(void *block, std::size_t, std::align_val_t) noexcept {
    std::free(block);
}
void operator delete[](void *block, std::size_t, std::align_val_t) noexcept {
    std::free(block);
}
void operator delete(void *block, const std::nothrow_t &) noexcept {
    std::free(block);
}
void operator delete[](void *block, const std::nothrow_t &) noexcept {
    std::free(block);
}
void operator delete(void *block, std::align_val_t, const std::nothrow_t &) noexcept {
    std::free(block);
}
void operator delete[](void *block, std::align_val_t, const std::nothrow_t &) noexcept {
    std::free(block);
}
