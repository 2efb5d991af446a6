// The replaced operator new and delete of failing_alloc.h.
#include "failing_alloc.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

// Stands right before the block that the caller gets.
struct Header {
    uint32_t offset;  // from the start of the underlying allocation to the block
    uint32_t tracked; // 1: the library's
};

thread_local bool inside = false;
thread_local int64_t n_tried = 0;
thread_local int64_t fail_at = -1;
std::atomic<int64_t> n_live{0};

void *allocate(std::size_t n_bytes, std::size_t alignment) noexcept {
    if (inside && n_tried++ == fail_at) return nullptr;
    const std::size_t offset = std::max<std::size_t>(alignment, alignof(std::max_align_t));
    if (n_bytes > PTRDIFF_MAX - 2 * offset) return nullptr;
    const std::size_t all = (n_bytes + offset + offset - 1) / offset * offset;
    char *start =
        static_cast<char *>(offset == alignof(std::max_align_t) ? std::malloc(all) : std::aligned_alloc(offset, all));
    if (start == nullptr) return nullptr;
    Header *header = reinterpret_cast<Header *>(start + offset) - 1;
    header->offset = static_cast<uint32_t>(offset);
    header->tracked = inside ? 1 : 0;
    if (inside) n_live++;
    return start + offset;
}

void *allocate_or_throw(std::size_t n_bytes, std::size_t alignment) {
    void *block = allocate(n_bytes, alignment);
    if (block == nullptr) throw std::bad_alloc();
    return block;
}

void release(void *block) noexcept {
    if (block == nullptr) return;
    const Header *header = static_cast<Header *>(block) - 1;
    if (header->tracked) n_live--;
    std::free(static_cast<char *>(block) - header->offset);
}

} // namespace

namespace api_test {

AllocationScope::AllocationScope(int64_t n) {
    fail_at = n;
    n_tried = 0;
    inside = true;
}

AllocationScope::~AllocationScope() {
    inside = false;
    fail_at = -1;
}

int64_t AllocationScope::n_allocations() const {
    return n_tried;
}

bool AllocationScope::failed() const {
    return fail_at >= 0 && n_tried > fail_at;
}

OutsideLibrary::OutsideLibrary() : inside_(inside) {
    inside = false;
}

OutsideLibrary::~OutsideLibrary() {
    inside = inside_;
}

int64_t live_allocations() {
    return n_live;
}

} // namespace api_test

// Every form there is: a form left out would pair the library's with ours.
void *operator new(std::size_t n) {
    return allocate_or_throw(n, 0);
}
void *operator new[](std::size_t n) {
    return allocate_or_throw(n, 0);
}
void *operator new(std::size_t n, std::align_val_t a) {
    return allocate_or_throw(n, static_cast<std::size_t>(a));
}
void *operator new[](std::size_t n, std::align_val_t a) {
    return allocate_or_throw(n, static_cast<std::size_t>(a));
}
void *operator new(std::size_t n, const std::nothrow_t &) noexcept {
    return allocate(n, 0);
}
void *operator new[](std::size_t n, const std::nothrow_t &) noexcept {
    return allocate(n, 0);
}
void *operator new(std::size_t n, std::align_val_t a, const std::nothrow_t &) noexcept {
    return allocate(n, static_cast<std::size_t>(a));
}
void *operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t &) noexcept {
    return allocate(n, static_cast<std::size_t>(a));
}
void operator delete(void *block) noexcept {
    release(block);
}
void operator delete[](void *block) noexcept {
    release(block);
}
void operator delete(void *block, std::size_t) noexcept {
    release(block);
}
void operator delete[](void *block, std::size_t) noexcept {
    release(block);
}
void operator delete(void *block, std::align_val_t) noexcept {
    release(block);
}
void operator delete[](void *block, std::align_val_t) noexcept {
    release(block);
}
void operator delete(void *block, std::size_t, std::align_val_t) noexcept {
    release(block);
}
void operator delete[](void *block, std::size_t, std::align_val_t) noexcept {
    release(block);
}
void operator delete(void *block, const std::nothrow_t &) noexcept {
    release(block);
}
void operator delete[](void *block, const std::nothrow_t &) noexcept {
    release(block);
}
void operator delete(void *block, std::align_val_t, const std::nothrow_t &) noexcept {
    release(block);
}
void operator delete[](void *block, std::align_val_t, const std::nothrow_t &) noexcept {
    release(block);
}
