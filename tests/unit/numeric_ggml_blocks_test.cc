// ggml's block formats: random blocks against a second derivation that goes element by element through the format's
// definition, golden blocks against what the Python package gguf makes of them, and the table of types in files.
#include "checkpoint/gguf_types.h"
#include "numeric/e2m1.h"
#include "numeric/ggml_blocks.h"
#include "numeric/ue8m0.h"

#include "support/compare.h"
#include "support/random.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>

using namespace ds41;
using namespace ds41::test;

namespace {

using Bytes = std::vector<std::uint8_t>;

struct Format {
    std::uint32_t id;
    std::string name;
    std::uint32_t n_values, n_bytes;
    std::vector<std::size_t> halves; // where fp16 numbers stand
    double (*element)(const std::uint8_t *block, int e);
};

double half(const std::uint8_t *bytes) {
    return static_cast<double>(f16_to_f32(static_cast<std::uint16_t>(bytes[0] + 256 * bytes[1])));
}

// Bits first to first + n - 1 of a field, counted from the lowest bit of its first byte.
int bits(const std::uint8_t *field, int first, int n) {
    int value = 0;
    for (int i = 0; i < n; ++i) value += (field[(first + i) / 8] >> ((first + i) % 8) & 1) << i;
    return value;
}

// Where value e has its four bits: halves of a group of n stand in the low and in the high nibbles.
int nibble(const std::uint8_t *field, int e, int n) {
    return bits(field + e / n * (n / 2), e % n % (n / 2) * 8 + e % n / (n / 2) * 4, 4);
}

double q4_0(const std::uint8_t *b, int e) {
    return half(b) * (nibble(b + 2, e, 32) - 8);
}
double q4_1(const std::uint8_t *b, int e) {
    return half(b) * nibble(b + 4, e, 32) + half(b + 2);
}
double q5_0(const std::uint8_t *b, int e) {
    return half(b) * (nibble(b + 6, e, 32) + 16 * bits(b + 2, e, 1) - 16);
}
double q5_1(const std::uint8_t *b, int e) {
    return half(b) * (nibble(b + 8, e, 32) + 16 * bits(b + 4, e, 1)) + half(b + 2);
}
double q8_0(const std::uint8_t *b, int e) {
    return half(b) * (b[2 + e] < 128 ? b[2 + e] : b[2 + e] - 256);
}
double mxfp4(const std::uint8_t *b, int e) {
    const double code = static_cast<double>(e2m1_to_f32(static_cast<std::uint8_t>(nibble(b + 1, e, 32))));
    const double value = code * std::ldexp(1.0, b[0] - 127);
    if (code == 0) return 0.0; // ggml's integer codes have one zero
    return std::fabs(value) < 0x1p128 ? value : std::copysign(std::numeric_limits<double>::infinity(), value);
}

// Two bits of value e in a field where four quarters of 128 values share their bytes.
int quarter(const std::uint8_t *field, int e) {
    return bits(field + e / 128 * 32, e % 32 * 8 + e % 128 / 32 * 2, 2);
}
double q2_k(const std::uint8_t *b, int e) {
    return half(b + 80) * (b[e / 16] % 16) * quarter(b + 16, e) - half(b + 82) * (b[e / 16] / 16);
}
double q3_k(const std::uint8_t *b, int e) {
    const int t = e / 16;
    const int scale =
        bits(b + 96, 8 * (t % 8) + 4 * (t / 8), 4) + 16 * bits(b + 104, 8 * (t % 4) + 2 * (t / 4), 2) - 32;
    const int code = quarter(b + 32, e) + 4 * bits(b, e % 32 * 8 + e / 32, 1) - 4;
    return half(b + 108) * scale * code;
}

struct Six {
    int scale, min;
};
Six six_bits(const std::uint8_t *field, int t) {
    if (t < 4) return {bits(field, 8 * t, 6), bits(field, 8 * (t + 4), 6)};
    return {bits(field, 8 * (t + 4), 4) + 16 * bits(field, 8 * (t - 4) + 6, 2),
            bits(field, 8 * (t + 4) + 4, 4) + 16 * bits(field, 8 * t + 6, 2)};
}
double q4_k(const std::uint8_t *b, int e) {
    const Six six = six_bits(b + 4, e / 32);
    return half(b) * six.scale * nibble(b + 16, e, 64) - half(b + 2) * six.min;
}
double q5_k(const std::uint8_t *b, int e) {
    const Six six = six_bits(b + 4, e / 32);
    return half(b) * six.scale * (nibble(b + 48, e, 64) + 16 * bits(b + 16, e % 32 * 8 + e / 32, 1)) -
           half(b + 2) * six.min;
}
double q6_k(const std::uint8_t *b, int e) {
    const int scale = b[192 + e / 16] < 128 ? b[192 + e / 16] : b[192 + e / 16] - 256;
    return half(b + 208) * scale * (nibble(b, e, 128) + 16 * quarter(b + 128, e) - 32);
}

const Format kFormats[] = {
    {2, "Q4_0", 32, 18, {0}, q4_0},        {3, "Q4_1", 32, 20, {0, 2}, q4_1},   {6, "Q5_0", 32, 22, {0}, q5_0},
    {7, "Q5_1", 32, 24, {0, 2}, q5_1},     {8, "Q8_0", 32, 34, {0}, q8_0},      {39, "MXFP4", 32, 17, {}, mxfp4},
    {10, "Q2_K", 256, 84, {80, 82}, q2_k}, {11, "Q3_K", 256, 110, {108}, q3_k}, {12, "Q4_K", 256, 144, {0, 2}, q4_k},
    {13, "Q5_K", 256, 176, {0, 2}, q5_k},  {14, "Q6_K", 256, 210, {208}, q6_k},
};

// Random bytes, with finite numbers where numbers stand.
Bytes random_block(Random &random, const Format &format) {
    Bytes block(format.n_bytes);
    for (std::uint8_t &byte : block) byte = random.byte();
    for (const std::size_t at : format.halves) {
        const int value = random.below(0x7c00) | random.below(2) << 15;
        block[at] = static_cast<std::uint8_t>(value & 255);
        block[at + 1] = static_cast<std::uint8_t>(value >> 8);
    }
    return block;
}

std::vector<float> expanded(const GgufType &type, const std::uint8_t *blocks, std::int64_t n_blocks) {
    std::vector<float> values(static_cast<std::size_t>(n_blocks) * type.block_values, std::nanf(""));
    type.expand(blocks, n_blocks, values.data());
    return values;
}

struct Golden {
    std::uint32_t id;
    std::string name;
    std::string block; // hexadecimal
    float spots[5];    // values 0, 1, n / 2 - 1, n / 2, n - 1
    std::uint64_t sum; // FNV-1a of all values' bytes, little endian
};

// Made by gguf 0.19.0 (PyPI), gguf.quants.dequantize, from random blocks.
const Golden kGolden[] = {
    {2,
     "Q4_0",
     "3b3d04aa263f43f4adb02cd48e3297c42727",
     {-5.23046875f, 2.61523438f, -1.30761719f, -10.4609375f, -7.84570312f},
     0x5af7f9572c19ab6c},
    {3,
     "Q4_1",
     "d7298f36942d7a5593c95cd96a042c2d345e8b59",
     {0.592407227f, 1.00302124f, 0.820526123f, 0.820526123f, 0.638031006f},
     0x3b000eb4601d96b7},
    {6,
     "Q5_0",
     "c73ddf104ef3bd5663f123804cb42e9f213f84fc971d",
     {18.7763672f, 8.66601562f, -4.33300781f, -7.22167969f, 1.44433594f},
     0x5bf3b77058acdf42},
    {7,
     "Q5_1",
     "9c3fd93ed0a87b5656c13c0962e6e56d17f54938b4441c98",
     {13.1259766f, 3.61425781f, 47.3681641f, 41.6611328f, 18.8330078f},
     0x0bee6f59453bc3ab},
    {8,
     "Q8_0",
     "783c36ef22b5f80e557934c75178d8c3916387b931e05428141aff6272020d475f3a",
     {60.328125f, -18.9921875f, 110.601562f, -135.179688f, 64.796875f},
     0x3bb7201c6526b695},
    {39,
     "MXFP4",
     "797369952e4a7aabcc56642c6858101c38",
     {0.0234375f, -0.0078125f, 0.0f, 0.09375f, 0.0234375f},
     0x44ae9ab3698ef305},
    {10,
     "Q2_K",
     "3318a58e13bb315928277020d62364d657797a280795a2e5e04aa3de0c43583a0eedda6d016be62943eec3934620dbe0ea30fc8b5b12"
     "7e25a80586a464c722ca05f39cc85a108afe6747b5e6f25cdf14bdb8b23a",
     {-7.84130859f, -4.28759766f, -20.1762695f, -11.1503906f, -10.8798828f},
     0xad397822f836a646},
    {11,
     "Q3_K",
     "7e620f919260e1b5b5a341e1d4436651fa837552e499d6f85a7cee534e98f8b5afb91240b05e705d68d4dcd914c3cff274a1cec390f4"
     "b5b5f6b596dcda15fd274f7da28e59463f61fdc86ce3c3fcbc312dd2422176e61bfc7103e1e137629b2d1495f25ea87e91278d54116a"
     "453b",
     {10.9042969f, 32.7128906f, -25.4433594f, -84.5083008f, -0.0f},
     0xc5e40548d2cfdc17},
    {12,
     "Q4_K",
     "483a13395f03fee827fa7c0d2d45e7439670b24075279f208c160feca73f3b811493e41ad635afa056cdf9b8e8924301bbce424a9f08"
     "d82e92abad64279f49464c8e02d52dda52253019edce65f2ad2f70ccae0ba29169159393d8e386c324028cf3ab084a3213c46262739f"
     "c54a2f1a00f02a8dac021fd95baab918566249e2cc84dbf983249fc96fb150a517ab98a9",
     {121.302246f, -24.7368164f, 54.5668945f, -1.26855469f, 397.892578f},
     0x4dd5d0074630f4ac},
    {13,
     "Q5_K",
     "82bc51bc28189197145251222892e1ecd8e36d67a736fbbfde409294e00a5a9c3cf6ff11244d18210eccaa209c2cbc8a31a534a78e35"
     "22b1d0fb0d9729ad911f54c2d47749db6ea60db3ebdd3fbe0080fc73b9831bd53cfed39f50b6ce8fe66e25c56e2b22e9cb2e09811bc1"
     "ea5ba82110825af71aa745132a9b1da41878af41f5b2ab739c88c167bf86c6b6ccf77962df6e921116b90bb455fe93d3c8cffc4e69c2"
     "537f76be60ca7483bb5c7d3fd0a2",
     {-23.4960938f, -925.058594f, -429.869141f, -142.091797f, -1274.12695f},
     0xc5dea652881163a1},
    {14,
     "Q6_K",
     "a74b79842ad3cce1d15488c9984d2ea74832f46bc64db7456cc716d3707915adc81b18fb364bd5c40143febeab714ddc68ecbe2fd3a5"
     "02aebf5ae3d9b334675d9c994f75b03f970ecc7158c10b9aa043656c822318da38d29b1fef419bd39c815c201ea6567f27554a30c4a4"
     "0d14723d909a57175779fd84da4900caa152dbf6eafb9af416e54f2968576f6f844423fcae08e7748519ba05ad901d950e16c0a49874"
     "4148a622e94e6f87d46957b04d6164c4febdd40c6860d15448315eabe291a583ac5a4c3ddbb4c4d3c2f48c6c266b76bd",
     {869.654297f, 3354.38086f, 518.789062f, -1638.28125f, -2191.20117f},
     0xe3be28324bf4fa0d},
};

} // namespace

