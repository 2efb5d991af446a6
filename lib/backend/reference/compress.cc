// The compressor of kv sources: tokens to latents, and each latent to its index key and its compressed row.
#include "backend/reference/rows.h"
#include "numeric/rows.h"

#include <algorithm>

namespace ds41 {

using namespace reference;

void ReferenceStages::compress(const CompressArgs &a) {
    const Config &c = *a.layer.config;
    const LayerRole &role = *a.layer.role;
    const LayerWeights &w = *a.layer.weights;
    const int ratio = role.ratio;
    Bf16 *latent = buffers_.row.data();
    Bf16 *key = buffers_.key.data();

    for (int i = 0; i < a.tile.n; ++i) {
        const TokenView &token = a.layer.step.tokens[a.tile.first + i];
        const SpanView &span = a.layer.step.spans[token.span];
        const Bf16 *x = a.x + std::int64_t{a.tile.first + i} * c.dim;

        if (ratio == 1) {
            linear(w.compressor_wkv, 0, c.head_dim, x, latent, buffers_.linear);
        } else {
            float *kv = span.group_state;
            float *gate = kv + std::int64_t{ratio} * c.head_dim;
            const std::int64_t slot = token.pos % ratio;
            for (int e = 0; e < c.head_dim; ++e) {
                kv[slot * c.head_dim + e] = dot_float(w.compressor_wkv, e, x);
                gate[slot * c.head_dim + e] = dot_float(w.compressor_wgate, e, x);
            }
            if (slot != ratio - 1) continue; // the group waits for its other tokens
            pool_group(kv, gate, ratio, c.head_dim, latent);
        }
        rms_norm(latent, c.head_dim, w.compressor_norm, c.norm_eps);

        const std::int64_t group = token.pos / ratio;
        const std::int64_t group_pos = group * ratio; // a group stands for its first position
        if (a.tap_latents)
            std::copy_n(latent, c.head_dim,
                        a.tap_latents[token.span] + (group - groups_among(span.start_pos, ratio)) * c.head_dim);

        // The index key comes from the latent before its rotation.
        if (role.is_index_source) {
            linear(w.indexer_wk, 0, c.index_head_dim, latent, key, buffers_.linear);
            rms_norm(key, c.index_head_dim, w.indexer_k_norm, c.norm_eps);
            rotate(key, c.index_head_dim, *a.layer.rope, group_pos, Turn::kForward);
            pack_index_key_row(key, c.index_head_dim, span.index_keys.row(group));
        }
        rotate(latent, c.head_dim, *a.layer.rope, group_pos, Turn::kForward);
        pack_compressed_row(latent, c.head_dim, span.compressed.row(group));
    }
}

} // namespace ds41
