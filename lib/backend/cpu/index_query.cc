// Index queries and the weights of their heads.
#include "backend/cpu/stages.h"

#include "numeric/rows.h"

namespace ds41 {

void CpuStages::index_query(const IndexQueryArgs &a) {
    const Config &c = *a.layer.config;
    const LayerWeights &w = *a.layer.weights;
    const int n_pairs = a.layer.rope->n_pairs();
    const std::size_t row_bytes = index_key_row_bytes(c.index_head_dim);
    const float scale = c.index_weight_scale();
    Bf16 *queries = get<Bf16>(kRows);

    const Activations qr = take_activations(kX0, w.indexer_wq_b, a.qr, c.q_lora_rank, a.tile.n);
    const Activations x =
        take_activations(kX1, w.indexer_weights_proj, a.x + std::int64_t{a.tile.first} * c.dim, c.dim, a.tile.n);
    const Product products[] = {
        {&w.indexer_wq_b, 0, c.index_q_width(), &qr, 0, queries, nullptr, c.index_q_width()},
        {&w.indexer_weights_proj, 0, c.index_n_heads, &x, 0, a.weights, nullptr, c.index_n_heads}};
    multiply(&products[0], 1);
    multiply(&products[1], 1);

    make_angles(a.layer, a.tile, false);
    // Two values are packed in some 10 ns.
    pool_.run(std::int64_t{a.tile.n} * c.index_n_heads, c.index_head_dim * 32, [&](int, std::int64_t row) {
        Bf16 *head = queries + row * c.index_head_dim;
        const float *cosines = angles_of(static_cast<int>(row / c.index_n_heads), n_pairs);
        attend_.rotate(head + c.index_head_dim - 2 * n_pairs, n_pairs, cosines, cosines + n_pairs);
        pack_index_key_row(head, c.index_head_dim, a.iq + static_cast<std::size_t>(row) * row_bytes);
        // Rounded after the projection and again after the product.
        a.weights[row] = to_bf16(to_f32(a.weights[row]) * scale);
    });
}

} // namespace ds41