TEST_CASE("ggml blocks: random blocks decode by the definition, from any address") {
    Random random(70);
    for (const Format &format : kFormats) {
        CAPTURE(format.name);
        const GgufType *type = find_gguf_type(format.id);
        REQUIRE(type);
        CHECK(type->name == format.name);
        CHECK(type->block_values == format.n_values);
        CHECK(type->block_bytes == format.n_bytes);
        const bool expands = type->expand != nullptr;
        REQUIRE(expands);

        constexpr int kBlocks = 300;
        Bytes row;
        std::vector<float> expected;
        for (int i = 0; i < kBlocks; ++i) {
            const Bytes block = random_block(random, format);
            row.insert(row.end(), block.begin(), block.end());
            // Products of a half and small integers are exact in double, and so is the sum of two that lie 40 binary
            // orders apart at most: one rounding here, as there, where the products are exact in float too.
            for (std::uint32_t e = 0; e < format.n_values; ++e)
                expected.push_back(static_cast<float>(format.element(block.data(), static_cast<int>(e))));
        }
        CHECK(same_bits(expanded(*type, row.data(), kBlocks), expected));
        row.insert(row.begin(), 0xff);
        CHECK(same_bits(expanded(*type, row.data() + 1, kBlocks), expected));
    }
}

TEST_CASE("ggml blocks: golden blocks of the gguf package, bit for bit") {
    for (const Golden &golden : kGolden) {
        CAPTURE(golden.name);
        Bytes block;
        for (std::size_t i = 0; i < golden.block.size(); i += 2)
            block.push_back(static_cast<std::uint8_t>(std::stoi(golden.block.substr(i, 2), nullptr, 16)));
        const GgufType &type = *find_gguf_type(golden.id);
        REQUIRE(block.size() == type.block_bytes);
        const std::vector<float> values = expanded(type, block.data(), 1);
        const std::size_t n = values.size(), spots[] = {0, 1, n / 2 - 1, n / 2, n - 1};
        for (int i = 0; i < 5; ++i) CHECK(values[spots[i]] == golden.spots[i]);
        std::uint64_t sum = 0xcbf29ce484222325u;
        for (const float value : values)
            for (int byte = 0; byte < 4; ++byte) sum = (sum ^ (float_bits(value) >> (8 * byte) & 255)) * 0x100000001b3u;
        CHECK(sum == golden.sum);
    }
}

