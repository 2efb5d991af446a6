// Products and row jobs: which kernel computes them, or cuBLAS.
#include "backend/cuda/stages.h"
#include "numeric/q8.h"
#include "numeric/rows.h"

#include <algorithm>

namespace ds41 {

using kernels::kMaxLinearRows;
using kernels::LinearFormat;
using kernels::LinearOutput;
using kernels::QuantisedForm;
using kernels::QuantisedRows;

namespace {

LinearFormat format_of(const Matrix &weights) {
    switch (weights.dtype) {
    case DS41_DTYPE_F32:
        return LinearFormat::kF32;
    case DS41_DTYPE_FP8_E4M3:
        return LinearFormat::kFp8;
    case DS41_DTYPE_Q2_K:
        return weights.quantise_activations ? LinearFormat::kQ2K : LinearFormat::kQ2KPlain;
    default:
        return LinearFormat::kBf16;
    }
}

// Those from row `first` on.
QuantisedRows rows_from(std::int64_t first, QuantisedRows rows) {
    if (rows.values) rows.values += first * rows.width;
    if (rows.codes) rows.codes += first * rows.width;
    if (rows.scales) rows.scales += first * (rows.width / kQ8Block);
    return rows;
}

std::size_t output_bytes(LinearOutput output) {
    return output == LinearOutput::kF32 ? sizeof(float) : sizeof(Bf16);
}

} // namespace

QuantisedForm CudaStages::form_of(const Matrix &weights) {
    if (!weights.quantise_activations) return QuantisedForm::kNone;
    return weights.dtype == DS41_DTYPE_Q2_K ? QuantisedForm::kQ8 : QuantisedForm::kFp8;
}

namespace {

std::size_t aligned(std::size_t n_bytes) {
    constexpr std::size_t kAlign = 16; // of vector loads
    return (n_bytes + kAlign - 1) / kAlign * kAlign;
}

} // namespace

std::size_t CudaStages::quantised_bytes(const Config &c, Input input, std::size_t n_tile) noexcept {
    const std::int64_t width = input == Input::kX        ? c.dim
                               : input == Input::kQr     ? c.q_lora_rank
                               : input == Input::kLatent ? c.head_dim
                               : input == Input::kO      ? c.q_width()
                                                         : c.o_lora_width();
    // As bf16, which is more than codes and scales are.
    static_assert(sizeof(Bf16) * kQ8Block >= kQ8Block + sizeof(float));
    return aligned(n_tile * static_cast<std::size_t>(width) * sizeof(Bf16)) + aligned(1);
}

void CudaStages::begin_tile(const Config &config, const Tile &tile) {
    made_.fill(QuantisedForm::kNone);
    tile_tokens_ = tile.n;
    auto *at = buffer<unsigned char>(kQuantised);
    for (std::size_t input = 0; input < made_at_.size(); ++input) {
        made_at_[input] = at;
        at += quantised_bytes(config, static_cast<Input>(input), static_cast<std::size_t>(tile.n));
    }
}

QuantisedRows CudaStages::quantised(Input input, QuantisedForm form, std::int64_t width) {
    made_[static_cast<std::size_t>(input)] = form;
    if (form == QuantisedForm::kNone) return {};
    unsigned char *const at = made_at_[static_cast<std::size_t>(input)];
    QuantisedRows rows{};
    rows.form = form;
    rows.width = static_cast<std::int32_t>(width);
    if (form == QuantisedForm::kFp8) {
        rows.values = reinterpret_cast<Bf16 *>(at);
    } else {
        rows.codes = reinterpret_cast<std::int8_t *>(at);
        rows.scales = reinterpret_cast<float *>(at + aligned(static_cast<std::size_t>(tile_tokens_ * width)));
    }
    return rows;
}

void CudaStages::products(int n, std::initializer_list<Product> list) {
    // Few rows are bound by the weights, and one launch takes all matrices of a format. Many are bound by the products:
    // cuBLAS, where its arithmetic is ours; otherwise the same kernel, in rounds.
    for (const LinearFormat format :
         {LinearFormat::kBf16, LinearFormat::kF32, LinearFormat::kFp8, LinearFormat::kQ2K, LinearFormat::kQ2KPlain}) {
        std::array<Product, kernels::kMaxLinearSegments> linear; // no allocation in a decode step
        std::size_t n_linear = 0;
        const auto flush = [&] {
            for (int first = 0; n_linear > 0 && first < n; first += kMaxLinearRows)
                linear_products(first, std::min(kMaxLinearRows, n - first), linear.data(), n_linear);
            n_linear = 0;
        };
        for (const Product &product : list) {
            if (format_of(*product.weights) != format) continue;
            const QuantisedForm form = form_of(*product.weights);
            if (form != QuantisedForm::kNone && made_[static_cast<std::size_t>(product.input)] != form) {
                flush(); // of the other form, of the same input perhaps
                quantise(n, product);
            }
            const bool plain = product.output == LinearOutput::kBf16 || product.output == LinearOutput::kRotated;
            if (has_many_rows() && format == LinearFormat::kBf16 && plain && product.copy.form == QuantisedForm::kNone)
                gemm_product(n, product);
            else
                linear[n_linear++] = product;
        }
        flush();
    }
}

void CudaStages::linear_products(int first, int n, const Product *list, std::size_t n_list) {
    kernels::LinearParams p{};
    p.n = n;
    p.format = format_of(*list[0].weights);
    References touched = references();
    for (std::size_t i = 0; i < n_list; ++i) {
        const Product &product = list[i];
        const Matrix &w = *product.weights;
        const std::int64_t width = w.cols * product.n_slices;
        kernels::LinearSegment &s = p.segments[p.n_segments++];
        s.weights = w.data;
        s.scales = w.scales;
        s.x = product.x + first * product.stride_x;
        s.stride_x = product.stride_x;
        if (const QuantisedForm form = form_of(w); form != QuantisedForm::kNone) {
            const QuantisedRows rows = rows_from(first, quantised(product.input, form, width));
            touched.quantised(rows, n, DeviceAccess::kRead);
            s.codes = rows.codes;
            s.code_scales = rows.scales;
            s.x = rows.values;
            s.stride_x = width;
        } else {
            touched.read(s.x, (n - 1) * s.stride_x + width);
        }
        s.out = product.out ? static_cast<unsigned char *>(product.out) +
                                  static_cast<std::size_t>(first * product.stride_out) * output_bytes(product.output)
                            : nullptr;
        s.stride_out = product.stride_out;
        s.rows = static_cast<std::int32_t>(w.rows / product.n_slices);
        s.k = static_cast<std::int32_t>(w.cols);
        s.n_slices = product.n_slices;
        s.output = product.output;
        s.scale = product.scale;
        s.head_dim = product.head_dim;
        s.n_pairs = layout_.n_pairs;
        s.angles = product.angles ? product.angles + first * angle_count() : nullptr;
        s.quantised = rows_from(first, product.copy);
        touched.bytes(w.data, static_cast<std::size_t>(w.rows) * weight_row_bytes(w.dtype, w.cols), DeviceAccess::kRead)
            .quantised(s.quantised, n, DeviceAccess::kWrite);
        if (s.out)
            touched.bytes(s.out,
                          static_cast<std::size_t>((n - 1) * s.stride_out + w.rows) * output_bytes(product.output),
                          DeviceAccess::kWrite);
        if (w.scales) touched.read(w.scales, (w.rows + kFp8WeightBlock - 1) / kFp8WeightBlock * w.scale_cols());
        if (s.angles) touched.read(s.angles, n * angle_count());
    }
    launch(DeviceOp::kLinear, p, touched);
}

void CudaStages::quantise(int n, const Product &product) {
    kernels::QuantiseParams p{};
    p.x = product.x;
    p.stride_x = product.stride_x;
    p.n = n;
    const std::int64_t width = product.weights->cols * product.n_slices;
    p.out = quantised(product.input, form_of(*product.weights), width);
    launch(DeviceOp::kQuantise, p,
           references().read(p.x, (n - 1) * p.stride_x + width).quantised(p.out, n, DeviceAccess::kWrite));
}

void CudaStages::gemm_product(int n, const Product &product) {
    const Matrix &w = *product.weights;
    const DeviceGemm gemm = {product.x,
                             reinterpret_cast<const Bf16 *>(w.data),
                             static_cast<Bf16 *>(product.out),
                             product.stride_x,
                             product.stride_out,
                             n,
                             static_cast<std::int32_t>(w.rows / product.n_slices),
                             static_cast<std::int32_t>(w.cols),
                             product.n_slices};
    check_device(device_, device_.gemm(stream_, &gemm), "multiplying matrices");
    if (product.output == LinearOutput::kRotated) rotate_heads(n, product);
}

void CudaStages::rotate_heads(int n, const Product &product) {
    if (layout_.n_pairs == 0) return;
    kernels::RowsParams p{};
    kernels::RowJob &job = p.jobs[0];
    auto *const heads = static_cast<Bf16 *>(product.out);
    job.rows = heads;
    job.out = heads;
    job.stride_rows = job.stride_out = product.stride_out;
    job.width = product.head_dim;
    job.rows_per_token = static_cast<std::int32_t>(product.weights->rows / product.head_dim);
    job.angles = product.angles;
    job.n_pairs = layout_.n_pairs;
    p.n_jobs = 1;
    p.tokens = tokens();
    p.n = n;
    launch(DeviceOp::kRows, p,
           references()
               .read(tokens(), layout_.n_token_slots)
               .bytes(heads,
                      static_cast<std::size_t>((n - 1) * product.stride_out + product.weights->rows) * sizeof(Bf16),
                      DeviceAccess::kReadWrite)
               .read(product.angles, n * angle_count()));
}

void CudaStages::rows(const LayerView &layer, const Tile &tile, std::span<const kernels::RowJob> jobs,
                      References more) {
    kernels::RowsParams p{};
    for (const kernels::RowJob &job : jobs) {
        p.jobs[p.n_jobs++] = job;
        const std::int64_t width = std::int64_t{job.rows_per_token} * job.width;
        if (job.rows) more.read(job.rows, (tile.n - 1) * job.stride_rows + width);
        if (job.products) more.read(job.products, std::int64_t{tile.n} * 2 * job.width);
        if (job.norm) more.read(job.norm, job.width);
        if (job.angles) more.read(job.angles, tile.n * angle_count());
        more.quantised(job.quantised, tile.n, DeviceAccess::kWrite);
        if (job.out)
            more.bytes(job.out, static_cast<std::size_t>((tile.n - 1) * job.stride_out + width) * sizeof(Bf16),
                       DeviceAccess::kWrite);
    }
    p.tokens = tokens();
    p.spans = spans(layer);
    p.first = tile.first;
    p.n = tile.n;
    more.read(tokens(), layout_.n_token_slots).read(spans(layer), layout_.n_span_slots);
    launch(DeviceOp::kRows, p, more);
}

} // namespace ds41
