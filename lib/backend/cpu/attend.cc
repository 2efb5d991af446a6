// Attention: the rows that a token attends to are unpacked once and shared by its heads. Many tokens: each is one
// thread's. Few: a token's rows, then its heads, are shared among the threads. Numerics in attend_rows.cc.
#include "backend/cpu/stages.h"

#include "numeric/rows.h"

#include <algorithm>

namespace ds41 {

namespace {

// Rows that go through all heads before the next ones: 32 rows of 512 floats are 64 KiB, which stay in a level 2 cache
// beside the queries or sums of 32 heads.
constexpr std::int64_t kBlockRows = 32;

std::int64_t first_window_pos(const Config &c, std::int64_t pos) {
    return std::max<std::int64_t>(0, pos - c.window_size + 1);
}

} // namespace

std::int64_t CpuStages::rows_in_reach(const AttendArgs &a, int token) const {
    const std::int64_t pos = a.layer.step.tokens[token].pos;
    std::int64_t n = pos - first_window_pos(*a.layer.config, pos) + 1;
    const std::int32_t *groups = a.groups ? a.groups + std::int64_t{token} * a.n_group_slots : nullptr;
    for (std::int32_t g = 0; groups && g < a.n_group_slots && groups[g] >= 0; ++g) ++n;
    return n;
}

// Rows [from, to): the window by position, then the selected groups. Absent ones are not in the list: a weight of zero
// would still let their NaN through.
void CpuStages::unpack_rows(const AttendArgs &a, int token, std::int64_t from, std::int64_t to, float *rows,
                            std::int64_t stride) const {
    const Config &c = *a.layer.config;
    const TokenView &view = a.layer.step.tokens[token];
    const SpanView &span = a.layer.step.spans[view.span];
    const std::int64_t first = first_window_pos(c, view.pos), n_window = view.pos - first + 1;
    const std::int32_t *groups = a.groups ? a.groups + std::int64_t{token} * a.n_group_slots : nullptr;
    for (std::int64_t r = from; r < to; ++r) {
        if (r >= n_window) {
            attend_.unpack_compressed(span.compressed.row(groups[r - n_window]), c.head_dim, rows + r * stride);
            continue;
        }
        // The ring still holds what was there before the step; the step's own rows stand beside it until all its
        // tokens have attended.
        const std::int64_t pos = first + r, step_row = span.first_token + (pos - span.start_pos);
        attend_.unpack_window(pos < span.start_pos
                                  ? span.window.row(pos % c.window_size)
                                  : a.window_new + static_cast<std::size_t>(step_row) * span.window.row_bytes,
                              c.head_dim, rows + r * stride);
    }
}

void CpuStages::attend_heads(const AttendArgs &a, int token, int first_head, int last_head, const float *rows,
                             std::int64_t n_rows, const AttendScratch &s) const {
    const Config &c = *a.layer.config;
    const std::int64_t hd = c.head_dim;
    const std::int64_t head0 = std::int64_t{token - a.tile.first} * c.n_heads;
    const int n_heads = last_head - first_head, n_padded = (n_heads + 3) / 4 * 4;
    for (int h = 0; h < n_padded; ++h) // the last four may be fewer: the last head once more
        activations_.widen(a.q + (head0 + std::min(first_head + h, last_head - 1)) * hd, c.head_dim,
                           cpu::Order::kNatural, s.q + h * hd);
    for (std::int64_t r = 0; r < n_rows; r += kBlockRows) {
        const int n = static_cast<int>(std::min(kBlockRows, n_rows - r));
        for (int h = 0; h < n_padded; h += 4)
            attend_.scores(s.q + h * hd, rows + r * s.stride_rows, s.stride_rows, n, c.head_dim,
                           s.weights + h * s.stride_weights + r, s.stride_weights);
    }
    std::fill_n(s.sums, n_padded * hd, 0.0f);
    // The queries have been used: their memory takes the denominators.
    float *denominators = s.q;
    for (int h = 0; h < n_padded; ++h)
        denominators[h] =
            attend_.softmax(s.weights + h * s.stride_weights, static_cast<int>(n_rows), c.attention_scale(),
                            a.layer.weights->attn_sink[std::min(first_head + h, last_head - 1)]);
    for (std::int64_t r = 0; r < n_rows; r += kBlockRows) {
        const int n = static_cast<int>(std::min(kBlockRows, n_rows - r));
        for (int h = 0; h < n_padded; h += 4)
            attend_.weigh(s.weights + h * s.stride_weights + r, s.stride_weights, rows + r * s.stride_rows,
                          s.stride_rows, n, c.head_dim, s.sums + h * hd);
    }
    for (int h = 0; h < n_heads; ++h)
        attend_.finish(s.sums + h * hd, denominators[h], c.head_dim, a.o + (head0 + first_head + h) * hd);
}

void CpuStages::attend(const AttendArgs &a) {
    const Config &c = *a.layer.config;
    const std::int64_t row_cost = std::int64_t{2} * c.head_dim;
    const int n_slots = pool_.n_slots();
    if (a.tile.n >= n_slots) {
        pool_.run(a.tile.n, row_cost * c.n_heads * n_row_room_ / 8, [&](int slot, std::int64_t i) {
            const int token = a.tile.first + static_cast<int>(i);
            const AttendScratch s = attend_scratch(c, slot);
            const std::int64_t n = rows_in_reach(a, token);
            unpack_rows(a, token, 0, n, s.rows, s.stride_rows);
            attend_heads(a, token, 0, c.n_heads, s.rows, n, s);
        });
        return;
    }
    const AttendScratch shared = attend_scratch(c, 0);
    const int fours = (c.n_heads + 3) / 4;
    const int per_item = 4 * ((fours + n_slots - 1) / n_slots);
    const int n_items = (c.n_heads + per_item - 1) / per_item;
    for (int token = a.tile.first; token < a.tile.first + a.tile.n; ++token) {
        const std::int64_t n = rows_in_reach(a, token);
        pool_.run((n + kBlockRows - 1) / kBlockRows, row_cost * kBlockRows, [&](int, std::int64_t block) {
            unpack_rows(a, token, block * kBlockRows, std::min(n, (block + 1) * kBlockRows), shared.rows,
                        shared.stride_rows);
        });
        pool_.run(n_items, row_cost * per_item * n / 8, [&](int slot, std::int64_t item) {
            const int head = static_cast<int>(item) * per_item;
            attend_heads(a, token, head, std::min(head + per_item, c.n_heads), shared.rows, n, attend_scratch(c, slot));
        });
    }
}

} // namespace ds41
