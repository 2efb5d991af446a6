// Where each intermediate is picked up, in the terms of the header's table.
#include "forward/tap.h"

#include "error.h"
#include "numeric/rows.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace ds41 {

namespace {

constexpr const char *kTapNames[] = {"q",        "latent",     "index_k", "comp_rows", "index_q", "index_weights",
                                     "scores",   "candidates", "kv_rows", "idx",       "o",       "ring",
                                     "state_kv", "state_gate"};
static_assert(std::size(kTapNames) == static_cast<std::size_t>(TapName::kCount));

using Unpack = void (*)(const std::uint8_t *, int, Bf16 *);

} // namespace

Tap make_tap(const char *const *names, std::int32_t n_names, ds41_tap_fn function, void *user) {
    if (!function) return {};
    Tap tap{function, user, n_names == 0 ? ~0u : 0u};
    for (std::int32_t i = 0; i < n_names; ++i) {
        DS41_CHECK(names[i] != nullptr, DS41_STATUS_INVALID_ARGUMENT, "names[%d] is NULL", i);
        const auto *const end = std::end(kTapNames);
        const auto *const found = std::find_if(std::begin(kTapNames), end,
                                               [&](const char *name) { return std::strcmp(name, names[i]) == 0; });
        DS41_CHECK(found != end, DS41_STATUS_INVALID_ARGUMENT,
                   "names[%d] is \"%.40s\", need a name of the header's table of taps", i, names[i]);
        tap.names |= 1u << (found - std::begin(kTapNames));
    }
    return tap;
}

TapRun::TapRun(const Tap &tap, const Model &model, const Step &step, int layer)
    : tap_(tap), memory_(&model.memory()), layer_(layer) {
    if (!tap.wanted()) return;
    const Config &config = model.config();
    const LayerRole &role = config.role(layer);
    spans_.resize(step.spans.size());
    for (std::size_t s = 0; s < spans_.size(); ++s) {
        const Span &span = step.spans[s];
        Counts &n = spans_[s].counts;
        n.n_tokens = span.n_tokens;
        n.start_pos = span.start_pos;
        n.first_window_pos = std::max<std::int64_t>(0, span.start_pos - config.window_size + 1);
        n.n_window_rows = span.end_pos() - n.first_window_pos;
        n.n_window_cols = std::min<std::int64_t>(config.window_size, n.n_window_rows);
        n.n_groups = role.ratio > 0 ? groups_among(span.end_pos(), role.ratio) : 0;
        n.n_completed = role.is_kv_source ? n.n_groups - groups_among(span.start_pos, role.ratio) : 0;
        n.n_group_cols = std::min<std::int64_t>(config.index_topk, n.n_groups);
        plan_span(spans_[s], config, role);
    }
    plan_device_side(model);
    const std::size_t slots = static_cast<std::size_t>(std::max(step.sizes.n_group_slots, step.sizes.n_block_slots));
    // Whatever is fetched row by row: a window row is wider than a compressed one, an index key may be wider than both.
    staging_ =
        Block(host_memory(), std::max({window_row_bytes(config.head_dim), index_key_row_bytes(config.index_head_dim),
                                       slots * sizeof(std::int32_t)}));
}

void TapRun::plan(SpanValues &span, TapName name, ds41_dtype dtype, std::initializer_list<std::int64_t> shape) {
    if (!tap_.wants(name)) return;
    std::size_t n = dtype == DS41_DTYPE_BF16 ? 2 : dtype == DS41_DTYPE_U8 ? 1 : 4;
    for (const std::int64_t size : shape) n *= static_cast<std::size_t>(size);
    if (n == 0) return;
    Value &value = span[name];
    value.host = Block(host_memory(), n);
    ds41_tensor_init(&value.tensor, value.host.data(), dtype, static_cast<std::int32_t>(shape.size()), shape.begin());
}

