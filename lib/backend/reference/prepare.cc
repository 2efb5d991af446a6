// The reference's scratch memory: for one token at a time, so that only the scores grow with the context.
#include "backend/reference/stages.h"

#include <algorithm>

namespace ds41 {

ReferenceStages::Lengths ReferenceStages::lengths(const Config &c, const StageSizes &sizes) noexcept {
    const auto widest_input = std::max({std::int64_t{c.dim}, std::int64_t{c.q_lora_rank}, c.o_group_width(),
                                        c.o_lora_width(), std::int64_t{c.head_dim}});
    const auto widest_row = std::max({std::int64_t{c.head_dim}, c.o_lora_width(), c.index_q_width(), widest_input});
    const std::int64_t n_rows = std::int64_t{c.window_size} + sizes.n_group_slots;
    Lengths n{};
    n.linear = static_cast<std::size_t>(widest_input);
    n.row = static_cast<std::size_t>(widest_row);
    n.scores = static_cast<std::size_t>(sizes.n_groups);
    n.rows = static_cast<std::size_t>(n_rows * c.head_dim);
    n.weights = static_cast<std::size_t>(n_rows);
    n.sums = static_cast<std::size_t>(c.head_dim);
    return n;
}

std::size_t ReferenceStages::bytes_of(const Lengths &n) noexcept {
    const std::size_t blocks = n.linear / kQ8Block + 1;
    return n.linear * (sizeof(float) + 1) + blocks * (sizeof(float) + sizeof(Q8Block)) + 2 * n.row * sizeof(Bf16) +
           n.scores * (sizeof(float) + sizeof(Scored)) + (n.rows + n.weights + n.sums) * sizeof(float);
}

void ReferenceStages::prepare(const Config &config, const StageSizes &sizes) {
    const Lengths wanted = lengths(config, sizes);
    const Lengths n = {std::max(held_.linear, wanted.linear),   std::max(held_.row, wanted.row),
                       std::max(held_.scores, wanted.scores),   std::max(held_.rows, wanted.rows),
                       std::max(held_.weights, wanted.weights), std::max(held_.sums, wanted.sums)};
    const std::size_t blocks = n.linear / kQ8Block + 1;
    // Each vector only grows, so a failure half way leaves room for whatever there was room for before.
    buffers_.linear.values.resize(n.linear);
    buffers_.linear.codes.resize(n.linear);
    buffers_.linear.scales.resize(blocks);
    buffers_.linear.q8.resize(blocks);
    buffers_.row.resize(n.row);
    buffers_.second.resize(n.row);
    buffers_.scores.resize(n.scores);
    buffers_.ranking.resize(n.scores);
    buffers_.rows.resize(n.rows);
    buffers_.weights.resize(n.weights);
    buffers_.sums.resize(n.sums);
    held_ = n;
}

std::size_t ReferenceStages::n_bytes() const noexcept {
    return held_.linear ? bytes_of(held_) : 0;
}

std::size_t ReferenceStages::needed_bytes(const Config &config, const StageSizes &sizes) const noexcept {
    return bytes_of(lengths(config, sizes));
}

} // namespace ds41
