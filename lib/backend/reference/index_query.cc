// Index queries and the weights of their heads.
#include "backend/reference/rows.h"
#include "numeric/rows.h"

namespace ds41 {

using namespace reference;

void ReferenceStages::index_query(const IndexQueryArgs &a) {
    const Config &c = *a.layer.config;
    const LayerWeights &w = *a.layer.weights;
    const std::size_t row_bytes = index_key_row_bytes(c.index_head_dim);
    const float scale = c.index_weight_scale();
    Bf16 *query = buffers_.row.data();

    for (int i = 0; i < a.tile.n; ++i) {
        const int token = a.tile.first + i;
        const std::int64_t pos = a.layer.step.tokens[token].pos;

        linear(w.indexer_wq_b, 0, c.index_q_width(), a.qr + std::int64_t{i} * c.q_lora_rank, query, buffers_.linear);
        for (int h = 0; h < c.index_n_heads; ++h) {
            Bf16 *head = query + std::int64_t{h} * c.index_head_dim;
            rotate(head, c.index_head_dim, *a.layer.rope, pos, Turn::kForward);
            pack_index_key_row(head, c.index_head_dim,
                               a.iq + (std::size_t(i) * std::size_t(c.index_n_heads) + std::size_t(h)) * row_bytes);
        }

        Bf16 *weights = a.weights + std::int64_t{i} * c.index_n_heads;
        linear(w.indexer_weights_proj, 0, c.index_n_heads, a.x + std::int64_t{token} * c.dim, weights, buffers_.linear);
        // Rounded after the projection and again after the product.
        for (int h = 0; h < c.index_n_heads; ++h) weights[h] = to_bf16(to_f32(weights[h]) * scale);
    }
}

} // namespace ds41
