// x to qr, q and the window row. wq_a and wkv are multiplied in one parallel region.
#include "backend/cpu/stages.h"

#include "backend/reference/rows.h"
#include "numeric/rows.h"

namespace ds41 {

void CpuStages::make_angles(const LayerView &layer, const Tile &tile, bool inverse) {
    const RopeTable &rope = *layer.rope;
    const int n_pairs = rope.n_pairs();
    // Some 40 ns each, with both functions.
    pool_.run(tile.n, 1024 * n_pairs, [&](int, std::int64_t i) {
        float *cosines = get<float>(kAngles) + i * 2 * n_pairs, *sines = cosines + n_pairs;
        for (int k = 0; k < n_pairs; ++k) {
            rope.angle(layer.step.tokens[tile.first + i].pos, k, cosines[k], sines[k]);
            if (inverse) sines[k] = -sines[k];
        }
    });
}

void CpuStages::rotate_heads(Bf16 *rows, int n_tokens, int n_heads, int head_dim, int n_pairs) {
    pool_.run(n_tokens, std::int64_t{n_heads} * n_pairs * 16, [&](int, std::int64_t i) {
        const float *cosines = angles_of(static_cast<int>(i), n_pairs);
        Bf16 *tail = rows + i * n_heads * head_dim + head_dim - 2 * n_pairs;
        for (int h = 0; h < n_heads; ++h)
            attend_.rotate(tail + std::int64_t{h} * head_dim, n_pairs, cosines, cosines + n_pairs);
    });
}

void CpuStages::project(const ProjectArgs &a) {
    const Config &c = *a.layer.config;
    const LayerWeights &w = *a.layer.weights;
    const int n_pairs = a.layer.rope->n_pairs();
    const Bf16 *x = a.x + std::int64_t{a.tile.first} * c.dim;
    Bf16 *kv = get<Bf16>(kRows);

    const Activations for_q = take_activations(kX0, w.wq_a, x, c.dim, a.tile.n);
    const Activations for_kv = same_form(w.wq_a, w.wkv) ? for_q : take_activations(kX1, w.wkv, x, c.dim, a.tile.n);
    const Product down[] = {{&w.wq_a, 0, c.q_lora_rank, &for_q, 0, a.qr, nullptr, c.q_lora_rank},
                            {&w.wkv, 0, c.head_dim, &for_kv, 0, kv, nullptr, c.head_dim}};
    multiply(down, 2);
    make_angles(a.layer, a.tile, false);
    pool_.run(a.tile.n, (std::int64_t{c.q_lora_rank} + 4 * c.head_dim) * 16, [&](int, std::int64_t i) {
        reference::rms_norm(a.qr + i * c.q_lora_rank, c.q_lora_rank, w.q_norm, c.norm_eps);
        Bf16 *row = kv + i * c.head_dim;
        reference::rms_norm(row, c.head_dim, w.kv_norm, c.norm_eps);
        const float *cosines = angles_of(static_cast<int>(i), n_pairs);
        attend_.rotate(row + c.head_dim - 2 * n_pairs, n_pairs, cosines, cosines + n_pairs);
        // The whole row is quantised, the rotated tail included.
        pack_window_row(row, c.head_dim,
                        a.window_new + static_cast<std::size_t>(a.tile.first + i) * window_row_bytes(c.head_dim));
    });

    const Activations qr = take_activations(kX0, w.wq_b, a.qr, c.q_lora_rank, a.tile.n);
    const Product up = {&w.wq_b, 0, c.q_width(), &qr, 0, a.q, nullptr, c.q_width()};
    multiply(&up, 1);
    rotate_heads(a.q, a.tile.n, c.n_heads, c.head_dim, n_pairs);
}

} // namespace ds41
