// Packed rows of many sequences for modes that time a stage alone, in one piece of memory of 2 MB pages: enough
// sequences that, taken in turn, none is found in a cache.
#pragma once

#include "memory.h"
#include "noise.h"

#include "sequence/rows_view.h"

#include <algorithm>
#include <span>
#include <vector>

namespace bench {

/// How the codes and scales of rows are made up: see fill_rows().
struct RowForm {
    size_t row_bytes, n_codes;
    uint8_t keep, set, scale;
};

/// The rows of one sequence.
class CachedRows {
public:
    /// A page of noise serves 64: noise is dear.
    CachedRows(Arena &arena, const RowForm &form, int64_t n_rows, uint64_t seed) : form_(form) {
        const size_t page_bytes = ds41::kPageRows * form.row_bytes;
        const auto n_pages = static_cast<size_t>((n_rows + ds41::kPageRows - 1) / ds41::kPageRows);
        bytes_ = arena.take(n_bytes(form, n_rows));
        Noise noise(seed);
        for (size_t page = 0; page < n_pages; ++page) {
            const std::span<std::byte> here = bytes_.subspan(page * page_bytes, page_bytes);
            if (page % 64 == 0)
                fill_rows(noise, here.data(), ds41::kPageRows, form.row_bytes, form.n_codes, form.keep, form.set,
                          form.scale);
            else
                std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(page / 64 * 64 * page_bytes), page_bytes,
                            here.begin());
            pages_.push_back(reinterpret_cast<uint8_t *>(here.data()));
        }
    }

    static size_t n_bytes(const RowForm &form, int64_t n_rows) {
        const auto n_pages = static_cast<size_t>((n_rows + ds41::kPageRows - 1) / ds41::kPageRows);
        return (n_pages * ds41::kPageRows * form.row_bytes + 63) / 64 * 64;
    }

    ds41::RowsView view() const { return {pages_.data(), form_.row_bytes}; }
    std::span<const std::byte> bytes() const { return bytes_; }

private:
    RowForm form_;
    std::span<std::byte> bytes_;
    std::vector<uint8_t *> pages_;
};

} // namespace bench
