// Checks of a caller's tensor view, shared by weights, inputs and outputs. Each throws a sentence that starts with the
// printf-formatted name of the place.
#pragma once

#include "ds41/ds41.h"

#include <cstdint>

namespace ds41 {

// Bytes per element; 0 for a dtype that is not one number per element (Q2_K) or unknown.
std::size_t element_bytes(int dtype);

// Bytes of all elements. Throws INVALID_DTYPE or INVALID_SHAPE.
std::uint64_t tensor_bytes(const ds41_tensor &tensor);

[[gnu::format(printf, 4, 5)]] void check_tensor_shape(const ds41_tensor &tensor, const std::int64_t *shape, int n_dims,
                                                      const char *place, ...);

// data is there, flags are among `known_flags`, reserved is zero.
[[gnu::format(printf, 3, 4)]] void check_tensor_data(const ds41_tensor &tensor, std::uint32_t known_flags,
                                                     const char *place, ...);

// data is aligned to its elements.
[[gnu::format(printf, 2, 3)]] void check_tensor_alignment(const ds41_tensor &tensor, const char *place, ...);

} // namespace ds41
