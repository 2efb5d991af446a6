#include "scene.h"

#include <algorithm>

namespace ds41::test {

namespace {

// The compressed rows and keys that a step can touch: all but for sequences so long that only the end is stored.
std::int64_t first_stored_row(std::int64_t n_groups) {
    return n_groups > 4096 ? n_groups - 256 : 0;
}

RopeTable rope_of(const Config &c, int ratio) {
    if (ratio == 0) return RopeTable::plain(c.rope_head_dim, c.rope_theta);
    return RopeTable::yarn(c.rope_head_dim, c.compress_rope_theta, c.original_seq_len, c.rope_factor, c.beta_fast,
                           c.beta_slow);
}

} // namespace

Cache::Cache(const Memory &memory, std::size_t row_bytes, std::int64_t first, std::int64_t n)
    : row_bytes_(row_bytes), first_page_(first / kPageRows),
      table_(memory, static_cast<std::size_t>((first + n + kPageRows - 1) / kPageRows)) {
    std::vector<std::uint8_t *> table(table_.size(), nullptr);
    for (std::size_t page = static_cast<std::size_t>(first_page_); page < table.size(); ++page)
        pages_.emplace_back(memory, kPageRows * row_bytes);
    for (std::size_t i = 0; i < pages_.size(); ++i) table[static_cast<std::size_t>(first_page_) + i] = page(i).data();
    table_.set(table);
}

void Cache::set(std::int64_t row, const std::vector<std::uint8_t> &bytes) {
    REQUIRE(bytes.size() == row_bytes_);
    const auto at = static_cast<std::size_t>(row - first_page_ * kPageRows);
    page(at / kPageRows).set(bytes, at % kPageRows * row_bytes_);
}

std::vector<std::uint8_t> Cache::get(std::int64_t row) const {
    const auto at = static_cast<std::size_t>(row - first_page_ * kPageRows);
    REQUIRE(at / kPageRows < pages_.size());
    return page(at / kPageRows).get(at % kPageRows * row_bytes_, row_bytes_);
}

std::vector<std::int64_t> Cache::written() const {
    std::vector<std::int64_t> rows;
    const std::vector<std::uint8_t> all = bytes();
    for (std::size_t r = 0; r < all.size() / row_bytes_; ++r) {
        const auto *row = all.data() + r * row_bytes_;
        if (std::any_of(row, row + row_bytes_, [](std::uint8_t byte) { return byte != kPoison<std::uint8_t>; }))
            rows.push_back(first_page_ * kPageRows + static_cast<std::int64_t>(r));
    }
    return rows;
}

std::vector<std::uint8_t> Cache::bytes() const {
    std::vector<std::uint8_t> all;
    for (std::size_t i = 0; i < pages_.size(); ++i) append(all, page(i).get());
    return all;
}

ds41_config make_config(const Geometry &g, int ratio, int topk, int n_blocks, int block_size) {
    ds41_config c;
    ds41_config_init(&c, sizeof(c));
    c.n_layers = c.n_compress_ratios = 4;
    for (int layer = 1; layer < 4; ++layer) c.compress_ratios[layer] = ratio;
    if (ratio > 0) {
        c.n_kv_source_layers = 1;
        c.kv_source_layers[0] = kSourceLayer;
        c.n_index_source_layers = 2;
        c.index_source_layers[0] = kSourceLayer;
        c.index_source_layers[1] = kLaterIndexLayer;
    }
    c.candidate_source_layer = n_blocks > 0 ? int{kSourceLayer} : -1;
    c.candidate_topk_blocks = n_blocks;
    c.candidate_block_size = n_blocks > 0 ? block_size : 0;
    c.dim = g.dim;
    c.n_heads = g.n_heads;
    c.head_dim = g.head_dim;
    c.rope_head_dim = g.rope_dim;
    c.q_lora_rank = g.q_rank;
    c.o_groups = g.o_groups;
    c.o_lora_rank = g.o_rank;
    c.window_size = g.window;
    c.index_n_heads = g.index_heads;
    c.index_head_dim = g.index_dim;
    c.index_topk = topk;
    c.norm_eps = 1e-20f;
    c.rope_theta = 10000.0f;
    c.compress_rope_theta = 160000.0f;
    c.rope_factor = 16.0f;
    c.beta_fast = 32.0f;
    c.beta_slow = 1.0f;
    c.original_seq_len = 65536;
    c.max_seq_len = 1 << 20;
    return c;
}

int token_count(const Spans &spans) {
    int n = 0;
    for (const SpanSpec &span : spans) n += span.n_tokens;
    return n;
}

std::vector<std::vector<int>> tilings(int n_tokens) {
    std::vector<std::vector<int>> result = {{n_tokens}};
    if (n_tokens > 1) result.emplace_back(static_cast<std::size_t>(n_tokens), 1);
    if (n_tokens > 3) result.push_back({3, n_tokens - 3});
    return result;
}

TestLayer::TestLayer(const Backend &on, const ds41_config &raw, int layer)
    : backend(on), config(raw), role(config.role(layer)), rope(rope_of(config, role.ratio)) {}

Matrix TestLayer::hold(const TestMatrix &m) {
    constexpr ds41_dtype kDtypes[] = {DS41_DTYPE_F32,      DS41_DTYPE_BF16, DS41_DTYPE_FP8_E4M3,
                                      DS41_DTYPE_FP8_E4M3, DS41_DTYPE_Q2_K, DS41_DTYPE_Q2_K};
    Matrix matrix;
    bytes_.emplace_back(memory(), m.data);
    matrix.data = bytes_.back().data();
    if (!m.scales.empty()) {
        bytes_.emplace_back(memory(), m.scales);
        matrix.scales = bytes_.back().data();
    }
    matrix.rows = m.rows;
    matrix.cols = m.cols;
    matrix.dtype = kDtypes[static_cast<int>(m.format)];
    matrix.quantise_activations = m.format == Format::kFp8 || m.format == Format::kQ2K;
    return matrix;
}

const float *TestLayer::hold(const std::vector<float> &values) {
    floats_.emplace_back(memory(), values);
    return floats_.back().data();
}

std::unique_ptr<Stages> TestLayer::create_stages(const Spans &spans) const {
    StageSizes sizes;
    sizes.n_tile_tokens = token_count(spans);
    if (role.ratio > 0)
        for (const SpanSpec &span : spans)
            sizes.n_groups = std::max(sizes.n_groups, groups_among(span.end_pos(), role.ratio));
    sizes.n_group_slots = static_cast<std::int32_t>(std::min<std::int64_t>(config.index_topk, sizes.n_groups));
    sizes.n_window_rows = config.window_size;
    sizes.topk_rule = DS41_TOPK_TORCH_CPU; // tests take either
    auto stages = backend.create_stages(stage_options);
    stages->prepare(config, sizes);
    return stages;
}

TestStep::TestStep(const TestLayer &layer, const Spans &spans)
    : layer_(layer), spans_(spans), token_buffer_(layer.memory(), static_cast<std::size_t>(token_count(spans))),
      view_buffer_(layer.memory(), spans.size()) {
    const Config &c = layer.config;
    const int ratio = layer.ratio();
    for (std::size_t s = 0; s < spans.size(); ++s) {
        const std::int64_t n = ratio > 0 ? groups_among(spans[s].end_pos(), ratio) : 0;
        const std::int64_t first = first_stored_row(n);
        sequences_.push_back(
            {Cache(layer.memory(), packed_bytes(Packing::kWindow, c.head_dim), 0, c.window_size),
             Cache(layer.memory(), packed_bytes(Packing::kCompressed, c.head_dim), first, n - first),
             Cache(layer.memory(), packed_bytes(Packing::kIndexKey, c.index_head_dim), first, n - first),
             Buffer<float>(layer.memory(), static_cast<std::size_t>(2 * ratio * c.head_dim))});
        SpanView view{};
        view.first_token = n_tokens();
        view.n_tokens = spans[s].n_tokens;
        view.start_pos = spans[s].start_pos;
        view.window = sequences_.back().window.view();
        if (n > 0) {
            view.compressed = sequences_.back().compressed.view();
            view.index_keys = sequences_.back().index_keys.view();
        }
        if (layer.role.has_group_state()) view.group_state = sequences_.back().group_state.data();
        view.n_rank_groups = n;
        views_.push_back(view);
        for (std::int32_t i = 0; i < spans[s].n_tokens; ++i)
            tokens_.push_back({static_cast<std::int32_t>(s), spans[s].start_pos + i});
    }
    token_buffer_.set(tokens_);
    view_buffer_.set(views_);
}

LayerView TestStep::view() {
    return {0,
            &layer_.config,
            &layer_.role,
            &layer_.weights,
            &layer_.rope,
            {view_buffer_.data(), token_buffer_.data(), static_cast<std::int32_t>(views_.size()), n_tokens()}};
}

int TestStep::n_group_slots() const {
    std::int64_t most = 0;
    for (std::size_t s = 0; s < spans_.size(); ++s) most = std::max(most, n_groups(s));
    return static_cast<int>(std::min<std::int64_t>(layer_.config.index_topk, most));
}

int TestStep::n_block_slots() const {
    std::int64_t most = 0;
    for (std::size_t s = 0; s < spans_.size(); ++s) most = std::max(most, n_groups(s));
    const std::int64_t size = layer_.config.candidate_block_size;
    return size == 0 ? 0
                     : static_cast<int>(
                           std::min<std::int64_t>(layer_.config.candidate_topk_blocks, (most + size - 1) / size));
}

} // namespace ds41::test
