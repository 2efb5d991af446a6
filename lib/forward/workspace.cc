// Sizes of a step, and the buffers that follow from them.
#include "forward/workspace.h"

#include "numeric/rows.h"

#include <algorithm>

namespace ds41 {

namespace {

// Sizes that follow the context grow in steps, so that not every token of a short sequence moves its buffers.
std::int64_t in_steps_of(std::int64_t step, std::int64_t n) {
    return (n + step - 1) / step * step;
}

} // namespace

StepSizes plan_step(const Model &model, std::int64_t n_tokens, std::int64_t end_pos, std::int64_t rank_end) {
    const Config &c = model.config();
    std::int64_t n_groups = 0; // of the layers with the smallest ratio: one width serves all layers of a step
    for (int layer = 0; layer < c.n_layers_total(); ++layer)
        if (const int ratio = c.role(layer).ratio; ratio > 0)
            n_groups = std::max(n_groups, groups_among(std::max(end_pos, rank_end), ratio));

    StepSizes sizes;
    sizes.n_tokens = static_cast<std::int32_t>(n_tokens);
    sizes.n_tile = static_cast<std::int32_t>(std::min<std::int64_t>(n_tokens, model.n_tile()));
    sizes.n_group_slots = static_cast<std::int32_t>(std::min<std::int64_t>(c.index_topk, in_steps_of(64, n_groups)));
    if (c.candidate_source_layer >= 0) {
        const std::int64_t n_blocks = (n_groups + c.candidate_block_size - 1) / c.candidate_block_size;
        sizes.n_block_slots =
            static_cast<std::int32_t>(std::min<std::int64_t>(c.candidate_topk_blocks, in_steps_of(64, n_blocks)));
    }
    sizes.stages.n_tile_tokens = sizes.n_tile;
    sizes.stages.topk_rule = model.topk_rule();
    sizes.stages.n_groups = in_steps_of(1024, n_groups);
    sizes.stages.n_group_slots = sizes.n_group_slots;
    sizes.stages.n_window_rows = std::min<std::int64_t>(c.window_size, in_steps_of(64, end_pos));
    return sizes;
}

std::array<std::size_t, Workspace::kBufferCount> Workspace::buffer_bytes(const Config &c, const StepSizes &sizes) {
    const auto tokens = static_cast<std::size_t>(sizes.n_tokens);
    const auto tile = static_cast<std::size_t>(sizes.n_tile);
    const bool indexed = sizes.n_group_slots > 0;
    const auto index_heads = indexed ? static_cast<std::size_t>(c.index_n_heads) : 0;
    std::array<std::size_t, kBufferCount> bytes{};
    bytes[kWindowNew] = tokens * window_row_bytes(c.head_dim);
    bytes[kGroups] = tokens * static_cast<std::size_t>(sizes.n_group_slots) * sizeof(std::int32_t);
    bytes[kBlocks] = tokens * static_cast<std::size_t>(sizes.n_block_slots) * sizeof(std::int32_t);
    bytes[kQr] = tile * static_cast<std::size_t>(c.q_lora_rank) * sizeof(Bf16);
    bytes[kQ] = tile * static_cast<std::size_t>(c.q_width()) * sizeof(Bf16);
    bytes[kO] = bytes[kQ];
    bytes[kIndexQ] = tile * index_heads * index_key_row_bytes(c.index_head_dim);
    bytes[kIndexWeights] = tile * index_heads * sizeof(Bf16);
    return bytes;
}

std::size_t Workspace::n_bytes() const {
    std::size_t sum = 0;
    for (const auto &block : blocks_) sum += block ? block->n_bytes() : 0;
    return sum;
}

Workspace Workspace::grown_for(const Config &config, const Memory &memory, const StepSizes &sizes) const {
    const auto wanted = buffer_bytes(config, sizes);
    Workspace grown;
    for (std::size_t i = 0; i < kBufferCount; ++i)
        if (wanted[i] > (blocks_[i] ? blocks_[i]->n_bytes() : 0))
            grown.blocks_[i] = std::make_shared<const Block>(memory, wanted[i]);
    return grown;
}

void Workspace::adopt(Workspace &&grown) noexcept {
    for (std::size_t i = 0; i < kBufferCount; ++i)
        if (grown.blocks_[i]) blocks_[i] = std::move(grown.blocks_[i]);
}

} // namespace ds41
