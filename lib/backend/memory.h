// Memory of a backend's device, and a block of it that frees itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace ds41 {

class Memory {
public:
    // Aligned to kAlignment; contents undefined. Throws std::bad_alloc.
    virtual void *allocate(std::size_t n_bytes) const = 0;
    virtual void release(void *data) const noexcept = 0;
    // Between host and device; wait for completion.
    virtual void upload(void *target, const void *source, std::size_t n_bytes) const = 0;
    virtual void download(void *target, const void *source, std::size_t n_bytes) const = 0;
    // Whether the device reads host pointers as they are: borrowed weights then need no copy.
    virtual bool is_host() const noexcept = 0;
    // Whether all of it is this memory, as far as that can be told.
    virtual bool owns(const void *, std::size_t) const noexcept { return true; }
    // The number of the allocation that an address lies in, which no other gets; 0 where that cannot be told.
    virtual std::uint64_t allocation_id(const void *) const noexcept { return 0; }

    static constexpr std::size_t kAlignment = 64; // a cache line, and the widest vector of today's CPUs

protected:
    ~Memory() = default; // never owned through this interface
};

// The host's own memory, of every backend that computes on the CPU. In builds with assertions, new memory is filled
// with 0xff, a NaN in every format here: what is read before it is written shows.
const Memory &host_memory() noexcept;

class Block {
public:
    Block() = default;
    Block(const Memory &memory, std::size_t n_bytes)
        : memory_(&memory), data_(n_bytes ? memory.allocate(n_bytes) : nullptr), n_bytes_(n_bytes) {}
    Block(Block &&other) noexcept { swap(other); }
    Block &operator=(Block &&other) noexcept {
        Block moved(std::move(other));
        swap(moved);
        return *this;
    }
    Block(const Block &) = delete;
    Block &operator=(const Block &) = delete;
    ~Block() {
        if (data_) memory_->release(data_);
    }

    void *data() const { return data_; }
    template <typename T> T *as() const { return static_cast<T *>(data_); }
    std::size_t n_bytes() const { return n_bytes_; }

    // At least n_bytes; the contents are lost when it has to grow. On failure the block is as it was.
    void ensure(const Memory &memory, std::size_t n_bytes) {
        if (n_bytes > n_bytes_) *this = Block(memory, n_bytes);
    }

private:
    void swap(Block &other) noexcept {
        std::swap(memory_, other.memory_);
        std::swap(data_, other.data_);
        std::swap(n_bytes_, other.n_bytes_);
    }

    const Memory *memory_ = nullptr;
    void *data_ = nullptr;
    std::size_t n_bytes_ = 0;
};

} // namespace ds41
