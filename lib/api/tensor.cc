// Tensor views and dtype names.
#include "model/tensor.h"

#include "api/boundary.h"

using namespace ds41;

void ds41_tensor_init(ds41_tensor *tensor, void *data, int32_t dtype, int32_t n_dims, const int64_t *shape) {
    if (!tensor) return;
    *tensor = ds41_tensor{};
    tensor->data = data;
    tensor->dtype = dtype;
    tensor->n_dims = n_dims;
    for (int i = 0; shape && i < n_dims && i < DS41_MAX_DIMS; ++i) tensor->shape[i] = shape[i];
}

ds41_status ds41_tensor_get_bytes(const ds41_tensor *tensor, uint64_t *n_bytes) {
    return guarded(__func__, [&] {
        check_argument(tensor, "tensor");
        check_argument(n_bytes, "n_bytes");
        *n_bytes = tensor_bytes(*tensor);
    });
}

const char *ds41_dtype_name(int32_t dtype) {
    switch (dtype) {
    case DS41_DTYPE_NONE:
        return "NONE";
    case DS41_DTYPE_F32:
        return "F32";
    case DS41_DTYPE_BF16:
        return "BF16";
    case DS41_DTYPE_FP8_E4M3:
        return "FP8_E4M3";
    case DS41_DTYPE_Q2_K:
        return "Q2_K";
    case DS41_DTYPE_I32:
        return "I32";
    case DS41_DTYPE_U8:
        return "U8";
    case DS41_DTYPE_I8:
        return "I8";
    case DS41_DTYPE_F16:
        return "F16";
    case DS41_DTYPE_UE8M0:
        return "UE8M0";
    default:
        return "unknown dtype";
    }
}
