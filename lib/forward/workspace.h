// Memory that a context works in: what one step's layers hand each other, and what one tile of tokens needs. Sized by
// the step, not by the configured maximum; it grows and never shrinks.
#pragma once

#include "model/model.h"

#include <array>
#include <memory>

namespace ds41 {

struct StepSizes {
    std::int32_t n_tokens = 0;
    std::int32_t n_tile = 0;
    std::int32_t n_group_slots = 0; // selected groups per token
    std::int32_t n_block_slots = 0; // kept candidate blocks per token
    StageSizes stages;
};

// For a step of n_tokens whose longest sequence ends at end_pos; rank_end (or end_pos) bounds what the torch rule
// ranks.
StepSizes plan_step(const Model &model, std::int64_t n_tokens, std::int64_t end_pos, std::int64_t rank_end);

class Workspace {
public:
    enum Buffer {
        kWindowNew,    // [n_tokens] packed window rows. Written by project, read by attend, then committed: one layer.
        kGroups,       // i32 [n_tokens, n_group_slots]. Written by an index source, read up to the next one.
        kBlocks,       // i32 [n_tokens, n_block_slots]. Written by the candidate source, read to the end of the step.
        kQr,           // bf16 [n_tile, q_lora_rank]. One tile, as are all below.
        kQ,            // bf16 [n_tile, n_heads, head_dim]
        kO,            // bf16 [n_tile, n_heads, head_dim]
        kIndexQ,       // [n_tile, index_n_heads] packed index queries
        kIndexWeights, // bf16 [n_tile, index_n_heads]
        kBufferCount
    };

    template <typename T> T *get(Buffer buffer) const { return blocks_[buffer] ? blocks_[buffer]->as<T>() : nullptr; }
    const std::shared_ptr<const Block> &share(Buffer buffer) const { return blocks_[buffer]; }
    std::size_t n_bytes() const;

    static std::array<std::size_t, kBufferCount> buffer_bytes(const Config &config, const StepSizes &sizes);

    // A workspace that holds what `sizes` needs beyond this one; adopt() then takes it over. Apart, so that a step in
    // flight keeps its buffers when the next one finds no memory.
    Workspace grown_for(const Config &config, const Memory &memory, const StepSizes &sizes) const;
    void adopt(Workspace &&grown) noexcept;

private:
    std::array<std::shared_ptr<const Block>, kBufferCount> blocks_; // a graph keeps those that it works in
};

} // namespace ds41
