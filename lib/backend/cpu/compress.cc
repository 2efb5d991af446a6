// The compressor of kv sources: tokens to latents, and each latent to its index key and its compressed row. Products of
// all tokens of a tile, and of all latents, are made together.
#include "backend/cpu/stages.h"

#include "backend/reference/rows.h"
#include "numeric/rows.h"

#include <algorithm>

namespace ds41 {

using namespace reference;

void CpuStages::compress(const CompressArgs &a) {
    const Config &c = *a.layer.config;
    const LayerRole &role = *a.layer.role;
    const LayerWeights &w = *a.layer.weights;
    const int ratio = role.ratio;
    const Bf16 *x = a.x + std::int64_t{a.tile.first} * c.dim;
    Bf16 *latents = get<Bf16>(kRows); // of the groups that the tile completes, one after the other
    const auto completes = [&](int i) { return a.layer.step.tokens[a.tile.first + i].pos % ratio == ratio - 1; };
    int n_latents = 0;

    const Activations for_kv = take_activations(kX0, w.compressor_wkv, x, c.dim, a.tile.n);
    if (ratio == 1) {
        const Product product = {&w.compressor_wkv, 0, c.head_dim, &for_kv, 0, latents, nullptr, c.head_dim};
        multiply(&product, 1);
        n_latents = a.tile.n;
    } else {
        const Activations for_gate = same_form(w.compressor_wkv, w.compressor_wgate)
                                         ? for_kv
                                         : take_activations(kX1, w.compressor_wgate, x, c.dim, a.tile.n);
        float *sums = get<float>(kSums); // [tile][kv, gate]
        const std::int64_t stride = 2 * std::int64_t{c.head_dim};
        const Product products[] = {
            {&w.compressor_wkv, 0, c.head_dim, &for_kv, 0, nullptr, sums, stride},
            {&w.compressor_wgate, 0, c.head_dim, &for_gate, 0, nullptr, sums + c.head_dim, stride}};
        multiply(products, 2);
        for (int i = 0; i < a.tile.n; ++i) {
            const TokenView &token = a.layer.step.tokens[a.tile.first + i];
            float *kv = a.layer.step.spans[token.span].group_state;
            float *gate = kv + std::int64_t{ratio} * c.head_dim;
            std::copy_n(sums + i * stride, c.head_dim, kv + token.pos % ratio * c.head_dim);
            std::copy_n(sums + i * stride + c.head_dim, c.head_dim, gate + token.pos % ratio * c.head_dim);
            if (completes(i)) // otherwise the group waits for its other tokens
                pool_group(kv, gate, ratio, c.head_dim, latents + std::int64_t{n_latents++} * c.head_dim);
        }
    }
    if (n_latents == 0) return;

    int latent = 0;
    for (int i = 0; i < a.tile.n; ++i) {
        if (!completes(i)) continue;
        Bf16 *row = latents + std::int64_t{latent++} * c.head_dim;
        rms_norm(row, c.head_dim, w.compressor_norm, c.norm_eps);
        const TokenView &token = a.layer.step.tokens[a.tile.first + i];
        const SpanView &span = a.layer.step.spans[token.span];
        if (a.tap_latents)
            std::copy_n(row, c.head_dim,
                        a.tap_latents[token.span] +
                            (token.pos / ratio - groups_among(span.start_pos, ratio)) * c.head_dim);
    }

    // The index keys come from the latents before their rotation.
    Bf16 *keys = latents + std::int64_t{n_latents} * c.head_dim;
    if (role.is_index_source) {
        const Activations normed = take_activations(kX0, w.indexer_wk, latents, c.head_dim, n_latents);
        const Product product = {&w.indexer_wk, 0, c.index_head_dim, &normed, 0, keys, nullptr, c.index_head_dim};
        multiply(&product, 1);
    }
    latent = 0;
    for (int i = 0; i < a.tile.n; ++i) {
        if (!completes(i)) continue;
        const TokenView &token = a.layer.step.tokens[a.tile.first + i];
        const SpanView &span = a.layer.step.spans[token.span];
        const std::int64_t group = token.pos / ratio;
        const std::int64_t group_pos = group * ratio; // a group stands for its first position
        if (role.is_index_source) {
            Bf16 *key = keys + std::int64_t{latent} * c.index_head_dim;
            rms_norm(key, c.index_head_dim, w.indexer_k_norm, c.norm_eps);
            rotate(key, c.index_head_dim, *a.layer.rope, group_pos, Turn::kForward);
            pack_index_key_row(key, c.index_head_dim, span.index_keys.row(group));
        }
        Bf16 *row = latents + std::int64_t{latent} * c.head_dim;
        rotate(row, c.head_dim, *a.layer.rope, group_pos, Turn::kForward);
        pack_compressed_row(row, c.head_dim, span.compressed.row(group));
        ++latent;
    }
}

} // namespace ds41