void TapRun::plan_span(SpanValues &span, const Config &c, const LayerRole &role) {
    const Counts &n = span.counts;
    const std::int64_t n_indexed = role.is_index_source && n.n_groups > 0 ? n.n_tokens : 0;
    plan(span, TapName::kQ, DS41_DTYPE_BF16, {n.n_tokens, c.n_heads, c.head_dim});
    plan(span, TapName::kLatent, DS41_DTYPE_BF16, {n.n_completed, c.head_dim});
    plan(span, TapName::kIndexK, DS41_DTYPE_BF16, {role.is_index_source ? n.n_completed : 0, c.index_head_dim});
    plan(span, TapName::kCompRows, DS41_DTYPE_BF16, {n.n_completed, c.head_dim});
    plan(span, TapName::kIndexQ, DS41_DTYPE_BF16, {n_indexed, c.index_n_heads, c.index_head_dim});
    plan(span, TapName::kIndexWeights, DS41_DTYPE_BF16, {n_indexed, c.index_n_heads});
    plan(span, TapName::kScores, DS41_DTYPE_F32, {n_indexed, n.n_groups});
    plan(span, TapName::kCandidates, DS41_DTYPE_U8, {role.is_candidate_source ? n_indexed : 0, n.n_groups});
    plan(span, TapName::kKvRows, DS41_DTYPE_BF16, {n.n_window_rows + n.n_groups, c.head_dim});
    plan(span, TapName::kIdx, DS41_DTYPE_I32, {n.n_tokens, n.n_window_cols + n.n_group_cols});
    plan(span, TapName::kO, DS41_DTYPE_BF16, {n.n_tokens, c.n_heads, c.head_dim});
    plan(span, TapName::kRing, DS41_DTYPE_BF16, {c.window_size, c.head_dim});
    const std::int64_t state_rows = role.has_group_state() ? role.ratio : 0;
    plan(span, TapName::kStateKv, DS41_DTYPE_F32, {state_rows, c.head_dim});
    plan(span, TapName::kStateGate, DS41_DTYPE_F32, {state_rows, c.head_dim});
}

// Latents and scores never lie in a workspace as a whole: the backend is given memory of its own kind to put them.
void TapRun::plan_device_side(const Model &model) {
    const bool latents = tap_.wants(TapName::kLatent), scores = tap_.wants(TapName::kScores);
    device_.reserve(spans_.size() * 2);
    for (SpanValues &span : spans_) {
        if (latents) {
            device_.emplace_back(model.memory(), span[TapName::kLatent].host.n_bytes());
            latents_.push_back(device_.back().as<Bf16>());
        }
        if (scores) {
            // A span without groups has no scores, but its tokens go through the stage with those of other spans.
            device_.emplace_back(model.memory(), span[TapName::kScores].host.n_bytes());
            scores_.push_back(device_.back().as<float>());
        }
    }
}

template <typename T> void TapRun::save_tile(TapName name, const Tile &tile, const T *source, std::int64_t row) {
    std::int64_t span_first = 0; // of the step's tokens
    for (SpanValues &span : spans_) {
        const std::int64_t first = std::max<std::int64_t>(span_first, tile.first);
        const std::int64_t last = std::min<std::int64_t>(span_first + span.counts.n_tokens, tile.first + tile.n);
        if (first < last && span[name].host.data())
            memory_->download(span[name].host.as<T>() + (first - span_first) * row, source + (first - tile.first) * row,
                              static_cast<std::size_t>((last - first) * row) * sizeof(T));
        span_first += span.counts.n_tokens;
    }
}

void TapRun::save_q(const Tile &tile, const Bf16 *q) {
    const ds41_tensor &t = spans_[0][TapName::kQ].tensor;
    save_tile(TapName::kQ, tile, q, t.shape[1] * t.shape[2]);
}

void TapRun::save_o(const Tile &tile, const Bf16 *o) {
    const ds41_tensor &t = spans_[0][TapName::kO].tensor;
    save_tile(TapName::kO, tile, o, t.shape[1] * t.shape[2]);
}

