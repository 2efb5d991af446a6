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
        if (!memory_->is_host() && n_pages > 0) make_device_table();
        if (n_pages > blocks_.capacity()) {
            const std::size_t room = std::max(n_pages, 2 * blocks_.capacity());
            blocks_.reserve(room);
            table_.reserve(room);
        }
        while (blocks_.size() < n_pages) {
            blocks_.emplace_back(*memory_, page_bytes(blocks_.size()));
            table_.push_back(blocks_.back().as<std::uint8_t>());
        }
    }

    // Entries that the device's table lacks; whoever brings them there says so.
    std::size_t n_unwritten() const { return n_device_pages() - n_written_; }
    void append_unwritten(std::vector<PageWrite> &writes) const {
        for (std::size_t i = n_written_; i < n_device_pages(); ++i)
            writes.push_back({device_table_.as<std::uint8_t *>() + i, table_[i]});
    }
    void note_written() noexcept { n_written_ = n_device_pages(); }
    // All of them at once, for many; waits.
    void write_now() {
        memory_->upload(device_table_.as<std::uint8_t *>() + n_written_, table_.data() + n_written_,
                        n_unwritten() * sizeof table_[0]);
        note_written();
    }

    RowsView view() const { return {table_.data(), row_bytes_, device_table_.as<std::uint8_t *>()}; }

    std::size_t n_bytes() const { return bytes_for(static_cast<std::int64_t>(blocks_.size()) * kPageRows); }

    // What reserve(n_rows) makes the pages take in all.
    std::size_t bytes_for(std::int64_t n_rows) const {
        const std::size_t n_pages = page_count(n_rows);
        return n_pages == 0 ? 0 : (n_pages - 1) * kPageRows * row_bytes_ + page_bytes(n_pages - 1);
    }

private:
    // With room for all rows at once (128 KiB for a million): steps in flight, and graphs, read it where it is.
    void make_device_table() {
        if (device_table_.n_bytes() == 0) device_table_ = Block(*memory_, page_count(max_rows_) * sizeof table_[0]);
    }

    std::size_t n_device_pages() const { return device_table_.n_bytes() > 0 ? table_.size() : 0; }

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
    std::size_t n_written_ = 0; // entries that stand in it, or will when what is enqueued is done
};

} // namespace ds41
