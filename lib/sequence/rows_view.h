// Where a packed row lies: pages of kPageRows rows, found through a table of page addresses. Everything that reads or
// writes cache rows, on any backend, uses this address and no other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ds41 {

// 64 compressed rows are 18 KiB: a short sequence takes kilobytes, and a page table for 1M rows is 128 KiB.
constexpr int kPageRows = 64;

struct RowsView {
    std::uint8_t *const *pages; // [rows / kPageRows, rounded up]
    std::size_t row_bytes;

    std::uint8_t *row(std::int64_t index) const {
        return pages[index / kPageRows] + static_cast<std::size_t>(index % kPageRows) * row_bytes;
    }
};

} // namespace ds41