void TapRun::save_index_query(const Tile &tile, const std::uint8_t *iq, const Bf16 *weights) {
    std::int64_t span_first = 0;
    for (SpanValues &span : spans_) {
        Value &value = span[TapName::kIndexQ];
        for (std::int64_t i = 0; value.host.data() && i < span.counts.n_tokens; ++i) {
            const std::int64_t in_tile = span_first + i - tile.first;
            if (in_tile < 0 || in_tile >= tile.n) continue;
            const std::int64_t heads = value.tensor.shape[1], n = value.tensor.shape[2];
            const std::size_t row_bytes = index_key_row_bytes(static_cast<int>(n));
            for (std::int64_t h = 0; h < heads; ++h) {
                memory_->download(staging_.data(), iq + static_cast<std::size_t>(in_tile * heads + h) * row_bytes,
                                  row_bytes);
                unpack_index_key_row(staging_.as<std::uint8_t>(), static_cast<int>(n),
                                     value.host.as<Bf16>() + (i * heads + h) * n);
            }
        }
        span_first += span.counts.n_tokens;
    }
    for (SpanValues &span : spans_)
        if (span[TapName::kIndexWeights].host.data()) {
            save_tile(TapName::kIndexWeights, tile, weights, span[TapName::kIndexWeights].tensor.shape[1]);
            break; // it goes through all spans itself
        }
}

void TapRun::save_idx(SpanValues &span, const Published &published, std::int32_t first_token) {
    const Counts &n = span.counts;
    Value &value = span[TapName::kIdx];
    if (!value.host.data()) return;
    for (std::int64_t i = 0; i < n.n_tokens; ++i) {
        std::int32_t *row = value.host.as<std::int32_t>() + i * (n.n_window_cols + n.n_group_cols);
        std::fill_n(row, n.n_window_cols + n.n_group_cols, -1);
        const std::int64_t pos = n.start_pos + i;
        const std::int64_t first = std::max(n.first_window_pos, pos - (n.n_window_cols - 1));
        for (std::int64_t p = std::max<std::int64_t>(0, first); p <= pos; ++p)
            row[p - std::max<std::int64_t>(0, first)] = static_cast<std::int32_t>(p - n.first_window_pos);
        if (n.n_group_cols == 0) continue;
        const auto *selected = staging_.as<std::int32_t>();
        memory_->download(staging_.data(),
                          published.groups->as<std::int32_t>() + (first_token + i) * published.n_group_slots,
                          static_cast<std::size_t>(published.n_group_slots) * sizeof(std::int32_t));
        for (std::int64_t g = 0; g < n.n_group_cols && selected[g] >= 0; ++g)
            row[n.n_window_cols + g] = static_cast<std::int32_t>(n.n_window_rows + selected[g]);
    }
}

void TapRun::save_candidates(SpanValues &span, const Config &config, const Published &published,
                             std::int32_t first_token) {
    const Counts &n = span.counts;
    Value &value = span[TapName::kCandidates];
    if (!value.host.data()) return;
    const std::int64_t block_size = config.candidate_block_size;
    std::memset(value.host.data(), 0, value.host.n_bytes());
    for (std::int64_t i = 0; i < n.n_tokens; ++i) {
        const auto *kept = staging_.as<std::int32_t>();
        memory_->download(staging_.data(),
                          published.blocks->as<std::int32_t>() + (first_token + i) * published.n_block_slots,
                          static_cast<std::size_t>(published.n_block_slots) * sizeof(std::int32_t));
        auto *row = value.host.as<std::uint8_t>() + i * n.n_groups;
        for (std::int32_t b = 0; b < published.n_block_slots && kept[b] >= 0; ++b)
            for (std::int64_t j = kept[b] * block_size; j < std::min((kept[b] + 1) * block_size, n.n_groups); ++j)
                row[j] = 1;
    }
}

