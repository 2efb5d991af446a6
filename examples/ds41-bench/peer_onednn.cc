// oneDNN 2: `matmul` with the matrix in whatever order it wants, brought there beforehand. (Its `inner_product` takes
// as long. Rows that are not contiguous make it leave its fast kernels: it gets them contiguous.)
#include "peers.h"

#include <dlfcn.h>
#include <dnnl.h>

#include <stdexcept>

namespace bench {

namespace {

void must(dnnl_status_t status, const char *what) {
    if (status != dnnl_success)
        throw std::runtime_error(std::string("oneDNN: ") + what + " fails with status " + std::to_string(status));
}

struct Engine {
    Engine() {
        must(dnnl_engine_create(&engine, dnnl_cpu, 0), "an engine");
        must(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags), "a stream");
    }
    dnnl_engine_t engine = nullptr;
    dnnl_stream_t stream = nullptr;
};

/// For the life of the process.
const Engine &engine() {
    static const Engine kEngine;
    return kEngine;
}

/// A buffer as oneDNN sees it.
class View {
public:
    View(const dnnl_memory_desc_t &desc, const void *data) {
        must(dnnl_memory_create(&memory_, &desc, engine().engine, const_cast<void *>(data)), "a view of memory");
    }
    View(const View &) = delete;
    View &operator=(const View &) = delete;
    ~View() { dnnl_memory_destroy(memory_); }
    dnnl_memory_t get() const { return memory_; }

private:
    dnnl_memory_t memory_ = nullptr;
};

dnnl_memory_desc_t described(int64_t rows, int64_t cols, dnnl_data_type_t type, dnnl_format_tag_t tag) {
    dnnl_memory_desc_t desc;
    const dnnl_dims_t sizes = {rows, cols};
    must(dnnl_memory_desc_init_by_tag(&desc, 2, sizes, type, tag), "a description of memory");
    return desc;
}

class Primitive {
public:
    explicit Primitive(const_dnnl_primitive_desc_t desc) { must(dnnl_primitive_create(&primitive_, desc), "creation"); }
    Primitive(const Primitive &) = delete;
    Primitive &operator=(const Primitive &) = delete;
    ~Primitive() { dnnl_primitive_destroy(primitive_); }
    template <size_t n> void run(const dnnl_exec_arg_t (&arguments)[n]) const {
        must(dnnl_primitive_execute(primitive_, engine().stream, n, arguments), "execution");
        must(dnnl_stream_wait(engine().stream), "waiting");
    }

private:
    dnnl_primitive_t primitive_ = nullptr;
};

/// Of the OpenMP that oneDNN runs on, whichever that is.
auto omp_set_threads() {
    return reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
}

class OneDnnProduct final : public PeerProduct {
public:
    OneDnnProduct(const PeerShape &shape, dnnl_data_type_t type, int threads)
        : shape_(shape), in_(described(shape.n, shape.cols, type, dnnl_ab)),
          out_(described(shape.n, shape.rows, type, dnnl_ab)) {
        if (const auto set = omp_set_threads()) set(threads);
        const dnnl_memory_desc_t any = described(shape.cols, shape.rows, type, dnnl_format_tag_any);
        dnnl_matmul_desc_t matmul;
        must(dnnl_matmul_desc_init(&matmul, &in_, &any, nullptr, &out_), "a product's description");
        dnnl_primitive_desc_t desc = nullptr;
        must(dnnl_primitive_desc_create(&desc, &matmul, nullptr, engine().engine, nullptr), "a product's choice");
        packed_ = *dnnl_primitive_desc_query_md(desc, dnnl_query_weights_md, 0);
        matmul_ = std::make_unique<Primitive>(desc);
        dnnl_primitive_desc_destroy(desc);
    }

    size_t packed_bytes() const override { return dnnl_memory_desc_get_size(&packed_); }

    void pack(const ds41::Bf16 *matrix, std::byte *packed) override {
        // [rows, cols] as it stands is [cols, rows] in the order "ba"; what is bf16 becomes f32 on the way.
        const dnnl_memory_desc_t plain = described(shape_.cols, shape_.rows, dnnl_bf16, dnnl_ba);
        dnnl_primitive_desc_t desc = nullptr;
        must(dnnl_reorder_primitive_desc_create(&desc, &plain, engine().engine, &packed_, engine().engine, nullptr),
             "a reorder's choice");
        const Primitive reorder(desc);
        dnnl_primitive_desc_destroy(desc);
        const View from(plain, matrix), to(packed_, packed);
        reorder.run({{DNNL_ARG_FROM, from.get()}, {DNNL_ARG_TO, to.get()}});
    }

    void run(const std::byte *packed, const void *in, void *out) override {
        const View source(in_, in), weights(packed_, packed), target(out_, out);
        matmul_->run({{DNNL_ARG_SRC, source.get()}, {DNNL_ARG_WEIGHTS, weights.get()}, {DNNL_ARG_DST, target.get()}});
    }

private:
    PeerShape shape_;
    dnnl_memory_desc_t in_, out_, packed_{};
    std::unique_ptr<Primitive> matmul_;
};

} // namespace

std::string why_not_onednn() {
    return "";
}

std::string why_not_onednn_bf16() {
    return dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core
               ? ""
               : about_onednn() + " has no bf16 products without AVX-512";
}

std::string about_onednn() {
    const dnnl_version_t &version = *dnnl_version();
    return "oneDNN " + std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
           std::to_string(version.patch) +
           (omp_set_threads() ? "" : ", whose number of threads is not set: it runs on no OpenMP");
}

std::unique_ptr<PeerProduct> create_onednn_bf16(const PeerShape &shape, int threads) {
    return std::make_unique<OneDnnProduct>(shape, dnnl_bf16, threads);
}

std::unique_ptr<PeerProduct> create_onednn_f32(const PeerShape &shape, int threads) {
    return std::make_unique<OneDnnProduct>(shape, dnnl_f32, threads);
}

} // namespace bench
