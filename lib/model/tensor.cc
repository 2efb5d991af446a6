// Sizes and checks of tensor views, and their sentences.
#include "model/tensor.h"

#include "error.h"
#include "numeric/q2_k.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace ds41 {

namespace {

// "[3, 64]", cut rather than overrun.
struct ShapeText {
    char text[128];

    ShapeText(const std::int64_t *shape, int n_dims) {
        std::size_t used = 0;
        const auto put = [&](const char *format, long long value) {
            const int n = std::snprintf(text + used, sizeof text - used, format, value);
            used = std::min(sizeof text - 1, used + static_cast<std::size_t>(n > 0 ? n : 0));
        };
        put("[", 0);
        for (int i = 0; i < n_dims; ++i) put(i ? ", %lld" : "%lld", static_cast<long long>(shape[i]));
        put("]", 0);
    }
};

#define DS41_FORMAT_PLACE(buffer, place)                                                                               \
    char buffer[96];                                                                                                   \
    do {                                                                                                               \
        va_list arguments;                                                                                             \
        va_start(arguments, place);                                                                                    \
        std::vsnprintf(buffer, sizeof buffer, place, arguments);                                                       \
        va_end(arguments);                                                                                             \
    } while (0)

} // namespace

std::size_t element_bytes(int dtype) {
    switch (dtype) {
    case DS41_DTYPE_F32:
    case DS41_DTYPE_I32:
        return 4;
    case DS41_DTYPE_BF16:
    case DS41_DTYPE_F16:
        return 2;
    case DS41_DTYPE_FP8_E4M3:
    case DS41_DTYPE_U8:
    case DS41_DTYPE_I8:
    case DS41_DTYPE_UE8M0:
        return 1;
    default:
        return 0;
    }
}

std::uint64_t tensor_bytes(const ds41_tensor &t) {
    const std::size_t element = element_bytes(t.dtype);
    DS41_CHECK(element != 0 || t.dtype == DS41_DTYPE_Q2_K, DS41_STATUS_INVALID_DTYPE,
               "tensor->dtype is %d, need a ds41_dtype other than NONE", t.dtype);
    DS41_CHECK(t.n_dims >= 1 && t.n_dims <= DS41_MAX_DIMS, DS41_STATUS_INVALID_SHAPE,
               "tensor->n_dims is %d, need a value in [1, %d]", t.n_dims, DS41_MAX_DIMS);
    std::int64_t n = 1;
    for (int i = 0; i < t.n_dims; ++i)
        DS41_CHECK(t.shape[i] >= 0 && !__builtin_mul_overflow(n, t.shape[i], &n), DS41_STATUS_INVALID_SHAPE,
                   "tensor->shape is %s, need dimensions of 0 or more with a product below 2^63",
                   ShapeText(t.shape, t.n_dims).text);
    if (t.dtype == DS41_DTYPE_Q2_K) {
        DS41_CHECK(t.shape[t.n_dims - 1] % kQ2KBlock == 0, DS41_STATUS_INVALID_SHAPE,
                   "tensor->shape is %s, a Q2_K row needs a multiple of %d", ShapeText(t.shape, t.n_dims).text,
                   kQ2KBlock);
        return static_cast<std::uint64_t>(n / kQ2KBlock * kQ2KBytes);
    }
    std::int64_t bytes = 0;
    DS41_CHECK(!__builtin_mul_overflow(n, static_cast<std::int64_t>(element), &bytes), DS41_STATUS_INVALID_SHAPE,
               "tensor->shape is %s, need fewer than 2^63 bytes", ShapeText(t.shape, t.n_dims).text);
    return static_cast<std::uint64_t>(bytes);
}

void check_tensor_shape(const ds41_tensor &t, const std::int64_t *shape, int n_dims, const char *place, ...) {
    bool same = t.n_dims == n_dims;
    for (int i = 0; same && i < n_dims; ++i) same = t.shape[i] == shape[i];
    if (same) return;
    DS41_FORMAT_PLACE(name, place);
    DS41_CHECK(t.n_dims >= 1 && t.n_dims <= DS41_MAX_DIMS, DS41_STATUS_INVALID_SHAPE, "%s has n_dims %d, need %d", name,
               t.n_dims, n_dims);
    throw Error(DS41_STATUS_INVALID_SHAPE, "%s has shape %s, need %s", name, ShapeText(t.shape, t.n_dims).text,
                ShapeText(shape, n_dims).text);
}

void check_tensor_data(const ds41_tensor &t, std::uint32_t known_flags, const char *place, ...) {
    const bool flags_known = (t.flags & ~known_flags) == 0;
    if (t.data != nullptr && flags_known && t.reserved == 0) return;
    DS41_FORMAT_PLACE(name, place);
    DS41_CHECK(t.data != nullptr, DS41_STATUS_INVALID_ARGUMENT, "%s has data NULL", name);
    DS41_CHECK(flags_known, DS41_STATUS_INVALID_ARGUMENT, "%s has flags 0x%x, need a subset of 0x%x", name, t.flags,
               known_flags);
    throw Error(DS41_STATUS_INVALID_ARGUMENT, "%s has reserved %u, need 0", name, t.reserved);
}

void check_tensor_alignment(const ds41_tensor &t, const char *place, ...) {
    const std::size_t alignment = std::max<std::size_t>(element_bytes(t.dtype), 1);
    const std::size_t off = reinterpret_cast<std::uintptr_t>(t.data) % alignment;
    if (off == 0) return;
    DS41_FORMAT_PLACE(name, place);
    throw Error(DS41_STATUS_INVALID_ARGUMENT,
                "%s has data %zu bytes off, need an address that is a multiple of %zu (%s)", name, off, alignment,
                ds41_dtype_name(t.dtype));
}

#undef DS41_FORMAT_PLACE

} // namespace ds41
