// ggml's tensor types as GGUF files number them: names, block sizes, and for those that weights come in the expansion
// to f32. Facts from enum ggml_type and the type traits of ggml. A type that we cannot expand still has its size, so
// that a file that holds it can be checked and its other tensors read.
#pragma once

#include <cstdint>

namespace ds41 {

// A row is a whole number of blocks; plain numbers are blocks of one value.
struct GgufType {
    uint32_t id;
    const char *name; // As ggml spells it: "Q4_K".
    uint32_t block_values;
    uint32_t block_bytes;

    // Decodes n_blocks blocks, from any address, to n_blocks * block_values floats: ggml's values to the bit. NULL for
    // a type that we cannot expand.
    void (*expand)(const uint8_t *blocks, int64_t n_blocks, float *values);
};

// The ids that these numbers have in files; every other type is known to the table alone.
enum GgufTypeId : uint32_t {
    kGgufF32 = 0,
    kGgufF16 = 1,
    kGgufQ8_0 = 8,
    kGgufQ2K = 10,
    kGgufQ4K = 12,
    kGgufI32 = 26,
    kGgufBf16 = 30,
    kGgufMxfp4 = 39,
};

// NULL for an id that is none, among them those of layouts that ggml has withdrawn (4, 5, 31 to 33, 36 to 38).
const GgufType *find_gguf_type(uint32_t id);

} // namespace ds41
