// Packed rows of one kind in pages that are added as the rows come.
#pragma once

#include "backend/memory.h"
#include "sequence/rows_view.h"

#include <algorithm>
#include <vector>

namespace ds41 {

class PagedRows {
public:
    // Of `max_rows` rows, which may be far more than will ever come: nothing is allocated here.
    PagedRows(const Memory &memory, std::size_t row_bytes, std::int64_t max_rows)
        : memory_(&memory), row_bytes_(row_bytes), max_rows_(max_rows) {}

    // Pages for the first n_rows rows. On failure the pages that were there, and some new ones, stay.
    void reserve(std::int64_t n_rows) {
        const std::size_t n_pages = page_count(n_rows);
        blocks_.reserve(n_pages);
        table_.reserve(n_pages);
        while (blocks_.size() < n_pages) {
            blocks_.emplace_back(*memory_, page_bytes(blocks_.size()));
            table_.push_back(blocks_.back().as<std::uint8_t>());
        }
        if (!memory_->is_host()) upload_table();
    }

    RowsView view() const {
        const auto n_rows = std::min(static_cast<std::int64_t>(blocks_.size()) * kPageRows, max_rows_);
        return {table_.data(), row_bytes_, device_table_.as<std::uint8_t *>(), n_rows};
    }

    std::size_t n_bytes() const { return bytes_for(static_cast<std::int64_t>(blocks_.size()) * kPageRows); }

    // What reserve(n_rows) makes the pages take in all.
    std::size_t bytes_for(std::int64_t n_rows) const {
        const std::size_t n_pages = page_count(n_rows);
        return n_pages == 0 ? 0 : (n_pages - 1) * kPageRows * row_bytes_ + page_bytes(n_pages - 1);
    }

private:
    // The device's copy of the table: entries that steps in flight read stay as they are.
    void upload_table() {
        if (n_uploaded_ == table_.size()) return;
        const std::size_t n_bytes = table_.size() * sizeof table_[0];
        if (n_bytes > device_table_.n_bytes()) {
            device_table_ = Block(*memory_, 2 * n_bytes);
            n_uploaded_ = 0;
        }
        memory_->upload(device_table_.as<std::uint8_t *>() + n_uploaded_, table_.data() + n_uploaded_,
                        (table_.size() - n_uploaded_) * sizeof table_[0]);
        n_uploaded_ = table_.size();
    }

    static std::size_t page_count(std::int64_t n_rows) {
        return static_cast<std::size_t>((n_rows + kPageRows - 1) / kPageRows);
    }
    // The last page of a ring is as small as the ring.
    std::size_t page_bytes(std::size_t page) const {
        const std::int64_t rows =
            std::min<std::int64_t>(kPageRows, max_rows_ - static_cast<std::int64_t>(page) * kPageRows);
        return static_cast<std::size_t>(rows) * row_bytes_;
    }

    const Memory *memory_;
    std::size_t row_bytes_;
    std::int64_t max_rows_;
    std::vector<Block> blocks_;
    std::vector<std::uint8_t *> table_;
    Block device_table_;
    std::size_t n_uploaded_ = 0; // entries that stand in it
};

} // namespace ds41
