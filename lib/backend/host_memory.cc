// The host's memory as a backend's.
#include "backend/memory.h"

#include <cstdint>
#include <cstring>
#include <new>

namespace ds41 {

namespace {

class HostMemory final : public Memory {
public:
    void *allocate(std::size_t n_bytes) const override {
        // Rounding up to the alignment wraps around in some allocators.
        if (n_bytes > PTRDIFF_MAX - kAlignment) throw std::bad_alloc();
        void *data = ::operator new (n_bytes, std::align_val_t{kAlignment});
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
