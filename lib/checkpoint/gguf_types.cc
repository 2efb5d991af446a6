#include "checkpoint/gguf_types.h"

#include "numeric/ggml_blocks.h"
#include "numeric/q2_k.h"

#include <algorithm>
#include <iterator>

namespace ds41 {

namespace {

void decode_q2_k(const uint8_t *block, float *out) {
    decode_q2_k_row(block, kQ2KBlock, out);
}

template <uint32_t values, uint32_t bytes, void (*decode)(const uint8_t *, float *)>
void expand(const uint8_t *blocks, int64_t n_blocks, float *out) {
    for (int64_t i = 0; i < n_blocks; ++i) decode(blocks + i * bytes, out + i * values);
}

template <uint32_t values, uint32_t bytes, void (*decode)(const uint8_t *, float *)>
constexpr GgufType expandable(uint32_t id, const char *name) {
    return {id, name, values, bytes, expand<values, bytes, decode>};
}

// In the order of their ids.
constexpr GgufType kTypes[] = {
    expandable<1, 4, decode_f32>(kGgufF32, "F32"),
    expandable<1, 2, decode_f16>(kGgufF16, "F16"),
    expandable<32, 18, decode_q4_0>(2, "Q4_0"),
    expandable<32, 20, decode_q4_1>(3, "Q4_1"),
    expandable<32, 22, decode_q5_0>(6, "Q5_0"),
    expandable<32, 24, decode_q5_1>(7, "Q5_1"),
    expandable<32, 34, decode_q8_0>(kGgufQ8_0, "Q8_0"),
    {9, "Q8_1", 32, 36, nullptr},
    expandable<256, kQ2KBytes, decode_q2_k>(kGgufQ2K, "Q2_K"),
    expandable<256, 110, decode_q3_k>(11, "Q3_K"),
    expandable<256, 144, decode_q4_k>(kGgufQ4K, "Q4_K"),
    expandable<256, 176, decode_q5_k>(13, "Q5_K"),
    expandable<256, 210, decode_q6_k>(14, "Q6_K"),
    {15, "Q8_K", 256, 292, nullptr},
    {16, "IQ2_XXS", 256, 66, nullptr},
    {17, "IQ2_XS", 256, 74, nullptr},
    {18, "IQ3_XXS", 256, 98, nullptr},
    {19, "IQ1_S", 256, 50, nullptr},
    {20, "IQ4_NL", 32, 18, nullptr},
    {21, "IQ3_S", 256, 110, nullptr},
    {22, "IQ2_S", 256, 82, nullptr},
    {23, "IQ4_XS", 256, 136, nullptr},
    {24, "I8", 1, 1, nullptr},
    {25, "I16", 1, 2, nullptr},
    {kGgufI32, "I32", 1, 4, nullptr},
    {27, "I64", 1, 8, nullptr},
    {28, "F64", 1, 8, nullptr},
    {29, "IQ1_M", 256, 56, nullptr},
    expandable<1, 2, decode_bf16>(kGgufBf16, "BF16"),
    {34, "TQ1_0", 256, 54, nullptr},
    {35, "TQ2_0", 256, 66, nullptr},
    expandable<32, 17, decode_mxfp4>(kGgufMxfp4, "MXFP4"),
    {40, "NVFP4", 64, 36, nullptr},
    {41, "Q1_0", 128, 18, nullptr},
};

} // namespace

const GgufType *find_gguf_type(uint32_t id) {
    const auto found = std::lower_bound(std::begin(kTypes), std::end(kTypes), id,
                                        [](const GgufType &type, uint32_t wanted) { return type.id < wanted; });
    return found == std::end(kTypes) || found->id != id ? nullptr : found;
}

} // namespace ds41
