// Memory for what is read while it is timed: in 2 MB pages, which are worth a sixth of the bandwidth of a read, and in
// more copies than the caches hold. The same for every contestant, the floor included.
#pragma once

#include <cstddef>
#include <span>

namespace bench {

/// Memory that is handed out from its start on and given back as a whole. Every page has been written: none is the
/// shared page of zeros, and no timed run waits for one.
class Arena {
public:
    /// Throws std::runtime_error when there is not enough memory.
    explicit Arena(size_t n_bytes);
    ~Arena();
    Arena(const Arena &) = delete;
    Arena &operator=(const Arena &) = delete;

    /// Aligned to 64 bytes, filled with noise. Throws std::length_error when the arena is exhausted.
    std::span<std::byte> take(size_t n_bytes);

    /// Share of the memory, 0 to 1, that the kernel backs with 2 MB pages; less than 0 where it does not tell.
    double huge_share() const;

private:
    size_t n_mapped_;
    void *mapped_;
    std::span<std::byte> rest_;
};

/// Copies of something that, read one after the other, leave none of it in a cache when its turn comes again: over
/// 1 GiB or four times the last cache in all, two at least.
size_t n_rotated_copies(size_t n_bytes);

} // namespace bench
