// Decodes tensors. Elements are copied byte by byte, since files need not align them.
#include "array.h"

#include "api.h"

#include <cstring>

namespace replay {

namespace {

template <class T> T element(const void *data, int64_t index) {
    T value;
    std::memcpy(&value, static_cast<const char *>(data) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
}

float from_bf16(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
}

int64_t product(const std::vector<int64_t> &shape) {
    int64_t n = 1;
    for (int64_t size : shape) n *= size;
    return n;
}

} // namespace

int64_t Array::row_size() const {
    int64_t n = 1;
    for (size_t i = 1; i < shape.size(); ++i) n *= shape[i];
    return n;
}

void Array::keep_rows(int64_t begin, int64_t end) {
    values = {row(begin), row(end)};
    shape[0] = end - begin;
}

Array filled(std::vector<int64_t> shape, float value) {
    Array array;
    array.values.assign(static_cast<size_t>(product(shape)), value);
    array.shape = std::move(shape);
    return array;
}

Array to_array(const ds41_tensor &tensor) {
    Array array = filled({tensor.shape, tensor.shape + tensor.n_dims}, 0.0f);
    const int64_t n = static_cast<int64_t>(array.values.size());
    auto fill = [&](auto decode) {
        for (int64_t i = 0; i < n; ++i) array.values[static_cast<size_t>(i)] = decode(i);
    };
    switch (tensor.dtype) {
    case DS41_DTYPE_F32:
        fill([&](int64_t i) { return element<float>(tensor.data, i); });
        break;
    case DS41_DTYPE_BF16:
        fill([&](int64_t i) { return from_bf16(element<uint16_t>(tensor.data, i)); });
        break;
    case DS41_DTYPE_I32:
        fill([&](int64_t i) { return static_cast<float>(element<int32_t>(tensor.data, i)); });
        break;
    case DS41_DTYPE_U8:
        fill([&](int64_t i) { return static_cast<float>(element<uint8_t>(tensor.data, i)); });
        break;
    default:
        throw CannotRun(std::string("a tensor to compare is ") + ds41_dtype_name(tensor.dtype) +
                        ", need F32, BF16, I32 or U8");
    }
    return array;
}

std::string to_text(const std::vector<int64_t> &shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + "]";
}

} // namespace replay
