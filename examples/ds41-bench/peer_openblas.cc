// OpenBLAS: `sgemm`, which brings the matrix into its own order anew in each call.
#include "peers.h"

#include <cblas.h>

namespace bench {

namespace {

class OpenBlasProduct final : public PeerProduct {
public:
    OpenBlasProduct(const PeerShape &shape, int threads) : shape_(shape) { openblas_set_num_threads(threads); }

    size_t packed_bytes() const override { return static_cast<size_t>(shape_.rows * shape_.cols) * sizeof(float); }

    void pack(const ds41::Bf16 *matrix, std::byte *packed) override {
        auto *values = reinterpret_cast<float *>(packed);
        for (int64_t i = 0; i < shape_.rows * shape_.cols; ++i) values[i] = to_f32(matrix[i]);
    }

    void run(const std::byte *packed, const void *in, void *out) override {
        const auto size = [](int64_t n) { return static_cast<blasint>(n); };
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, size(shape_.n), size(shape_.rows), size(shape_.cols), 1,
                    static_cast<const float *>(in), size(shape_.cols), reinterpret_cast<const float *>(packed),
                    size(shape_.cols), 0, static_cast<float *>(out), size(shape_.rows));
    }

private:
    PeerShape shape_;
};

} // namespace

std::string why_not_openblas() {
    return "";
}

std::string about_openblas() {
    std::string about = openblas_get_config(); // "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..."
    return about.substr(0, about.find(' ', about.find(' ') + 1));
}

std::unique_ptr<PeerProduct> create_openblas(const PeerShape &shape, int threads) {
    return std::make_unique<OpenBlasProduct>(shape, threads);
}

} // namespace bench
