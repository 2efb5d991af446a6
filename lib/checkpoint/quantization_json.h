// What a config.json says of the fp8 weights beside it.
#pragma once

#include <string_view>

namespace ds41 {

// Throws DS41_STATUS_INVALID_FILE or DS41_STATUS_UNSUPPORTED when `quantization_config`, at the top or in text_config,
// names another scheme than the release's: quant_method "fp8", weight_block_size [32, 32], scale_fmt "ue8m0". Keys that
// are absent are taken to agree: the tensors' own dtypes and shapes are checked all the same.
void check_quantization_json(std::string_view json);

} // namespace ds41
