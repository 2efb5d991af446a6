// Takes over a layer's weights: which tensors the role needs, in which formats and shapes, copied or borrowed.
#include "model/weights.h"

#include "error.h"
#include "model/tensor.h"
#include "model/weight_places.h"
#include "numeric/bf16.h"
#include "numeric/q2_k.h"
#include "numeric/ue8m0.h"

#include <cassert>
#include <cstring>
#include <vector>

namespace ds41 {

namespace {

// One element of an F32 or BF16 vector at any address.
float vector_value(const ds41_tensor &t, std::size_t i) {
    if (t.dtype == DS41_DTYPE_F32) {
        float value;
        std::memcpy(&value, static_cast<const char *>(t.data) + i * sizeof value, sizeof value);
        return value;
    }
    Bf16 value;
    std::memcpy(&value, static_cast<const char *>(t.data) + i * sizeof value, sizeof value);
    return to_f32(value);
}

class Taker {
public:
    Taker(LayerWeights &target, WeightSource source, const Memory &memory, int layer)
        : target_(target), memory_(memory), layer_(layer), borrows_(source == WeightSource::kBorrow),
          source_(borrows_ && !memory.is_host() ? WeightSource::kCopy : source) {}

    Matrix matrix(const char *name, const ds41_tensor &t, std::int64_t rows, std::int64_t cols, PlaceKind place) {
        check_present(name, t);
        const bool floating = t.dtype == DS41_DTYPE_F32 || t.dtype == DS41_DTYPE_BF16;
        const bool quantised = t.dtype == DS41_DTYPE_FP8_E4M3 || t.dtype == DS41_DTYPE_Q2_K;
        DS41_CHECK(floating || (quantised && place != PlaceKind::kFloatMatrix), DS41_STATUS_INVALID_DTYPE,
                   "weights.%s of layer %d has dtype %s, need %s", name, layer_, ds41_dtype_name(t.dtype),
                   place == PlaceKind::kFloatMatrix ? "F32 or BF16" : "F32, BF16, FP8_E4M3 or Q2_K");
        check_shape(name, t, rows, cols);
        check_data(name, t);
        if (borrows_) check_tensor_alignment(t, "weights.%s of layer %d", name, layer_);

        Matrix m;
        m.rows = rows;
        m.cols = cols;
        m.dtype = static_cast<ds41_dtype>(t.dtype);
        const bool plain = (t.flags & DS41_TENSOR_PLAIN_ACTIVATIONS) != 0;
        m.quantise_activations = !plain && (t.dtype == DS41_DTYPE_Q2_K ||
                                            (t.dtype == DS41_DTYPE_FP8_E4M3 && place == PlaceKind::kProjection));
        if (t.dtype == DS41_DTYPE_FP8_E4M3) m.scales = fp8_scales(name, t, rows, cols);
        if (t.dtype == DS41_DTYPE_Q2_K)
            DS41_CHECK(cols % kQ2KBlock == 0, DS41_STATUS_INVALID_SHAPE,
                       "weights.%s of layer %d has %lld columns, Q2_K needs a multiple of %d", name, layer_,
                       static_cast<long long>(cols), kQ2KBlock);
        m.data = source_ == WeightSource::kInPlace
                     ? static_cast<const std::uint8_t *>(t.data)
                     : take(t.data, static_cast<std::size_t>(rows) * weight_row_bytes(m.dtype, cols));
        return m;
    }

    // Norms and sinks are small: widened to f32 and copied, whoever owns the rest.
    const float *vector(const char *name, const ds41_tensor &t, std::int64_t n) {
        check_present(name, t);
        DS41_CHECK(t.dtype == DS41_DTYPE_F32 || t.dtype == DS41_DTYPE_BF16, DS41_STATUS_INVALID_DTYPE,
                   "weights.%s of layer %d has dtype %s, need F32 or BF16", name, layer_, ds41_dtype_name(t.dtype));
        const std::int64_t shape[] = {n};
        check_tensor_shape(t, shape, 1, "weights.%s of layer %d", name, layer_);
        check_data(name, t);
        std::vector<float> values(static_cast<std::size_t>(n));
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = vector_value(t, i);
        return reinterpret_cast<const float *>(copy(values.data(), values.size() * sizeof(float)));
    }

    void absent(const char *name, const ds41_tensor &t, const char *why) const {
        DS41_CHECK(t.dtype == DS41_DTYPE_NONE && t.data == nullptr, DS41_STATUS_INVALID_ARGUMENT,
                   "weights.%s is present (%s) but layer %d %s: need DS41_DTYPE_NONE and NULL", name,
                   ds41_dtype_name(t.dtype), layer_, why);
    }

private:
    void check_present(const char *name, const ds41_tensor &t) const {
        DS41_CHECK(t.dtype != DS41_DTYPE_NONE, DS41_STATUS_INVALID_ARGUMENT, "weights.%s is absent, layer %d needs it",
                   name, layer_);
    }

    void check_shape(const char *name, const ds41_tensor &t, std::int64_t rows, std::int64_t cols) const {
        const std::int64_t shape[] = {rows, cols};
        check_tensor_shape(t, shape, 2, "weights.%s of layer %d", name, layer_);
    }

