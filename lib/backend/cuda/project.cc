// Projections, the compressor, index queries and the output of a layer, as launches.
#include "backend/cuda/stages.h"
#include "numeric/q8.h"
#include "numeric/rows.h"

#include <array>
#include <utility>

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

// Products of x and what becomes of their rows come together for all that the layer's role asks for: a launch each, not
// one for each stage.
void CudaStages::project(const ProjectArgs &a) {
    const Config &c = *a.layer.config;
    const LayerRole &role = *a.layer.role;
    const LayerWeights &w = *a.layer.weights;
    const Bf16 *const x = a.x + std::int64_t{a.tile.first} * c.dim;
    const float *const turn = angles(a.layer) + a.tile.first * angle_count();
    const auto row_bytes = static_cast<std::int64_t>(window_row_bytes(c.head_dim));
    std::uint8_t *const window_new = a.window_new + a.tile.first * row_bytes;
    begin_tile(c, a.tile);

    Bf16 *const kv = buffer<Bf16>(kKv), *const latent = buffer<Bf16>(kLatent);
    float *const pooled = buffer<float>(kProducts);
    const Product queries_low{Input::kX, &w.wq_a, x, c.dim, a.qr, c.q_lora_rank};
    const Product window_row{Input::kX, &w.wkv, x, c.dim, kv, c.head_dim};
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
    RowJob normed = row_job(latent, c.head_dim);
    normed.norm = w.compressor_norm;
    normed.eps = c.norm_eps;
    normed.out = latent;
    normed.ratio = role.ratio;
    References touched = step_references(a.layer);
    touched.write(window_new, a.tile.n * row_bytes);

    if (role.has_group_state()) {
        Product pool{Input::kX, &w.compressor_wkv, x, c.dim, pooled, std::int64_t{2} * c.head_dim};
        pool.output = LinearOutput::kF32;
        Product gate{Input::kX, &w.compressor_wgate, x, c.dim, pooled + c.head_dim, std::int64_t{2} * c.head_dim};
        gate.output = LinearOutput::kF32;
        products(a.tile.n, {queries_low, window_row, pool, gate});
        normed.source = RowSource::kPool;
        normed.products = pooled;
        normed.rows = nullptr;
        touched.group_state(c, role.ratio, DeviceAccess::kRead);
    } else if (role.is_kv_source) {
        products(a.tile.n, {queries_low, window_row, {Input::kX, &w.compressor_wkv, x, c.dim, latent, c.head_dim}});
    } else {
        products(a.tile.n, {queries_low, window_row});
    }
    queries.quantised = quantised(Input::kQr, form_of(w.wq_b), c.q_lora_rank);
    if (role.is_kv_source) {
        if (role.is_index_source) normed.quantised = quantised(Input::kLatent, form_of(w.indexer_wk), c.head_dim);
        rows(a.layer, a.tile, {queries, window, normed}, touched);
    } else {
        rows(a.layer, a.tile, {queries, window}, touched);
    }

    Product heads{Input::kQr, &w.wq_b, a.qr, c.q_lora_rank, a.q, c.q_width()};
    heads.output = LinearOutput::kRotated;
    heads.angles = turn;
    heads.head_dim = c.head_dim;
    products(a.tile.n, {heads});
}

void CudaStages::commit_window(const LayerView &layer, const std::uint8_t *window_new) {
    if (std::exchange(has_committed_, false)) return;
    kernels::CommitWindowParams p{};
    p.window_new = window_new;
    p.tokens = tokens();
    p.spans = spans(layer);
    p.n_tokens = layout_.n_tokens;
    p.window_size = layer.config->window_size;
    p.row_bytes = static_cast<std::int32_t>(window_row_bytes(layer.config->head_dim));
    References touched = step_references(layer);
    touched.read(window_new, std::int64_t{layout_.n_tokens} * p.row_bytes);
    touched.window(*layer.config, DeviceAccess::kWrite);
    launch(DeviceOp::kCommitWindow, p, touched);
}

// From the latents that project() has made.
void CudaStages::compress(const CompressArgs &a) {
    const Config &c = *a.layer.config;
    const LayerRole &role = *a.layer.role;
    const LayerWeights &w = *a.layer.weights;
    const int n = a.tile.n;
    Bf16 *const latent = buffer<Bf16>(kLatent);
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
    References pages = step_references(a.layer);
    pages.compressed(c, role.ratio, DeviceAccess::kWrite);
    std::array<RowJob, 3> jobs = {compressed};
    std::size_t n_jobs = 1;
    if (role.is_index_source) {
        // From the latent before its rotation.
        Bf16 *const raw = buffer<Bf16>(kKey);
        products(n, {{Input::kLatent, &w.indexer_wk, latent, c.head_dim, raw, c.index_head_dim}});
        RowJob key = row_job(raw, c.index_head_dim);
        key.norm = w.indexer_k_norm;
        key.eps = c.norm_eps;
        key.angles = compressed.angles;
        key.n_pairs = layout_.n_pairs;
        key.packing = RowPacking::kIndexKey;
        key.ratio = role.ratio;
        pages.index_keys(c, role.ratio, DeviceAccess::kWrite);
        jobs[n_jobs++] = key;
    }
    if (role.has_group_state()) { // after project() has pooled what stands there
        RowJob state{};
        state.source = RowSource::kState;
        state.products = buffer<float>(kProducts);
        state.width = c.head_dim;
        state.rows_per_token = 1;
        state.ratio = role.ratio;
        pages.group_state(c, role.ratio, DeviceAccess::kWrite);
        jobs[n_jobs++] = state;
    }
    rows(a.layer, a.tile, {jobs.data(), n_jobs}, pages);
}

void CudaStages::index_query(const IndexQueryArgs &a) {
    const Config &c = *a.layer.config;
    const LayerWeights &w = *a.layer.weights;
    const Bf16 *const x = a.x + std::int64_t{a.tile.first} * c.dim;
    Bf16 *const raw = buffer<Bf16>(kIndexRaw);

    Product weights{Input::kX, &w.indexer_weights_proj, x, c.dim, a.weights, c.index_n_heads};
    weights.output = LinearOutput::kScaled;
    weights.scale = c.index_weight_scale();
    products(a.tile.n, {{Input::kQr, &w.indexer_wq_b, a.qr, c.q_lora_rank, raw, c.index_q_width()}, weights});

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
    Product slices{Input::kO, &w.wo_a, buffer<Bf16>(kRotated), c.q_width(), grouped, c.o_lora_width()};
    slices.n_slices = c.o_groups;
    if (form_of(w.wo_b) != kernels::QuantisedForm::kNone && !has_many_rows() && c.o_lora_rank % kQ8Block == 0) {
        slices.copy = quantised(Input::kGrouped, form_of(w.wo_b), c.o_lora_width());
        slices.out = nullptr;
    }
    products(a.tile.n, {slices});
    products(a.tile.n, {{Input::kGrouped, &w.wo_b, grouped, c.o_lora_width(),
                         a.out + std::int64_t{a.tile.first} * c.dim, c.dim}});
}

} // namespace ds41
