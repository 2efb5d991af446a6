// The shapes of a sequence's memory by layer role, and its growth.
#include "sequence/sequence.h"

#include "numeric/rows.h"

namespace ds41 {

namespace {

// Empty state of a layer. The shapes follow from the configuration, so that sizes can be asked for before there is one.
Sequence::LayerState empty_state(const Model &model, int layer) {
    const Config &c = model.config();
    const LayerRole &role = c.role(layer);
    const Memory &memory = model.memory();
    const std::int64_t max_groups = role.ratio > 0 ? groups_among(c.max_seq_len, role.ratio) : 0;
    return {0, PagedRows(memory, window_row_bytes(c.head_dim), c.window_size),
            PagedRows(memory, compressed_row_bytes(c.head_dim), role.is_kv_source ? max_groups : 0),
            PagedRows(memory, index_key_row_bytes(c.index_head_dim), role.writes_index_keys() ? max_groups : 0),
            Block()};
}

std::size_t group_state_bytes(const Config &c, const LayerRole &role) {
    return role.has_group_state()
               ? 2 * static_cast<std::size_t>(role.ratio) * static_cast<std::size_t>(c.head_dim) * sizeof(float)
               : 0;
}

std::int64_t window_rows(const Config &c, std::int64_t n_positions) {
    return std::min<std::int64_t>(n_positions, c.window_size);
}

} // namespace

Sequence::Sequence(std::shared_ptr<const Model> model) : model_(std::move(model)) {
    const int n_layers = model_->config().n_layers_total();
    layers_.reserve(static_cast<std::size_t>(n_layers));
    for (int layer = 0; layer < n_layers; ++layer) layers_.push_back(empty_state(*model_, layer));
}

void Sequence::reserve(int layer, std::int64_t n_positions) {
    const Config &c = model_->config();
    const LayerRole &role = c.role(layer);
    LayerState &state = this->layer(layer);
    state.window.reserve(window_rows(c, n_positions));
    if (!role.is_kv_source) return;
    const std::int64_t n_groups = groups_among(n_positions, role.ratio);
    state.compressed.reserve(n_groups);
    if (role.writes_index_keys()) state.index_keys.reserve(n_groups);
    if (n_positions > 0 && state.group_state.n_bytes() == 0)
        state.group_state = Block(model_->memory(), group_state_bytes(c, role));
}

void Sequence::reset() noexcept {
    for (LayerState &state : layers_) state.position = 0;
    claim();
}

void Sequence::close() noexcept {
    claim();
    std::vector<LayerState>().swap(layers_);
}

SequenceBytes Sequence::bytes() const {
    SequenceBytes sum;
    for (const LayerState &state : layers_)
        sum.add({state.window.n_bytes(), state.compressed.n_bytes(), state.index_keys.n_bytes(),
                 state.group_state.n_bytes()});
    return sum;
}

SequenceBytes Sequence::bytes_for(const Model &model, int layer, std::int64_t n_positions) {
    const Config &c = model.config();
    const LayerRole &role = c.role(layer);
    const LayerState state = empty_state(model, layer);
    SequenceBytes bytes;
    bytes.window = state.window.bytes_for(window_rows(c, n_positions));
    if (!role.is_kv_source) return bytes;
    const std::int64_t n_groups = groups_among(n_positions, role.ratio);
    bytes.compressed = state.compressed.bytes_for(n_groups);
    if (role.writes_index_keys()) bytes.index_keys = state.index_keys.bytes_for(n_groups);
    if (n_positions > 0) bytes.group_state = group_state_bytes(c, role);
    return bytes;
}

} // namespace ds41
