// x to qr, q and the window row.
#include "backend/reference/rows.h"
#include "numeric/rows.h"

#include <cstring>

namespace ds41 {

using namespace reference;

void ReferenceStages::project(const ProjectArgs &a) {
    const Config &c = *a.layer.config;
    const LayerWeights &w = *a.layer.weights;
    for (int i = 0; i < a.tile.n; ++i) {
        const int token = a.tile.first + i;
        const std::int64_t pos = a.layer.step.tokens[token].pos;
        const Bf16 *x = a.x + std::int64_t{token} * c.dim;

        Bf16 *qr = a.qr + std::int64_t{i} * c.q_lora_rank;
        linear(w.wq_a, 0, c.q_lora_rank, x, qr, buffers_.linear);
        rms_norm(qr, c.q_lora_rank, w.q_norm, c.norm_eps);

        Bf16 *q = a.q + i * c.q_width();
        linear(w.wq_b, 0, c.q_width(), qr, q, buffers_.linear);
        // No norm on the heads: V4 had one, V4.1 has none.
        for (int h = 0; h < c.n_heads; ++h)
            rotate(q + std::int64_t{h} * c.head_dim, c.head_dim, *a.layer.rope, pos, Turn::kForward);

        Bf16 *kv = buffers_.row.data();
        linear(w.wkv, 0, c.head_dim, x, kv, buffers_.linear);
        rms_norm(kv, c.head_dim, w.kv_norm, c.norm_eps);
        rotate(kv, c.head_dim, *a.layer.rope, pos, Turn::kForward);
        // The whole row is quantised, the rotated tail included.
        pack_window_row(kv, c.head_dim, a.window_new + static_cast<std::size_t>(token) * window_row_bytes(c.head_dim));
    }
}

void ReferenceStages::commit_window(const LayerView &layer, const std::uint8_t *window_new) {
    const int window = layer.config->window_size;
    for (int s = 0; s < layer.step.n_spans; ++s) {
        const SpanView &span = layer.step.spans[s];
        // Of a span longer than the ring only the last rows stay.
        for (int i = span.n_tokens > window ? span.n_tokens - window : 0; i < span.n_tokens; ++i)
            std::memcpy(span.window.row((span.start_pos + i) % window),
                        window_new + static_cast<std::size_t>(span.first_token + i) * span.window.row_bytes,
                        span.window.row_bytes);
    }
}

} // namespace ds41
