// What one sequence keeps in every layer, and how it grows. Layers advance one by one, when a step has run them.
#pragma once

#include "model/model.h"
#include "sequence/paged_rows.h"

#include <atomic>
#include <memory>
#include <vector>

namespace ds41 {

// Bytes by kind; what ds41_memory and ds41_seq_get_bytes report.
struct SequenceBytes {
    std::uint64_t window = 0, compressed = 0, index_keys = 0, group_state = 0;

    std::uint64_t total() const { return window + compressed + index_keys + group_state; }
    void add(const SequenceBytes &other) {
        window += other.window;
        compressed += other.compressed;
        index_keys += other.index_keys;
        group_state += other.group_state;
    }
};

class Sequence {
public:
    explicit Sequence(std::shared_ptr<const Model> model);

    struct LayerState {
        std::int64_t position = 0; // tokens seen; rows at or beyond what it stands for are leftovers
        PagedRows window;          // packed fp8, slot position % window_size; grows up to window_size rows
        PagedRows compressed;      // kv sources: packed fp4, one per complete group
        PagedRows index_keys;      // kv sources that are index sources: packed fp4, one per complete group
        Block group_state;         // kv sources of ratio > 1: f32 [2][ratio][head_dim], kv and gate products of the
                                   // incomplete group by position % ratio; slots from position % ratio on are leftovers
    };

    const Model &model() const { return *model_; }
    LayerState &layer(int layer) { return layers_[static_cast<std::size_t>(layer)]; }
    const LayerState &layer(int layer) const { return layers_[static_cast<std::size_t>(layer)]; }

    // Memory for the first n_positions tokens of a layer. On failure what was there stays.
    void reserve(int layer, std::int64_t n_positions);
    void reset() noexcept;
    SequenceBytes bytes() const;

    // What reserve() of a layer takes.
    static SequenceBytes bytes_for(const Model &model, int layer, std::int64_t n_positions);

    // A step claims its sequences. Whatever ends the step (another claim, a reset, the end of the handle) takes a new
    // number, so that the step sees it. Atomic, because a context still asks about its last step's sequences when
    // another thread has taken them over.
    std::uint64_t claim() noexcept { return claim_.fetch_add(1, std::memory_order_relaxed) + 1; }
    std::uint64_t current_claim() const noexcept { return claim_.load(std::memory_order_relaxed); }

    // Calls visit(PagedRows &) for all rows of which the device's tables lack pages.
    template <typename Visit> void visit_unwritten(Visit &&visit) {
        for (LayerState &state : layers_)
            for (PagedRows *rows : {&state.window, &state.compressed, &state.index_keys})
                if (rows->n_unwritten() > 0) visit(*rows);
    }

    // The handle is gone: free all pages now. A step may keep the empty object until it is replaced.
    void close() noexcept;

private:
    std::shared_ptr<const Model> model_;
    std::vector<LayerState> layers_;
    std::atomic<std::uint64_t> claim_{0};
};

} // namespace ds41
