// Where a packed row lies: pages of kPageRows rows, found through a table of page addresses. Everything that reads or
// writes cache rows, on any backend, uses this address and no other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds41 {

// 64 compressed rows are 18 KiB: a short sequence takes kilobytes, and a page table for 1M rows is 128 KiB.
constexpr int kPageRows = 64;

struct RowsView {
    std::uint8_t *const *pages = nullptr; // [n_rows / kPageRows, rounded up], on the host
    std::size_t row_bytes = 0;
    std::uint8_t *const *device_pages = nullptr; // the same table in the device's memory; null where the host computes

    std::uint8_t *row(std::int64_t index) const {
        return pages[index / kPageRows] + static_cast<std::size_t>(index % kPageRows) * row_bytes;
    }
};

// An entry that the device's copy of a table lacks.
struct PageWrite {
    std::uint8_t **entry; // in the device's memory
    std::uint8_t *page;
};

} // namespace ds41