void TapRun::save_rows(const LayerView &layer, const Workspace &workspace, const Published &published) {
    const Config &c = *layer.config;
    const auto *window_new = workspace.get<std::uint8_t>(Workspace::kWindowNew);
    const auto fetch = [&](const std::uint8_t *row, std::size_t n_bytes, Unpack unpack, int n, Bf16 *out) {
        memory_->download(staging_.data(), row, n_bytes);
        unpack(staging_.as<std::uint8_t>(), n, out);
    };
    for (std::size_t s = 0; s < spans_.size(); ++s) {
        SpanValues &span = spans_[s];
        const Counts &n = span.counts;
        const SpanView &view = layer.step.spans[s];
        const std::int64_t first_group = n.n_groups - n.n_completed;

        if (auto *out = span[TapName::kKvRows].host.as<Bf16>()) {
            for (std::int64_t r = 0; r < n.n_window_rows; ++r) {
                const std::int64_t pos = n.first_window_pos + r;
                const auto new_row = static_cast<std::size_t>(view.first_token + (pos - view.start_pos));
                fetch(pos < view.start_pos ? view.window.row(pos % c.window_size)
                                           : window_new + new_row * view.window.row_bytes,
                      view.window.row_bytes, unpack_window_row, c.head_dim, out + r * c.head_dim);
            }
            for (std::int64_t j = 0; j < n.n_groups; ++j)
                fetch(view.compressed.row(j), view.compressed.row_bytes, unpack_compressed_row, c.head_dim,
                      out + (n.n_window_rows + j) * c.head_dim);
        }
        for (std::int64_t g = 0; g < n.n_completed; ++g) {
            if (auto *out = span[TapName::kCompRows].host.as<Bf16>())
                fetch(view.compressed.row(first_group + g), view.compressed.row_bytes, unpack_compressed_row,
                      c.head_dim, out + g * c.head_dim);
            if (auto *out = span[TapName::kIndexK].host.as<Bf16>())
                fetch(view.index_keys.row(first_group + g), view.index_keys.row_bytes, unpack_index_key_row,
                      c.index_head_dim, out + g * c.index_head_dim);
        }
        save_idx(span, published, view.first_token);
        save_candidates(span, c, published, view.first_token);
        if (Value &value = span[TapName::kLatent]; value.host.data())
            memory_->download(value.host.data(), latents_[s], value.host.n_bytes());
        if (Value &value = span[TapName::kScores]; value.host.data())
            memory_->download(value.host.data(), scores_[s], value.host.n_bytes());
    }
}

void TapRun::save_state(const LayerView &layer) {
    const Config &c = *layer.config;
    for (std::size_t s = 0; s < spans_.size(); ++s) {
        SpanValues &span = spans_[s];
        const SpanView &view = layer.step.spans[s];
        const std::int64_t end_pos = view.start_pos + view.n_tokens;
        if (auto *out = span[TapName::kRing].host.as<Bf16>()) {
            std::memset(static_cast<void *>(out), 0, span[TapName::kRing].host.n_bytes());
            for (std::int64_t pos = std::max<std::int64_t>(0, end_pos - c.window_size); pos < end_pos; ++pos) {
                memory_->download(staging_.data(), view.window.row(pos % c.window_size), view.window.row_bytes);
                unpack_window_row(staging_.as<std::uint8_t>(), c.head_dim, out + pos % c.window_size * c.head_dim);
            }
        }
        for (const TapName name : {TapName::kStateKv, TapName::kStateGate}) {
            Value &value = span[name];
            if (!value.host.data()) continue;
            const std::int64_t ratio = layer.role->ratio;
            const std::int64_t first = name == TapName::kStateKv ? 0 : ratio * c.head_dim;
            std::memset(value.host.data(), 0, value.host.n_bytes());
            memory_->download(value.host.data(), view.group_state + first,
                              static_cast<std::size_t>(end_pos % ratio * c.head_dim) * sizeof(float));
        }
    }
}

void TapRun::deliver() const {
    for (std::size_t s = 0; s < spans_.size(); ++s) {
        const SpanValues &span = spans_[s];
        for (std::size_t i = 0; i < span.values.size(); ++i) {
            const Value &value = span.values[i];
            if (!value.host.data()) continue;
            ds41_tap tap{};
            tap.struct_size = sizeof tap;
            tap.layer = layer_;
            tap.span = static_cast<std::int32_t>(s);
            tap.n_tokens = static_cast<std::int32_t>(span.counts.n_tokens);
            tap.start_pos = span.counts.start_pos;
            tap.name = kTapNames[i];
            tap.tensor = value.tensor;
            tap_.function(&tap, tap_.user);
        }
    }
}

} // namespace ds41
