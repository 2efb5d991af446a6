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
        if (!memory_->is_host()) grow_device_table();
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
    // Room in the device's copy of the table: entries that steps in flight read stay as they are. It seldom moves.
    void grow_device_table() {
        const std::size_t n_bytes = table_.size() * sizeof table_[0];
        if (n_bytes <= device_table_.n_bytes()) return;
        constexpr std::size_t kEntries = 64;
        const std::size_t wanted = std::max(4 * n_bytes, kEntries * sizeof table_[0]);
        const std::size_t most = page_count(max_rows_) * sizeof table_[0];
        device_table_ = Block(*memory_, std::max(n_bytes, std::min(wanted, most)));
        n_written_ = 0;
    }

    // Pages that the device's table has room for: fewer than there are when it could not grow.
    std::size_t n_device_pages() const {
        return std::min(table_.size(), device_table_.n_bytes() / sizeof(std::uint8_t *));
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
    std::size_t n_written_ = 0; // entries that stand in it, or will when what is enqueued is done
};

} // namespace ds41