    void check_data(const char *name, const ds41_tensor &t) const {
        check_tensor_data(t, DS41_TENSOR_PLAIN_ACTIVATIONS, "weights.%s of layer %d", name, layer_);
        DS41_CHECK(t.dtype == DS41_DTYPE_FP8_E4M3 || t.scales == nullptr, DS41_STATUS_INVALID_ARGUMENT,
                   "weights.%s of layer %d has scales, need NULL for dtype %s", name, layer_, ds41_dtype_name(t.dtype));
    }

    const std::uint8_t *fp8_scales(const char *name, const ds41_tensor &t, std::int64_t rows, std::int64_t cols) {
        DS41_CHECK(cols % kFp8WeightBlock == 0, DS41_STATUS_INVALID_SHAPE,
                   "weights.%s of layer %d has %lld columns, FP8_E4M3 needs a multiple of 32", name, layer_,
                   static_cast<long long>(cols));
        DS41_CHECK(t.scales != nullptr, DS41_STATUS_INVALID_ARGUMENT,
                   "weights.%s of layer %d has scales NULL, FP8_E4M3 needs one UE8M0 byte per 32 x 32 block", name,
                   layer_);
        const std::int64_t scale_rows = (rows + kFp8WeightBlock - 1) / kFp8WeightBlock,
                           scale_cols = cols / kFp8WeightBlock;
        DS41_CHECK(t.scale_shape[0] == scale_rows && t.scale_shape[1] == scale_cols, DS41_STATUS_INVALID_SHAPE,
                   "weights.%s of layer %d has scale_shape [%lld, %lld], need [%lld, %lld] (one per 32 x 32 block)",
                   name, layer_, static_cast<long long>(t.scale_shape[0]), static_cast<long long>(t.scale_shape[1]),
                   static_cast<long long>(scale_rows), static_cast<long long>(scale_cols));
        const auto n = static_cast<std::size_t>(scale_rows * scale_cols);
        const void *invalid = std::memchr(t.scales, kUe8m0Nan, n);
        DS41_CHECK(invalid == nullptr, DS41_STATUS_INVALID_ARGUMENT,
                   "weights.%s of layer %d has scale byte 255 at index %lld, need bytes in [0, 254]", name, layer_,
                   static_cast<long long>(static_cast<const std::uint8_t *>(invalid) -
                                          static_cast<const std::uint8_t *>(t.scales)));
        return take(t.scales, n);
    }

    const std::uint8_t *take(const void *data, std::size_t n_bytes) {
        return source_ == WeightSource::kBorrow ? static_cast<const std::uint8_t *>(data) : copy(data, n_bytes);
    }

    const std::uint8_t *copy(const void *data, std::size_t n_bytes) {
        Block block(memory_, n_bytes);
        memory_.upload(block.data(), data, n_bytes);
        return target_.adopt(std::move(block));
    }

    LayerWeights &target_;
    const Memory &memory_;
    int layer_;
    bool borrows_; // what was asked for: a device copies, and holds callers to the same promises
    WeightSource source_;
};

void check_sinks(const ds41_tensor &t, int layer) {
    const auto n = static_cast<std::size_t>(t.shape[0]);
    for (std::size_t h = 0; h < n; ++h)
        DS41_CHECK(!is_nan(vector_value(t, h)), DS41_STATUS_INVALID_ARGUMENT,
                   "weights.attn_sink of layer %d is NaN for head %zu, need a number", layer, h);
}

} // namespace

std::size_t weight_row_bytes(ds41_dtype dtype, std::int64_t cols) {
    const auto n = static_cast<std::size_t>(cols);
    switch (dtype) {
    case DS41_DTYPE_F32:
        return n * 4;
    case DS41_DTYPE_BF16:
        return n * 2;
    case DS41_DTYPE_FP8_E4M3:
        return n;
    case DS41_DTYPE_Q2_K:
        return n / kQ2KBlock * kQ2KBytes;
    default:
        break;
    }
    assert(false && "not a weight dtype");
    return 0;
}

std::size_t LayerWeights::n_bytes() const {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < n_blocks; ++i) sum += blocks[i].n_bytes();
    return sum;
}

std::uint8_t *LayerWeights::adopt(Block &&block) {
    assert(n_blocks < kMaxBlocks);
    blocks[n_blocks] = std::move(block);
    return blocks[n_blocks++].as<std::uint8_t>();
}

LayerWeights take_weights(const Config &config, int layer, const ds41_layer_weights &weights, WeightSource source,
                          const Memory &memory) {
    const LayerRole &role = config.role(layer);
    LayerWeights out;
    Taker take(out, source, memory, layer);
    for (const WeightPlace &place : weight_places()) {
        const ds41_tensor &tensor = weights.*place.tensor;
        if (!place.is_needed(role)) {
            take.absent(place.name, tensor, place.why_absent);
            continue;
        }
        const PlaceShape shape = place.shape(config);
        if (place.vector)
            out.*place.vector = take.vector(place.name, tensor, shape.sizes[0]);
        else
            out.*place.matrix = take.matrix(place.name, tensor, shape.sizes[0], shape.sizes[1], place.kind(role));
    }
    check_sinks(weights.attn_sink, layer);
    return out;
}

} // namespace ds41
