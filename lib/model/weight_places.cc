#include "model/weight_places.h"

namespace ds41 {

namespace {

using In = ds41_layer_weights;
using Out = LayerWeights;

bool always(const LayerRole &) {
    return true;
}
bool kv_source(const LayerRole &role) {
    return role.is_kv_source;
}
bool pooled(const LayerRole &role) {
    return role.has_group_state();
}
bool key_writer(const LayerRole &role) {
    return role.writes_index_keys();
}
bool index_source(const LayerRole &role) {
    return role.is_index_source;
}

constexpr char kNoKvSource[] = "is no kv source";
constexpr char kNotPooled[] = "is no kv source with a ratio above 1";
constexpr char kNoKeyWriter[] = "is not both a kv source and an index source";
constexpr char kNoIndexSource[] = "is no index source";

constexpr PlaceShape vector_of(std::int64_t n) {
    return {{n, 0}, 1};
}
constexpr PlaceShape matrix_of(std::int64_t rows, std::int64_t cols) {
    return {{rows, cols}, 2};
}

constexpr auto vector_kind = [](const LayerRole &) { return PlaceKind::kVector; };
constexpr auto projection = [](const LayerRole &) { return PlaceKind::kProjection; };
constexpr auto plain = [](const LayerRole &) { return PlaceKind::kPlainProjection; };
constexpr auto float_matrix = [](const LayerRole &) { return PlaceKind::kFloatMatrix; };
// A latent of ratio 1 is an ordinary product; pooled groups are f32 from the weights on.
constexpr auto compressor = [](const LayerRole &role) {
    return role.ratio > 1 ? PlaceKind::kFloatMatrix : PlaceKind::kPlainProjection;
};

constexpr WeightPlace kPlaces[] = {
    {"wq_a", &In::wq_a, &Out::wq_a, nullptr, always, "",
     [](const Config &c) { return matrix_of(c.q_lora_rank, c.dim); }, projection},
    {"q_norm", &In::q_norm, nullptr, &Out::q_norm, always, "", [](const Config &c) { return vector_of(c.q_lora_rank); },
     vector_kind},
    {"wq_b", &In::wq_b, &Out::wq_b, nullptr, always, "",
     [](const Config &c) { return matrix_of(c.q_width(), c.q_lora_rank); }, projection},
    {"wkv", &In::wkv, &Out::wkv, nullptr, always, "", [](const Config &c) { return matrix_of(c.head_dim, c.dim); },
     projection},
    {"kv_norm", &In::kv_norm, nullptr, &Out::kv_norm, always, "", [](const Config &c) { return vector_of(c.head_dim); },
     vector_kind},
    {"attn_sink", &In::attn_sink, nullptr, &Out::attn_sink, always, "",
     [](const Config &c) { return vector_of(c.n_heads); }, vector_kind},
    // The reference expands wo_a to bf16: its grouped product takes no fp8 weight, so activations stay as they are.
    {"wo_a", &In::wo_a, &Out::wo_a, nullptr, always, "",
     [](const Config &c) { return matrix_of(c.o_lora_width(), c.o_group_width()); }, plain},
    {"wo_b", &In::wo_b, &Out::wo_b, nullptr, always, "",
     [](const Config &c) { return matrix_of(c.dim, c.o_lora_width()); }, projection},
    {"compressor_wkv", &In::compressor_wkv, &Out::compressor_wkv, nullptr, kv_source, kNoKvSource,
     [](const Config &c) { return matrix_of(c.head_dim, c.dim); }, compressor},
    {"compressor_wgate", &In::compressor_wgate, &Out::compressor_wgate, nullptr, pooled, kNotPooled,
     [](const Config &c) { return matrix_of(c.head_dim, c.dim); }, float_matrix},
    {"compressor_norm", &In::compressor_norm, nullptr, &Out::compressor_norm, kv_source, kNoKvSource,
     [](const Config &c) { return vector_of(c.head_dim); }, vector_kind},
    {"indexer_wk", &In::indexer_wk, &Out::indexer_wk, nullptr, key_writer, kNoKeyWriter,
     [](const Config &c) { return matrix_of(c.index_head_dim, c.head_dim); }, plain},
    {"indexer_k_norm", &In::indexer_k_norm, nullptr, &Out::indexer_k_norm, key_writer, kNoKeyWriter,
     [](const Config &c) { return vector_of(c.index_head_dim); }, vector_kind},
    {"indexer_wq_b", &In::indexer_wq_b, &Out::indexer_wq_b, nullptr, index_source, kNoIndexSource,
     [](const Config &c) { return matrix_of(c.index_q_width(), c.q_lora_rank); }, projection},
    {"indexer_weights_proj", &In::indexer_weights_proj, &Out::indexer_weights_proj, nullptr, index_source,
     kNoIndexSource, [](const Config &c) { return matrix_of(c.index_n_heads, c.dim); }, plain},
};

} // namespace

std::span<const WeightPlace> weight_places() {
    return kPlaces;
}

} // namespace ds41
