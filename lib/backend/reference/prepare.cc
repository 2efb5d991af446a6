// The reference's scratch memory: for one token at a time, so that only the scores grow with the context.
#include "backend/reference/stages.h"

#include <algorithm>

namespace ds41 {

ReferenceStages::Lengths ReferenceStages::lengths(const Config &c, const StageSizes &sizes) noexcept {
    const auto widest_input = std::max({std::int64_t{c.dim}, std::int64_t{c.q_lora_rank}, c.o_group_width(),
                                        c.o_lora_width(), std::int64_t{c.head_dim}});
    const auto widest_row = std::max({std::int64_t{c.head_dim}, c.o_lora_width(), c.index_q_width(), widest_input});
    const std::int64_t n_rows = sizes.n_window_rows + sizes.n_group_slots;
    Lengths n{};
    n.linear = static_cast<std::size_t>(widest_input);
    n.row = static_cast<std::size_t>(widest_row);
    n.key = static_cast<std::size_t>(c.index_head_dim);
    n.scores = static_cast<std::size_t>(sizes.n_groups);
    n.rows = static_cast<std::size_t>(n_rows * c.head_dim);
    n.weights = static_cast<std::size_t>(n_rows);
    n.sums = static_cast<std::size_t>(c.head_dim);
    return n;
}

std::size_t ReferenceStages::bytes_of(const Lengths &n) noexcept {
    const std::size_t blocks = n.linear / kQ8Block + 1;
    return n.linear * (sizeof(float) + 1) + blocks * (sizeof(float) + sizeof(Q8Block)) +
           (n.row + n.key) * sizeof(Bf16) + n.scores * (sizeof(float) + sizeof(Scored)) +
           (n.rows + n.weights + n.sums) * sizeof(float);
}

void ReferenceStages::prepare(const Config &config, const StageSizes &sizes) {
    const Lengths wanted = lengths(config, sizes);
    const Lengths n = {std::max(held_.linear, wanted.linear), std::max(held_.row, wanted.row),
                       std::max(held_.key, wanted.key),       std::max(held_.scores, wanted.scores),
                       std::max(held_.rows, wanted.rows),     std::max(held_.weights, wanted.weights),
                       std::max(held_.sums, wanted.sums)};
    const std::size_t blocks = n.linear / kQ8Block + 1;
    // Each only grows, so a failure half way leaves room for whatever there was room for before; and to the size asked
    // for, which n_bytes() reports.
    const auto grow = [](auto &vector, std::size_t size) {
        vector.reserve(size);
        vector.resize(size);
    };
    grow(buffers_.linear.values, n.linear);
    grow(buffers_.linear.codes, n.linear);
    grow(buffers_.linear.scales, blocks);
    grow(buffers_.linear.q8, blocks);
    grow(buffers_.row, n.row);
    grow(buffers_.key, n.key);
    grow(buffers_.scores, n.scores);
    grow(buffers_.ranking, n.scores);
    grow(buffers_.rows, n.rows);
    grow(buffers_.weights, n.weights);
    grow(buffers_.sums, n.sums);
    held_ = n;
}

std::size_t ReferenceStages::n_bytes() const noexcept {
    return held_.linear ? bytes_of(held_) : 0;
}

std::size_t ReferenceStages::needed_bytes(const Config &config, const StageSizes &sizes) const noexcept {
    return bytes_of(lengths(config, sizes));
}

} // namespace ds41
