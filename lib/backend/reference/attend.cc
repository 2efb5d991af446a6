// Attention of one token over its window rows, by position, and then its selected rows. All heads share the rows.
#include "backend/reference/rows.h"
#include "numeric/rows.h"

#include <algorithm>
#include <limits>

namespace ds41 {

using namespace reference;

namespace {

// One head: softmax of q . row * scale over n rows with the sink in the denominator only. No row, or a sink of +inf,
// gives zeros. Rows that are absent are not in the list: a weight of zero would still let their NaN through.
void attend_head(const Bf16 *q, const float *rows, std::int64_t n, int head_dim, float scale, float sink,
                 float *weights, float *sums, Bf16 *o) {
    float max = sink;
    for (std::int64_t r = 0; r < n; ++r) {
        float dot = 0.0f;
        for (int e = 0; e < head_dim; ++e) dot += to_f32(q[e]) * rows[r * head_dim + e];
        weights[r] = dot * scale;
        max = std::max(max, weights[r]);
    }
    std::fill(sums, sums + head_dim, 0.0f);
    const float infinity = std::numeric_limits<float>::infinity();
    float denominator = 0.0f;
    if (sink < infinity && n > 0) {
        denominator = sink > -infinity ? exp_f32(sink - max) : 0.0f;
        float total = 0.0f;
        for (std::int64_t r = 0; r < n; ++r) {
            const float weight = exp_f32(weights[r] - max);
            total += weight;
            for (int e = 0; e < head_dim; ++e) sums[e] += weight * rows[r * head_dim + e];
        }
        denominator += total;
    }
    for (int e = 0; e < head_dim; ++e) o[e] = to_bf16(denominator != 0.0f ? sums[e] / denominator : 0.0f);
}

} // namespace

void ReferenceStages::attend(const AttendArgs &a) {
    const Config &c = *a.layer.config;
    const float scale = c.attention_scale();
    float *rows = buffers_.rows.data();
    Bf16 *row = buffers_.row.data();

    for (int i = 0; i < a.tile.n; ++i) {
        const int token = a.tile.first + i;
        const TokenView &view = a.layer.step.tokens[token];
        const SpanView &span = a.layer.step.spans[view.span];

        std::int64_t n = 0;
        const auto add = [&] {
            for (int e = 0; e < c.head_dim; ++e) rows[n * c.head_dim + e] = to_f32(row[e]);
            ++n;
        };
        for (std::int64_t pos = std::max<std::int64_t>(0, view.pos - c.window_size + 1); pos <= view.pos; ++pos) {
            // The ring still holds what was there before the step; the step's own rows stand beside it until all its
            // tokens have attended.
            const std::int64_t step_row = span.first_token + (pos - span.start_pos);
            unpack_window_row(pos < span.start_pos
                                  ? span.window.row(pos % c.window_size)
                                  : a.window_new + static_cast<std::size_t>(step_row) * span.window.row_bytes,
                              c.head_dim, row);
            add();
        }
        const std::int32_t *groups = a.groups ? a.groups + std::int64_t{token} * a.n_group_slots : nullptr;
        for (std::int32_t g = 0; groups && g < a.n_group_slots && groups[g] >= 0; ++g) {
            unpack_compressed_row(span.compressed.row(groups[g]), c.head_dim, row);
            add();
        }
        for (int h = 0; h < c.n_heads; ++h) {
            const std::int64_t head = (std::int64_t{i} * c.n_heads + h) * c.head_dim;
            attend_head(a.q + head, rows, n, c.head_dim, scale, a.layer.weights->attn_sink[h], buffers_.weights.data(),
                        buffers_.sums.data(), a.o + head);
        }
    }
}

} // namespace ds41