TEST_CASE("ggml blocks: plain numbers keep their bits") {
    const std::uint8_t bytes[] = {0xff, 0x00, 0x00, 0xc0, 0x7f, 0x01, 0x3c, 0x80, 0xbf};
    CHECK(float_bits(expanded(*find_gguf_type(kGgufF32), bytes + 1, 2)[0]) == 0x7fc00000u);
    CHECK(float_bits(expanded(*find_gguf_type(kGgufF32), bytes + 1, 2)[1]) == 0xbf803c01u);
    CHECK(expanded(*find_gguf_type(kGgufF16), bytes + 5, 1)[0] == f16_to_f32(0x3c01));
    CHECK(expanded(*find_gguf_type(kGgufBf16), bytes + 7, 1)[0] == -1.0f);
}

TEST_CASE("ggml blocks: MXFP4 scales reach from 2^-127 to ggml's 2^128") {
    Bytes block(17, 0x21); // codes 1 and 2: a half and one
    const GgufType &type = *find_gguf_type(kGgufMxfp4);
    for (int e = 0; e < 255; ++e) {
        CAPTURE(e);
        block[0] = static_cast<std::uint8_t>(e);
        const std::vector<float> values = expanded(type, block.data(), 1);
        CHECK(values[0] == ue8m0_to_f32(block[0]) / 2);
        CHECK(values[16] == ue8m0_to_f32(block[0]));
    }
    block[0] = 255; // NaN elsewhere
    CHECK(expanded(type, block.data(), 1)[0] == 0x1p127f);
    CHECK(std::isinf(expanded(type, block.data(), 1)[16]));
}

