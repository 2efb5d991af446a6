// Projections, the compressor, index queries and the output of a layer, as launches.
#include "backend/cuda/stages.h"
#include "numeric/rows.h"

#include <algorithm>

namespace ds41 {

using kernels::LinearOutput;
using kernels::RowJob;
using kernels::RowPacking;
using kernels::RowSource;

namespace {

// One row of `width` values a token.
RowJob row_job(const Bf16 *rows, std::int64_t width) {
    RowJob job{};
    job.rows = rows;
    job.stride_rows = job.stride_out = width;
    job.rows_per_token = 1;
    job.width = static_cast<std::int32_t>(width);
    return job;
}

} // namespace

void CudaStages::project(const ProjectArgs &a) {
    const Config &c = *a.layer.config;
    const LayerWeights &w = *a.layer.weights;
    const Bf16 *const x = a.x + std::int64_t{a.tile.first} * c.dim;
    Bf16 *const kv = buffer<Bf16>(kKv);
    const float *const turn = angles(a.layer) + a.tile.first * angle_count();
    const auto row_bytes = static_cast<std::int64_t>(window_row_bytes(c.head_dim));
    std::uint8_t *const window_new = a.window_new + a.tile.first * row_bytes;

    products(a.tile.n, {{&w.wq_a, x, c.dim, a.qr, c.q_lora_rank}, {&w.wkv, x, c.dim, kv, c.head_dim}});

    RowJob queries = row_job(a.qr, c.q_lora_rank);
    queries.norm = w.q_norm;
    queries.eps = c.norm_eps;
    queries.out = a.qr;
    RowJob window = row_job(kv, c.head_dim);
    window.norm = w.kv_norm;
    window.eps = c.norm_eps;
    window.angles = turn;
    window.n_pairs = layout_.n_pairs;
    window.packing = RowPacking::kWindow; // the whole row, the rotated tail included
    window.packed = window_new;
    rows(a.layer, a.tile, {queries, window}, references().write(window_new, a.tile.n * row_bytes));

    Product heads{&w.wq_b, a.qr, c.q_lora_rank, a.q, c.q_width()};
    heads.output = LinearOutput::kRotated;
    heads.angles = turn;
    heads.head_dim = c.head_dim;
    products(a.tile.n, {heads});
}

void CudaStages::commit_window(const LayerView &layer, const std::uint8_t *window_new) {
    kernels::CommitWindowParams p{};
    p.window_new = window_new;
    p.tokens = tokens();
    p.spans = spans(layer);
    p.n_tokens = layout_.n_tokens;
    p.window_size = layer.config->window_size;
    p.row_bytes = static_cast<std::int32_t>(window_row_bytes(layer.config->head_dim));
    References touched = step_references(layer);
    touched.read(window_new, std::int64_t{layout_.n_tokens} * p.row_bytes);
    for (int s = 0; s < layout_.n_spans; ++s) touched.rows(layer.step.spans[s].window, DeviceAccess::kWrite);
    launch(DeviceOp::kCommitWindow, p, touched);
}

void CudaStages::compress(const CompressArgs &a) {
    const Config &c = *a.layer.config;
    const LayerRole &role = *a.layer.role;
    const LayerWeights &w = *a.layer.weights;
    const Bf16 *const x = a.x + std::int64_t{a.tile.first} * c.dim;
    const int n = a.tile.n;
    Bf16 *const latent = buffer<Bf16>(kLatent);
    float *const pooled = buffer<float>(kProducts);
    const std::int64_t group_floats = std::int64_t{2} * role.ratio * c.head_dim;

    RowJob norm = row_job(latent, c.head_dim);
    norm.norm = w.compressor_norm;
    norm.eps = c.norm_eps;
    norm.out = latent;
    norm.ratio = role.ratio;
    References states = references();
    if (role.has_group_state()) {
        Product kv{&w.compressor_wkv, x, c.dim, pooled, std::int64_t{2} * c.head_dim};
        kv.output = LinearOutput::kF32;
        Product gate{&w.compressor_wgate, x, c.dim, pooled + c.head_dim, std::int64_t{2} * c.head_dim};
        gate.output = LinearOutput::kF32;
        products(n, {kv, gate});
        norm.source = RowSource::kPool;
        norm.products = pooled;
        norm.rows = nullptr;
        for (int s = 0; s < layout_.n_spans; ++s) states.read(a.layer.step.spans[s].group_state, group_floats);
    } else {
        products(n, {{&w.compressor_wkv, x, c.dim, latent, c.head_dim}});
    }
    rows(a.layer, a.tile, {norm}, states);

    if (a.tap_latents)
        for (int i = 0; i < n; ++i) {
            const TokenView &token = a.layer.step.tokens[a.tile.first + i];
            if ((token.pos + 1) % role.ratio != 0) continue;
            const std::int64_t group =
                token.pos / role.ratio - groups_among(a.layer.step.spans[token.span].start_pos, role.ratio);
            check_device(device_,
                         device_.copy(stream_, a.tap_latents[token.span] + group * c.head_dim,
                                      latent + std::int64_t{i} * c.head_dim,
                                      static_cast<std::size_t>(c.head_dim) * sizeof(Bf16)),
                         "copying a latent");
        }

    RowJob compressed = row_job(latent, c.head_dim);
    compressed.angles = group_angles(a.layer) + a.tile.first * angle_count();
    compressed.n_pairs = layout_.n_pairs;
    compressed.packing = RowPacking::kCompressed;
    compressed.ratio = role.ratio;
    References pages = references();
    for (int s = 0; s < layout_.n_spans; ++s) pages.rows(a.layer.step.spans[s].compressed, DeviceAccess::kWrite);
    if (role.is_index_source) {
        // From the latent before its rotation.
        Bf16 *const raw = buffer<Bf16>(kKey);
        products(n, {{&w.indexer_wk, latent, c.head_dim, raw, c.index_head_dim}});
        RowJob key = row_job(raw, c.index_head_dim);
        key.norm = w.indexer_k_norm;
        key.eps = c.norm_eps;
        key.angles = compressed.angles;
        key.n_pairs = layout_.n_pairs;
        key.packing = RowPacking::kIndexKey;
        key.ratio = role.ratio;
        for (int s = 0; s < layout_.n_spans; ++s) pages.rows(a.layer.step.spans[s].index_keys, DeviceAccess::kWrite);
        rows(a.layer, a.tile, {compressed, key}, pages);
    } else {
        rows(a.layer, a.tile, {compressed}, pages);
    }

    if (!role.has_group_state()) return;
    kernels::GroupStateParams p{};
    p.products = pooled;
    p.tokens = tokens();
    p.spans = spans(a.layer);
    p.first = a.tile.first;
    p.n = n;
    p.width = c.head_dim;
    p.ratio = role.ratio;
    References touched = step_references(a.layer);
    touched.read(pooled, std::int64_t{n} * 2 * c.head_dim);
    for (int s = 0; s < layout_.n_spans; ++s) touched.write(a.layer.step.spans[s].group_state, group_floats);
    launch(DeviceOp::kGroupState, p, touched);
}

void CudaStages::index_query(const IndexQueryArgs &a) {
    const Config &c = *a.layer.config;
    const LayerWeights &w = *a.layer.weights;
    const Bf16 *const x = a.x + std::int64_t{a.tile.first} * c.dim;
    Bf16 *const raw = buffer<Bf16>(kIndexRaw);

    Product weights{&w.indexer_weights_proj, x, c.dim, a.weights, c.index_n_heads};
    weights.output = LinearOutput::kScaled;
    weights.scale = c.index_weight_scale();
    products(a.tile.n, {{&w.indexer_wq_b, a.qr, c.q_lora_rank, raw, c.index_q_width()}, weights});

    RowJob query = row_job(raw, c.index_head_dim);
    query.stride_rows = c.index_q_width();
    query.rows_per_token = c.index_n_heads;
    query.angles = angles(a.layer) + a.tile.first * angle_count();
    query.n_pairs = layout_.n_pairs;
    query.packing = RowPacking::kIndexKey;
    query.packed = a.iq;
    const auto n_bytes = static_cast<std::int64_t>(index_key_row_bytes(c.index_head_dim)) * a.tile.n * c.index_n_heads;
    rows(a.layer, a.tile, {query}, references().write(a.iq, n_bytes));
}

void CudaStages::output(const OutputArgs &a) {
    const Config &c = *a.layer.config;
    const LayerWeights &w = *a.layer.weights;
    Bf16 *const grouped = buffer<Bf16>(kGrouped);
    Product slices{&w.wo_a, buffer<Bf16>(kRotated), c.q_width(), grouped, c.o_lora_width()};
    slices.n_slices = c.o_groups;
    products(a.tile.n, {slices});
    products(a.tile.n, {{&w.wo_b, grouped, c.o_lora_width(), a.out + std::int64_t{a.tile.first} * c.dim, c.dim}});
}

} // namespace ds41
