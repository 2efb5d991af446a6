// The host's memory as a backend's.
#include "backend/memory.h"

#include <cstdint>
#include <cstring>
#include <new>

#include <sys/mman.h>

namespace ds41 {

namespace {

// Weights and caches in pages of 2 MB: 512 times fewer faults when they are filled, and up to a sixth more read
// bandwidth afterwards. Where the system has none to give, nothing changes.
void ask_for_huge_pages([[maybe_unused]] void *data, [[maybe_unused]] std::size_t n_bytes) noexcept {
#ifdef MADV_HUGEPAGE
    constexpr std::uintptr_t kHugePage = 2 << 20;
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    const std::uintptr_t first = (address + kHugePage - 1) / kHugePage * kHugePage;
    const std::uintptr_t end = (address + n_bytes) / kHugePage * kHugePage;
    if (end > first) ::madvise(reinterpret_cast<void *>(first), end - first, MADV_HUGEPAGE);
#endif
}

class HostMemory final : public Memory {
public:
    void *allocate(std::size_t n_bytes) const override {
        // Rounding up to the alignment wraps around in some allocators.
        if (n_bytes > PTRDIFF_MAX - kAlignment) throw std::bad_alloc();
        void *data = ::operator new (n_bytes, std::align_val_t{kAlignment});
        ask_for_huge_pages(data, n_bytes);
#ifndef NDEBUG
        std::memset(data, 0xff, n_bytes);
#endif
        return data;
    }
    void release(void *data) const noexcept override {
        ::operator delete (data, std::align_val_t{kAlignment});
    }
    void upload(void *target, const void *source, std::size_t n_bytes) const override {
        if (n_bytes) std::memcpy(target, source, n_bytes);
    }
    void download(void *target, const void *source, std::size_t n_bytes) const override {
        if (n_bytes) std::memcpy(target, source, n_bytes);
    }
    bool is_host() const noexcept override {
        return true;
    }
};

constinit const HostMemory kHostMemory{};

} // namespace

const Memory &host_memory() noexcept {
    return kHostMemory;
}

} // namespace ds41
