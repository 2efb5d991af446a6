// Bounds of every member of a configuration. They are wide: they keep products inside 63 bits and refuse nonsense, and
// say nothing about what is fast.
#include "error.h"
#include "model/config.h"
#include "model/rope_tables.h"
#include "numeric/rows.h"

namespace ds41 {

namespace {

constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;   // one dimension
constexpr std::int64_t kMaxProduct = std::int64_t{1} << 30; // heads times width, groups times rank
constexpr std::int64_t kMaxCount = std::int64_t{1} << 30;   // positions, selected rows, blocks

void check_range(const char *name, std::int64_t value, std::int64_t low, std::int64_t high) {
    DS41_CHECK(value >= low && value <= high, DS41_STATUS_INVALID_CONFIG,
               "config.%s is %lld, need a value in [%lld, %lld]", name, static_cast<long long>(value),
               static_cast<long long>(low), static_cast<long long>(high));
}

void check_multiple(const char *name, int value, int of) {
    DS41_CHECK(value % of == 0, DS41_STATUS_INVALID_CONFIG, "config.%s is %d, need a multiple of %d", name, value, of);
}

void check_positive(const char *name, float value) {
    DS41_CHECK(is_finite(value) && value > 0.0f, DS41_STATUS_INVALID_CONFIG,
               "config.%s is %g, need a finite value greater than 0", name, static_cast<double>(value));
}

void check_product(const char *a, std::int64_t value_a, const char *b, std::int64_t value_b) {
    DS41_CHECK(value_a * value_b <= kMaxProduct, DS41_STATUS_INVALID_CONFIG,
               "config.%s * config.%s is %lld, need at most %lld", a, b, static_cast<long long>(value_a * value_b),
               static_cast<long long>(kMaxProduct));
}

// Bases far below 1, or factors, can make angles that are no numbers; outputs would be NaN without a word.
void check_angles(const char *name, float value, const RopeTable &table, const ds41_config &c) {
    DS41_CHECK(table.finite_up_to(c.max_seq_len), DS41_STATUS_INVALID_CONFIG,
               "config.%s is %g, need a value that gives finite angles up to max_seq_len, %lld", name,
               static_cast<double>(value), static_cast<long long>(c.max_seq_len));
}

} // namespace

void validate_sizes(const ds41_config &c) {
    check_range("n_layers", c.n_layers, 1, DS41_MAX_LAYERS);
    check_range("n_compress_ratios", c.n_compress_ratios, c.n_layers, DS41_MAX_LAYERS);
    check_range("n_kv_source_layers", c.n_kv_source_layers, 0, c.n_layers);
    check_range("n_index_source_layers", c.n_index_source_layers, 0, c.n_layers);
    check_range("candidate_source_layer", c.candidate_source_layer, -1, c.n_layers - 1);

    check_range("dim", c.dim, 1, kMaxWidth);
    check_range("n_heads", c.n_heads, 1, kMaxWidth);
    check_range("head_dim", c.head_dim, 1, kMaxWidth);
    check_multiple("head_dim", c.head_dim, kWindowBlock); // which compressed rows divide too
    check_range("rope_head_dim", c.rope_head_dim, 2, c.head_dim);
    check_multiple("rope_head_dim", c.rope_head_dim, 2);
    check_range("q_lora_rank", c.q_lora_rank, 1, kMaxWidth);
    check_range("o_groups", c.o_groups, 1, c.n_heads);
    DS41_CHECK(c.n_heads % c.o_groups == 0, DS41_STATUS_INVALID_CONFIG,
               "config.n_heads is %d, need a multiple of o_groups, %d", c.n_heads, c.o_groups);
    check_range("o_lora_rank", c.o_lora_rank, 1, kMaxWidth);
    check_range("window_size", c.window_size, 1, kMaxWidth);
    check_product("n_heads", c.n_heads, "head_dim", c.head_dim);
    check_product("o_groups", c.o_groups, "o_lora_rank", c.o_lora_rank);

    check_positive("norm_eps", c.norm_eps);
    check_positive("rope_theta", c.rope_theta);
    DS41_CHECK(c.reserved == 0, DS41_STATUS_INVALID_ARGUMENT, "config.reserved is %d, need 0", c.reserved);
    check_range("max_seq_len", c.max_seq_len, 1, kMaxCount);
    check_angles("rope_theta", c.rope_theta, RopeTable::plain_of(c), c);

    // What only compressed layers use may be left at zero by a model that has none, but not at nonsense.
    bool compressed = false;
    for (int layer = 0; layer < c.n_compress_ratios; ++layer) compressed = compressed || c.compress_ratios[layer] != 0;
    const int least = compressed ? 1 : 0, least_blocks = c.candidate_source_layer >= 0 ? 1 : 0;
    check_range("index_n_heads", c.index_n_heads, least, kMaxWidth);
    check_range("index_head_dim", c.index_head_dim, least, kMaxWidth);
    check_multiple("index_head_dim", c.index_head_dim, kIndexKeyBlock);
    check_product("index_n_heads", c.index_n_heads, "index_head_dim", c.index_head_dim);
    check_range("index_topk", c.index_topk, least, kMaxCount);
    check_range("candidate_topk_blocks", c.candidate_topk_blocks, least_blocks, kMaxCount);
    check_range("candidate_block_size", c.candidate_block_size, least_blocks, kMaxCount);
    check_range("original_seq_len", c.original_seq_len, 0, kMaxCount);
    if (!compressed) return;
    DS41_CHECK(c.rope_head_dim <= c.index_head_dim, DS41_STATUS_INVALID_CONFIG,
               "config.rope_head_dim is %d, need at most index_head_dim, %d", c.rope_head_dim, c.index_head_dim);
    check_positive("compress_rope_theta", c.compress_rope_theta);
    if (c.original_seq_len > 0) {
        check_positive("rope_factor", c.rope_factor);
        check_positive("beta_fast", c.beta_fast);
        check_positive("beta_slow", c.beta_slow);
        // The correction range divides by log(theta).
        DS41_CHECK(c.compress_rope_theta != 1.0f, DS41_STATUS_INVALID_CONFIG,
                   "config.compress_rope_theta is 1, need another value with YaRN");
    }
    check_angles("rope_factor", c.rope_factor, RopeTable::compressed_of(c), c);
}

} // namespace ds41
