// Anonymous memory with MADV_HUGEPAGE. That the advice was followed is read back from /proc/self/smaps.
#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>

namespace bench {

namespace {

constexpr size_t kHugePage = size_t(2) << 20;

/// Bits without a pattern that a compressing memory or a lucky branch could use. Not zero.
void fill_with_noise(std::span<std::byte> memory) {
    uint64_t state = 0x9e3779b97f4a7c15;
    for (size_t at = 0; at + sizeof(state) <= memory.size(); at += sizeof(state)) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        std::memcpy(memory.data() + at, &state, sizeof(state));
    }
}

} // namespace

Arena::Arena(size_t n_bytes) {
    if (n_bytes > PTRDIFF_MAX / 2) throw std::runtime_error("no memory for " + std::to_string(n_bytes) + " bytes");
    // One page more, so that the first can begin at a multiple of its size.
    const size_t n_pages = n_bytes / kHugePage + 1;
    n_mapped_ = (n_pages + 1) * kHugePage;
    mapped_ = mmap(nullptr, n_mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED)
        throw std::runtime_error("no memory for " + std::to_string(n_bytes) + " bytes: " + std::strerror(errno));
    void *start = mapped_;
    size_t space = n_mapped_;
    std::align(kHugePage, n_pages * kHugePage, start, space);
    madvise(start, n_pages * kHugePage, MADV_HUGEPAGE); // advice: without it the figures are lower, not wrong
    rest_ = {static_cast<std::byte *>(start), n_pages * kHugePage};
    fill_with_noise(rest_);
}

Arena::~Arena() {
    munmap(mapped_, n_mapped_);
}

std::span<std::byte> Arena::take(size_t n_bytes) {
    const size_t n_taken = (n_bytes + 63) / 64 * 64;
    if (n_taken > rest_.size())
        throw std::length_error(std::to_string(n_bytes) + " bytes are asked of an arena that has " +
                                std::to_string(rest_.size()) + " left");
    const std::span<std::byte> taken = rest_.first(n_bytes);
    rest_ = rest_.subspan(n_taken);
    return taken;
}

double Arena::huge_share() const {
    std::ifstream smaps("/proc/self/smaps");
    const auto begin = reinterpret_cast<uintptr_t>(mapped_), end = begin + n_mapped_;
    uint64_t n_resident_kb = 0, n_huge_kb = 0;
    bool inside = false;
    for (std::string line; std::getline(smaps, line);) {
        uintptr_t from = 0, to = 0;
        uint64_t kb = 0;
        // The kernel may have merged the mapping with its neighbours, or split it.
        if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2)
            inside = from < end && to > begin;
        else if (inside && std::sscanf(line.c_str(), "Rss: %" SCNu64, &kb) == 1)
            n_resident_kb += kb;
        else if (inside && std::sscanf(line.c_str(), "AnonHugePages: %" SCNu64, &kb) == 1)
            n_huge_kb += kb;
    }
    return n_resident_kb ? static_cast<double>(n_huge_kb) / static_cast<double>(n_resident_kb) : -1;
}

size_t n_rotated_copies(size_t n_bytes) {
    size_t cache = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    cache = static_cast<size_t>(std::max(sysconf(_SC_LEVEL3_CACHE_SIZE), 0L));
#endif
    const size_t enough = std::max(size_t(1) << 30, 4 * cache);
    return std::max<size_t>(enough / std::max<size_t>(n_bytes, 1) + 1, 2);
}

} // namespace bench
