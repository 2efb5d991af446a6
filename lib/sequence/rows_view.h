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
    std::int64_t n_rows = 0;                     // that there are pages for

    std::uint8_t *row(std::int64_t index) const {
        return pages[index / kPageRows] + static_cast<std::size_t>(index % kPageRows) * row_bytes;
    }
};

} // namespace ds41