TEST_CASE("gguf types: every id of the format has its name and size, others have none") {
    struct Row {
        std::uint32_t id;
        std::string name;
        std::uint32_t block_values, block_bytes;
    };
    // GGML_QUANT_SIZES of gguf 0.19.0, but for Q8_1: 36 bytes in ggml-common.h, and never in a file.
    const Row rows[] = {
        {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},      {3, "Q4_1", 32, 20},
        {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},
        {10, "Q2_K", 256, 84},    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
        {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74},
        {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},
        {22, "IQ2_S", 256, 82},   {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
        {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},        {29, "IQ1_M", 256, 56},
        {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},   {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},
        {40, "NVFP4", 64, 36},    {41, "Q1_0", 128, 18},
    };
    std::size_t n_known = 0;
    for (std::uint32_t id = 0; id < 300; ++id) {
        if (const GgufType *type = find_gguf_type(id)) {
            CAPTURE(id);
            REQUIRE(n_known < std::size(rows));
            const Row &row = rows[n_known++];
            CHECK(type->id == id);
            CHECK(id == row.id);
            CHECK(type->name == row.name);
            CHECK(type->block_values == row.block_values);
            CHECK(type->block_bytes == row.block_bytes);
        }
    }
    CHECK(n_known == std::size(rows));
    CHECK(find_gguf_type(UINT32_MAX) == nullptr);
}
