// Products and row jobs: which kernel computes them, or cuBLAS.
#include "backend/cuda/stages.h"
#include "numeric/q8.h"
#include "numeric/rows.h"

#include <algorithm>

namespace ds41 {

using kernels::kMaxLinearRows;
using kernels::LinearFormat;
using kernels::LinearOutput;

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

std::size_t output_bytes(LinearOutput output) {
    return output == LinearOutput::kF32 ? sizeof(float) : sizeof(Bf16);
}

} // namespace

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
        const Bf16 *quantised = nullptr; // x that stands in kQ8Codes: products that share it need it once
        for (const Product &product : list) {
            if (format_of(*product.weights) != format) continue;
            if (format == LinearFormat::kQ2K && product.x != quantised) {
                flush();
                quantise_q8(n, product);
                quantised = product.x;
            }
            const bool plain = product.output == LinearOutput::kBf16 || product.output == LinearOutput::kRotated;
            if (has_many_rows() && format == LinearFormat::kBf16 && plain)
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
        kernels::LinearSegment &s = p.segments[p.n_segments++];
        s.weights = w.data;
        s.scales = w.scales;
        s.x = product.x + first * product.stride_x;
        s.stride_x = product.stride_x;
        s.out = static_cast<unsigned char *>(product.out) +
                static_cast<std::size_t>(first * product.stride_out) * output_bytes(product.output);
        s.stride_out = product.stride_out;
        s.rows = static_cast<std::int32_t>(w.rows / product.n_slices);
        s.k = static_cast<std::int32_t>(w.cols);
        s.n_slices = product.n_slices;
        s.output = product.output;
        s.scale = product.scale;
        s.head_dim = product.head_dim;
        s.n_pairs = layout_.n_pairs;
        s.angles = product.angles ? product.angles + first * angle_count() : nullptr;
        s.quantise = w.quantise_activations;
        const std::int64_t width = w.cols * product.n_slices;
        if (p.format == LinearFormat::kQ2K) {
            s.codes = buffer<std::int8_t>(kQ8Codes) + first * width;
            s.code_scales = buffer<float>(kQ8Scales) + first * (width / kQ8Block);
            touched.read(s.codes, n * width).read(s.code_scales, n * (width / kQ8Block));
        } else {
            touched.read(s.x, (n - 1) * s.stride_x + width);
        }
        touched.bytes(w.data, static_cast<std::size_t>(w.rows) * weight_row_bytes(w.dtype, w.cols), DeviceAccess::kRead)
            .bytes(s.out, static_cast<std::size_t>((n - 1) * s.stride_out + w.rows) * output_bytes(product.output),
                   DeviceAccess::kWrite);
        if (w.scales) touched.read(w.scales, (w.rows + kFp8WeightBlock - 1) / kFp8WeightBlock * w.scale_cols());
        if (s.angles) touched.read(s.angles, n * angle_count());
    }
    launch(DeviceOp::kLinear, p, touched);
}

void CudaStages::quantise_q8(int n, const Product &product) {
    const std::int64_t width = product.weights->cols * product.n_slices;
    const kernels::QuantiseQ8Params p = {
        product.x, buffer<std::int8_t>(kQ8Codes),   buffer<float>(kQ8Scales), product.stride_x,
        n,         static_cast<std::int32_t>(width)};
    launch(DeviceOp::kQuantiseQ8, p,
           references()
               .read(p.x, (n - 1) * p.stride_x + width)
               .write(p.codes, n * width)
               .write(p.scales, n * (width / kQ8Block)));
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
               .read(tokens(), layout_.n_tokens)
               .bytes(heads,
                      static_cast<std::size_t>((n - 1) * product.stride_out + product.weights->rows) * sizeof(Bf16),
                      DeviceAccess::kReadWrite)
               .read(product.angles, n * angle_count()));
}

void CudaStages::rows(const LayerView &layer, const Tile &tile, std::initializer_list<kernels::RowJob> jobs,
                      References more) {
    kernels::RowsParams p{};
    for (const kernels::RowJob &job : jobs) {
        p.jobs[p.n_jobs++] = job;
        const std::int64_t width = std::int64_t{job.rows_per_token} * job.width;
        if (job.rows) more.read(job.rows, (tile.n - 1) * job.stride_rows + width);
        if (job.products) more.read(job.products, std::int64_t{tile.n} * 2 * job.width);
        if (job.norm) more.read(job.norm, job.width);
        if (job.angles) more.read(job.angles, tile.n * angle_count());
        if (job.out)
            more.bytes(job.out, static_cast<std::size_t>((tile.n - 1) * job.stride_out + width) * sizeof(Bf16),
                       DeviceAccess::kWrite);
    }
    p.tokens = tokens();
    p.spans = spans(layer);
    p.first = tile.first;
    p.n = tile.n;
    more.read(tokens(), layout_.n_tokens).read(spans(layer), layout_.n_spans);
    launch(DeviceOp::kRows, p, more);
}

} // namespace ds41
