// The public header alone in a C++ file, first and twice: names have C linkage, and enumerators convert to the int32_t
// members that hold them. A C++ caller needs nothing else.
#include "ds41/ds41.h"

#include <type_traits>

static_assert(std::is_standard_layout_v<ds41_tensor> && std::is_trivial_v<ds41_tensor>);
static_assert(std::is_standard_layout_v<ds41_config> && std::is_trivial_v<ds41_config>);
static_assert(std::is_standard_layout_v<ds41_layer_weights> && std::is_trivial_v<ds41_layer_weights>);
static_assert(std::is_standard_layout_v<ds41_span> && std::is_trivial_v<ds41_span>);

// A second declaration in an extern "C" block fits only if the header's has C linkage as well.
extern "C" const char *ds41_version(void);

int main() {
    const int64_t shape[2] = {3, 5};
    float values[15] = {};
    ds41_tensor tensor;
    ds41_tensor_init(&tensor, values, DS41_DTYPE_F32, 2, shape);
    uint64_t n_bytes = 0;
    const bool ok = ds41_tensor_get_bytes(&tensor, &n_bytes) == DS41_STATUS_OK && n_bytes == sizeof(values);
    return ok && ds41_version()[0] != '\0' ? 0 : 1;
}
