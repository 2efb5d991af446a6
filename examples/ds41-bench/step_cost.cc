#include "step_cost.h"

#include "backend/stages.h"
#include "model/weight_places.h"
#include "numeric/rows.h"

#include <algorithm>
#include <string_view>

namespace bench {

using namespace ds41;

namespace {

/// Bytes of the tensors of a layer that are named so, scales included.
uint64_t weight_bytes(const Config &config, int layer, ds41_dtype format,
                      std::initializer_list<std::string_view> names) {
    const LayerRole &role = config.role(layer);
    uint64_t sum = 0;
    for (const WeightPlace &place : weight_places()) {
        if (!place.is_needed(role) || std::find(names.begin(), names.end(), place.name) == names.end()) continue;
        const PlaceShape shape = place.shape(config);
        const int64_t rows = place.vector ? 1 : shape.sizes[0], cols = place.vector ? shape.sizes[0] : shape.sizes[1];
        const bool is_f32 = place.vector || place.kind(role) == PlaceKind::kFloatMatrix;
        sum += static_cast<uint64_t>(rows) * weight_row_bytes(is_f32 ? DS41_DTYPE_F32 : format, cols);
        if (!is_f32 && format == DS41_DTYPE_FP8_E4M3)
            sum += static_cast<uint64_t>((rows + kFp8WeightBlock - 1) / kFp8WeightBlock * (cols / kFp8WeightBlock));
    }
    return sum;
}

/// Groups whose keys one token scores.
int64_t scored_groups(const Config &config, const LayerRole &role, int64_t n_groups) {
    if (!role.uses_candidates) return n_groups;
    const int64_t size = config.candidate_block_size, n_blocks = (n_groups + size - 1) / size;
    const int64_t n_kept = std::min<int64_t>(n_blocks, config.candidate_topk_blocks);
    return n_kept * size - (n_blocks * size - n_groups); // the newest block, which may be short, is always kept
}

} // namespace

StageCost StepCost::all() const {
    StageCost sum;
    sum.stage = "all";
    for (const StageCost &stage : stages) {
        sum.launches += stage.launches;
        sum.requested_bytes += stage.requested_bytes;
        sum.distinct_bytes += stage.distinct_bytes;
        sum.floor_bytes += stage.floor_bytes;
        sum.microseconds += stage.microseconds;
    }
    return sum;
}

std::vector<StageCost> step_floor(const Config &config, int layer, ds41_dtype format, int64_t context, int32_t n_rows) {
    const LayerRole &role = config.role(layer);
    const auto n = static_cast<uint64_t>(n_rows);
    const auto bf16 = [&](int64_t width) { return n * static_cast<uint64_t>(width) * 2; };
    const uint64_t x = bf16(config.dim), qr = bf16(config.q_lora_rank), q = bf16(config.q_width());
    const uint64_t window_row = window_row_bytes(config.head_dim),
                   compressed_row = compressed_row_bytes(config.head_dim);
    const uint64_t key_row = index_key_row_bytes(config.index_head_dim);
    const int64_t n_groups = role.ratio > 0 ? groups_among(context, role.ratio) : 0;
    const auto n_selected = static_cast<uint64_t>(std::min<int64_t>(n_groups, config.index_topk));
    const uint64_t selection = n * n_selected * sizeof(int32_t);

    std::vector<StageCost> stages;
    const auto add = [&](const char *stage, std::initializer_list<std::string_view> weights, uint64_t others) {
        stages.push_back({stage, 0, 0, 0, weight_bytes(config, layer, format, weights) + others});
    };
    add("project", {"wq_a", "q_norm", "wq_b", "wkv", "kv_norm"}, x + qr + q + n * window_row);
    if (role.is_kv_source) {
        const bool completes = context % role.ratio == 0;
        const auto value_pair = static_cast<uint64_t>(config.head_dim) * 2 * sizeof(float);
        // The last token of a group reads what the others have left; any other leaves its own.
        const uint64_t state = completes ? static_cast<uint64_t>(role.ratio - 1) * value_pair : value_pair;
        add("compress", {"compressor_wkv", "compressor_wgate", "compressor_norm", "indexer_wk", "indexer_k_norm"},
            x + n * state + (completes ? n * (compressed_row + (role.writes_index_keys() ? key_row : 0)) : 0));
    }
    if (role.is_index_source && n_groups > 0) {
        const auto heads = static_cast<uint64_t>(config.index_n_heads);
        const uint64_t queries = n * heads * key_row + bf16(config.index_n_heads);
        add("index_query", {"indexer_wq_b", "indexer_weights_proj"}, x + qr + queries);
        const int64_t n_blocks =
            (n_groups + config.candidate_block_size - 1) / std::max(config.candidate_block_size, 1);
        const bool has_blocks = role.is_candidate_source || role.uses_candidates;
        const auto n_kept = static_cast<uint64_t>(std::min<int64_t>(n_blocks, config.candidate_topk_blocks));
        add("select", {},
            queries + n * static_cast<uint64_t>(scored_groups(config, role, n_groups)) * key_row +
                (has_blocks ? n * n_kept * sizeof(int32_t) : 0) + selection);
    }
    const auto n_window = static_cast<uint64_t>(std::min<int64_t>(context, config.window_size));
    add("attend", {"attn_sink"}, q + n * (n_window * window_row + n_selected * compressed_row) + selection + q);
    add("output", {"wo_a", "wo_b"}, q + x);
    add("commit_window", {}, 2 * n * window_row);
    return stages;
}

} // namespace bench
