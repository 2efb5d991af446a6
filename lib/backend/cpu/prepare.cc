// Memory of the stages: for a tile of tokens, and for each thread. Only the index scores grow with the context.
#include "backend/cpu/stages.h"

#include "backend/backend.h"
#include "error.h"
#include "numeric/rows.h"

#include <algorithm>
#include <cstdlib>

namespace ds41 {

using namespace cpu;

namespace {

const Target &target_for(const StageOptions &options) {
    if (options.cpu_target) return choose_target(options.cpu_target, "the CPU target");
    const char *name = std::getenv("DS41_CPU_TARGET");
    return choose_target(name && *name ? name : nullptr, "environment variable DS41_CPU_TARGET");
}

std::size_t size_of(std::int64_t n) {
    return static_cast<std::size_t>(n);
}

// Bytes of n_groups groups of activations in any form: float blocks, or codes with scales and sums, which take less but
// where a block of columns is mostly padding.
std::int64_t activation_bytes(std::int64_t k, std::int64_t n_tokens, std::int64_t n_groups) {
    return n_groups * n_tokens * n_col_blocks(k) * kBlockCols * static_cast<std::int64_t>(sizeof(float));
}
static_assert(kQ8Block * (1 + 1) + 4 <= kQ8Block * sizeof(float));

std::size_t in_lines(std::int64_t n_bytes) {
    return size_of((n_bytes + 63) / 64 * 64);
}

std::int64_t padded_heads(const Config &c) {
    return (std::int64_t{c.n_heads} + 3) / 4 * 4;
}

// A row of floats ends before the next begins: rows whose distance is a power of two share their cache sets.
std::int64_t stride_rows(const Config &c) {
    return c.head_dim + 16;
}

std::int64_t stride_weights(std::int64_t n_rows) {
    return (n_rows + kMostLanes - 1) / kMostLanes * kMostLanes;
}

// A tile of tokens on its way to pairs of bf16: rows, scales, a block of floats.
std::int64_t quantising_bytes(std::int64_t k) {
    return kTileTokens * pairs_of(k, 1) * static_cast<std::int64_t>(sizeof(Bf16)) + padded_cols(k) +
           kBlockCols * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t widest_input(const Config &c) {
    return std::max({std::int64_t{c.dim}, std::int64_t{c.q_lora_rank}, c.o_lora_width(), std::int64_t{c.head_dim}});
}

} // namespace

CpuStages::CpuStages(const StageOptions &options) : CpuStages(options, target_for(options)) {}

CpuStages::CpuStages(const StageOptions &options, const Target &target)
    : activations_(activation_kernels(target.bit)), dot_(dot_kernels(target.bit)), q2_k_(q2_k_kernels(target.bit)),
      pairs_(target.pairs), attend_(attend_kernels(target.bit)), score_(score_kernels(target.bit)), pool_(options) {}

CpuStages::Lengths CpuStages::lengths(const Config &c, const StageSizes &sizes) const noexcept {
    const std::int64_t tile = sizes.n_tile_tokens;
    const std::int64_t widest = std::max(widest_input(c), c.o_group_width());
    const std::int64_t n_rows = sizes.n_window_rows + sizes.n_group_slots;
    const std::int64_t n_slots = pool_.n_slots();
    const std::int64_t n_pairs = c.rope_head_dim / 2;
    constexpr std::int64_t kFloat = sizeof(float);

    const std::int64_t dot = tile * (pairs_ ? pairs_->most_bf16_rows : kChunkRows) * kFloat +
                             static_cast<std::int64_t>(dot_scratch_floats(widest, tile)) * kFloat;
    const std::int64_t attention =
        (n_rows * stride_rows(c) + 2 * padded_heads(c) * c.head_dim + padded_heads(c) * stride_weights(n_rows)) *
        kFloat;
    const std::int64_t scoring =
        kKeyTile * (c.index_head_dim + std::int64_t{c.index_head_dim} / kIndexKeyBlock * kFloat);

    Lengths n{};
    n[kX0] =
        size_of(std::max({activation_bytes(widest_input(c), tile, 1), activation_bytes(c.o_group_width(), tile, 1),
                          activation_bytes(c.o_group_width(), std::min<std::int64_t>(tile, kFewTokens), c.o_groups)}));
    n[kX1] = size_of(activation_bytes(c.dim, tile, 1));
    n[kExponents] = size_of(2 * tile * c.o_groups) * sizeof(int);
    n[kAngles] = size_of(tile * 2 * n_pairs * kFloat);
    n[kRows] =
        size_of(tile * std::max({c.o_lora_width(), std::int64_t{c.head_dim} + c.index_head_dim, c.index_q_width()})) *
        sizeof(Bf16);
    n[kSums] = size_of(tile * 2 * c.head_dim * kFloat);
    n[kScratch] = size_of(n_slots) * in_lines(std::max({dot, attention, scoring, quantising_bytes(widest)}));
    if (sizes.n_groups > 0) {
        const std::int64_t queries = std::min<std::int64_t>(tile, kScoreTokens);
        n[kQueries] = size_of(queries) * query_bytes(c);
        n[kScores] = size_of(queries * sizes.n_groups) * sizeof(std::uint16_t);
        n[kStretches] = size_of(queries * stretches_of(sizes.n_groups)) * sizeof(std::int16_t);
        n[kBest] = size_of(sizes.n_groups) * sizeof(std::uint16_t); // blocks may hold one group each
        if (sizes.topk_rule == DS41_TOPK_TORCH_CPU)
            n[kRanking] = size_of(sizes.n_groups) * (sizeof(float) + sizeof(Scored));
    }
    return n;
}

void CpuStages::prepare(const Config &config, const StageSizes &sizes) {
    const Lengths wanted = lengths(config, sizes);
    pool_.start();
    // Each only grows: a failure half way leaves room for whatever there was room for before.
    for (std::size_t i = 0; i < kBufferCount; ++i) blocks_[i].ensure(host_memory(), wanted[i]);
    scratch_bytes_ = blocks_[kScratch].n_bytes() / size_of(pool_.n_slots());
    n_group_room_ = std::max(n_group_room_, sizes.n_groups);
    n_row_room_ = std::max(n_row_room_, sizes.n_window_rows + sizes.n_group_slots);
}

std::size_t CpuStages::n_bytes() const noexcept {
    std::size_t sum = 0;
    for (const Block &block : blocks_) sum += block.n_bytes();
    return sum;
}

std::size_t CpuStages::needed_bytes(const Config &config, const StageSizes &sizes) const noexcept {
    std::size_t sum = 0;
    for (const std::size_t n : lengths(config, sizes)) sum += n;
    return sum;
}

CpuStages::AttendScratch CpuStages::attend_scratch(const Config &c, int slot) const {
    AttendScratch s{};
    s.stride_rows = stride_rows(c);
    s.stride_weights = stride_weights(n_row_room_);
    s.q = reinterpret_cast<float *>(scratch(slot));
    s.sums = s.q + padded_heads(c) * c.head_dim;
    s.weights = s.sums + padded_heads(c) * c.head_dim;
    s.rows = s.weights + padded_heads(c) * s.stride_weights;
    return s;
}

std::int32_t cpu_tile() noexcept {
    try {
        const Target &target = target_for({});
        // Products that are this fast wait for weights otherwise.
        if (target.pairs && target.pairs->most_bf16_rows > kChunkRows) return 4 * kHostTile;
    } catch (const Error &) {
        // Of a name that no target has: creating a context says so.
    }
    return kHostTile;
}

std::unique_ptr<Stages> create_cpu_stages(const StageOptions &options) {
    return std::make_unique<CpuStages>(options);
}

} // namespace ds41
