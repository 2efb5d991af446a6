// GGUF: what a well-formed file lends, and that every way of being malformed is refused with a sentence that names the
// key or tensor and the numbers. Files are built in memory, in allocations of exactly their size.
#include "checkpoint/gguf.h"
#include "error.h"
#include "support/allocation_meter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

using ds41::GgufFile;
using ds41::GgufTensor;

std::string number(uint64_t value, int n_bytes) {
    std::string bytes;
    for (int i = 0; i < n_bytes; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
    return bytes;
}
std::string u32(uint64_t value) {
    return number(value, 4);
}
std::string u64(uint64_t value) {
    return number(value, 8);
}
std::string text(const std::string &value) {
    return u64(value.size()) + value;
}
std::string zeros(size_t n) {
    return std::string(n, '\0');
}

// The format's value types.
enum : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
enum : uint32_t { kTypeF32 = 0, kTypeQ8_0 = 8, kTypeQ2K = 10, kTypeI8 = 24, kTypeBf16 = 30 };

// Metadata and tensors in the order of the calls; data follows aligned.
class Builder {
public:
    Builder &entry(const std::string &key, uint32_t type, const std::string &value) {
        entries_ += text(key) + u32(type) + value;
        ++n_entries_;
        return *this;
    }
    Builder &list(const std::string &key, uint32_t type, uint64_t n, const std::string &values) {
        return entry(key, kArray, u32(type) + u64(n) + values);
    }
    // The row's length comes first, as in ggml.
    Builder &tensor(const std::string &name, uint32_t type, const std::vector<uint64_t> &dims,
                    const std::string &data) {
        data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_);
        tensor_at(name, type, dims, data_.size());
        data_ += data;
        return *this;
    }
    Builder &tensor_at(const std::string &name, uint32_t type, const std::vector<uint64_t> &dims, uint64_t offset) {
        table_ += text(name) + u32(dims.size());
        for (const uint64_t size : dims) table_ += u64(size);
        table_ += u32(type) + u64(offset);
        ++n_tensors_;
        return *this;
    }
    Builder &data(size_t n) {
        data_.resize(n);
        return *this;
    }
    Builder &align(size_t alignment) {
        alignment_ = alignment;
        return entry("general.alignment", kU32, u32(alignment));
    }
    std::string file(uint32_t version = 3) const {
        std::string bytes = "GGUF" + u32(version) + u64(n_tensors_) + u64(n_entries_) + entries_ + table_;
        if (n_tensors_ > 0) bytes.resize((bytes.size() + alignment_ - 1) / alignment_ * alignment_);
        return bytes + data_;
    }

private:
    std::string entries_, table_, data_;
    uint64_t n_entries_ = 0, n_tensors_ = 0;
    size_t alignment_ = 32;
};

// Memory whose end is the allocation's, so that a sanitizer sees one byte too many.
class Bytes {
public:
    explicit Bytes(const std::string &file)
        : memory_(static_cast<std::byte *>(std::malloc(file.empty() ? 1 : file.size()))), n_bytes_(file.size()) {
        REQUIRE(memory_);
        std::memcpy(memory_, file.data(), file.size());
    }
    Bytes(const Bytes &) = delete;
    Bytes &operator=(const Bytes &) = delete;
    ~Bytes() { std::free(memory_); }
    std::span<const std::byte> span() const { return {memory_, n_bytes_}; }

private:
    std::byte *memory_;
    size_t n_bytes_;
};

struct Opened {
    explicit Opened(const std::string &file) : bytes(file), gguf(bytes.span()) {}
    Bytes bytes;
    GgufFile gguf;
};

struct Refusal {
    ds41_status status;
    std::string message;
};

template <typename Call> std::optional<Refusal> refusal_of(Call &&call) {
    try {
        call();
    } catch (const ds41::Error &error) {
        return Refusal{error.status(), error.what()};
    }
    return std::nullopt;
}

std::optional<Refusal> open_refusal(const std::string &file) {
    const Bytes bytes(file);
    return refusal_of([&] { GgufFile opened(bytes.span()); });
}

// Fails with what was found instead.
void check_message(const std::optional<Refusal> &refused, ds41_status status, const std::string &part) {
    CHECK(refused.has_value());
    if (!refused) return;
    CAPTURE(refused->message);
    CHECK(refused->status == status);
    CHECK(refused->message.find(part) != std::string::npos);
}

Builder small() {
    return Builder()
        .entry("general.architecture", kString, text("deepseek41"))
        .list("tokens", kString, 2, text("a") + text(""))
        .list("ratios", kI32, 3, u32(0) + u32(2) + u32(1))
        .tensor("b.weight", kTypeQ8_0, {64, 2}, zeros(135) + "B")
        .tensor("a.weight", kTypeF32, {3}, "aaaabbbbcccc");
}

} // namespace

TEST_CASE("gguf: a well-formed file lends its tensors in the order of their names' bytes") {
    for (const uint32_t version : {2u, 3u}) {
        CAPTURE(version);
        const Opened file(small()
                              .tensor("c", kTypeBf16, {2, 3, 4, 5}, zeros(240))
                              .tensor("none", kTypeQ2K, {256, 0}, "")
                              .tensor("later", 77, {5, 7}, zeros(100))
                              .file(version));
        const std::span<const GgufTensor> tensors = file.gguf.tensors();
        REQUIRE(tensors.size() == 5);
        const char *names[] = {"a.weight", "b.weight", "c", "later", "none"};
        for (size_t i = 0; i < 5; ++i) CHECK(tensors[i].name == names[i]);

        const GgufTensor &b = *file.gguf.find("b.weight");
        CHECK(std::string(b.type->name) == "Q8_0");
        CHECK(b.type_id == kTypeQ8_0);
        CHECK(b.shape == std::vector<int64_t>{2, 64}); // outermost first
        CHECK(b.n_bytes == 136);
        CHECK(b.offset % 32 == 0);
        CHECK(file.gguf.data(b).back() == std::byte{'B'});
        CHECK(file.gguf.data(b).data() == file.gguf.bytes().data() + b.offset);
        CHECK(std::memcmp(file.gguf.data(*file.gguf.find("a.weight")).data(), "aaaabbbbcccc", 12) == 0);
        CHECK(file.gguf.find("c")->shape == std::vector<int64_t>{5, 4, 3, 2});
        CHECK(file.gguf.find("c")->n_bytes == 240);
        CHECK(file.gguf.find("none")->n_bytes == 0);
        // A type that we do not know keeps no one from the other tensors.
        CHECK(file.gguf.find("later")->type == nullptr);
        CHECK(file.gguf.find("later")->type_id == 77);
        CHECK(file.gguf.find("later")->n_bytes == 0);
        CHECK(file.gguf.data(*file.gguf.find("later")).empty());
        CHECK(file.gguf.find("d") == nullptr);
        CHECK(file.gguf.find("") == nullptr);
        CHECK(file.gguf.bytes().data() == file.bytes.span().data());
    }
    // From each row of Unicode's table of well-formed sequences, its first and its last one.
    const std::string utf8 = "\x01\x7F\xC2\x80\xDF\xBF\xE0\xA0\x80\xE1\x80\x80\xEC\xBF\xBF\xED\x9F\xBF\xEE\x80\x80"
                             "\xEF\xBF\xBF\xF0\x90\x80\x80\xF1\x80\x80\x80\xF3\xBF\xBF\xBF\xF4\x8F\xBF\xBF";
    const Opened unicode(Builder().entry(utf8, kU8, "1").tensor(utf8, kTypeI8, {1}, "1").file());
    CHECK(unicode.gguf.has(utf8));
    CHECK(unicode.gguf.find(utf8) != nullptr);
    const Opened empty(Builder().file());
    CHECK(empty.gguf.tensors().empty());
    CHECK_FALSE(empty.gguf.has("general.architecture"));
}

TEST_CASE("gguf: the file's own alignment places its data") {
    for (const size_t alignment : {size_t{8}, size_t{24}, size_t{4096}}) {
        CAPTURE(alignment);
        const Opened file(
            Builder().align(alignment).tensor("a", kTypeI8, {5}, "12345").tensor("b", kTypeI8, {3}, "678").file());
        CHECK(file.gguf.find("a")->offset % alignment == 0);
        CHECK(file.gguf.find("b")->offset == file.gguf.find("a")->offset + alignment);
        CHECK(std::memcmp(file.gguf.data(*file.gguf.find("a")).data(), "12345", 5) == 0);
        CHECK(std::memcmp(file.gguf.data(*file.gguf.find("b")).data(), "678", 3) == 0);
    }
}

TEST_CASE("gguf: integers of every type are read when they fit, and nothing else is") {
    const Opened file(Builder()
                          .entry("u8", kU8, number(255, 1))
                          .entry("i8", kI8, number(0x80, 1))
                          .entry("u16", kU16, number(65535, 2))
                          .entry("i16", kI16, number(0x8000, 2))
                          .entry("u32", kU32, u32(UINT32_MAX))
                          .entry("i32", kI32, u32(0x80000000))
                          .entry("u64", kU64, u64(INT64_MAX))
                          .entry("i64", kI64, u64(uint64_t{1} << 63))
                          .entry("large", kU64, u64(uint64_t{1} << 63))
                          .entry("f32", kF32, u32(std::bit_cast<uint32_t>(1.5f)))
                          .entry("f64", kF64, u64(std::bit_cast<uint64_t>(-0.1)))
                          .entry("bool", kBool, number(1, 1))
                          .entry("string", kString, text("7"))
                          .list("list", kU8, 1, number(7, 1))
                          .file());
    struct Case {
        std::string key;
        int64_t value;
    };
    const Case cases[] = {{"u8", 255},         {"i8", -128},       {"u16", 65535},     {"i16", -32768},
                          {"u32", UINT32_MAX}, {"i32", INT32_MIN}, {"u64", INT64_MAX}, {"i64", INT64_MIN}};
    for (const Case &c : cases) {
        CAPTURE(c.key);
        CHECK(file.gguf.has(c.key));
        CHECK(file.gguf.integer(c.key) == c.value);
        CHECK(file.gguf.real(c.key) == static_cast<double>(c.value));
    }
    CHECK(file.gguf.real("f32") == 1.5);
    CHECK(file.gguf.real("f64") == -0.1);
    CHECK_FALSE(file.gguf.integer("absent"));
    CHECK_FALSE(file.gguf.real("absent"));

    const auto integer = [&](const char *key) { return refusal_of([&] { file.gguf.integer(key); }); };
    const auto real = [&](const char *key) { return refusal_of([&] { file.gguf.real(key); }); };
    check_message(integer("large"), DS41_STATUS_INVALID_FILE,
                  "key \"large\" has the value 9223372036854775808, need at most 9223372036854775807");
    check_message(integer("f32"), DS41_STATUS_INVALID_FILE, "key \"f32\" is FLOAT32, need an integer");
    check_message(integer("bool"), DS41_STATUS_INVALID_FILE, "key \"bool\" is BOOL, need an integer");
    check_message(integer("string"), DS41_STATUS_INVALID_FILE, "key \"string\" is STRING, need an integer");
    check_message(integer("list"), DS41_STATUS_INVALID_FILE, "key \"list\" is ARRAY of UINT8, need an integer");
    check_message(real("bool"), DS41_STATUS_INVALID_FILE, "key \"bool\" is BOOL, need a number");
    check_message(real("string"), DS41_STATUS_INVALID_FILE, "key \"string\" is STRING, need a number");
}

TEST_CASE("gguf: strings and lists of integers are read, whatever lists stand between them") {
    const size_t n_most = ds41::GgufMetadata::kMaxIntegers;
    const std::string inner = u32(kString) + u64(2) + text("x") + text("yz");
    const Opened file(Builder()
                          .entry("empty", kString, text(""))
                          .list("strings", kString, 3, text("a") + text(std::string(300, 'b')) + text(""))
                          .list("nested", kArray, 2, inner + inner)
                          .list("none", kF64, 0, "")
                          .list("none nested", kArray, 0, "")
                          .list("bools", kBool, 3, std::string("\0\1\1", 3))
                          .list("i16", kI16, 2, number(0xFFFF, 2) + number(3, 2))
                          .list("u64", kU64, 2, u64(5) + u64(uint64_t{1} << 63))
                          .list("floats", kF32, 1, u32(0))
                          .list("most", kU8, n_most, zeros(n_most))
                          .list("more", kU8, n_most + 1, zeros(n_most + 1))
                          .entry("bytes", kString, text(std::string("a\0\xFF", 3)))
                          .file());
    CHECK(file.gguf.string("empty") == std::string());
    CHECK(file.gguf.string("bytes") == std::string("a\0\xFF", 3));
    CHECK(file.gguf.integers("i16") == std::vector<int64_t>{-1, 3});
    CHECK(file.gguf.integers("most")->size() == n_most);
    CHECK_FALSE(file.gguf.string("absent"));
    CHECK_FALSE(file.gguf.integers("absent"));
    CHECK(file.gguf.metadata().size() == 12);
    CHECK(file.gguf.metadata().key(0) == "bools");

    const auto integers = [&](const char *key) { return refusal_of([&] { file.gguf.integers(key); }); };
    const auto string = [&](const char *key) { return refusal_of([&] { file.gguf.string(key); }); };
    check_message(integers("u64"), DS41_STATUS_INVALID_FILE, "key \"u64\" has the value 9223372036854775808");
    check_message(integers("more"), DS41_STATUS_INVALID_FILE, "key \"more\" has 65537 entries, need at most 65536");
    check_message(integers("floats"), DS41_STATUS_INVALID_FILE,
                  "key \"floats\" is ARRAY of FLOAT32, need an array of integers");
    check_message(integers("nested"), DS41_STATUS_INVALID_FILE, "key \"nested\" is ARRAY of ARRAY, need");
    check_message(integers("empty"), DS41_STATUS_INVALID_FILE, "key \"empty\" is STRING, need an array of integers");
    check_message(string("i16"), DS41_STATUS_INVALID_FILE, "key \"i16\" is ARRAY of INT16, need a string");
}

TEST_CASE("gguf: every malformed file is refused with a sentence") {
    const auto header = [](uint32_t version, uint64_t n_tensors, uint64_t n_entries, const std::string &rest) {
        return "GGUF" + u32(version) + u64(n_tensors) + u64(n_entries) + rest;
    };
    const auto one = [](uint32_t type, const std::vector<uint64_t> &dims, uint64_t offset, size_t n_data) {
        return Builder().tensor_at("a", type, dims, offset).data(n_data).file();
    };
    const uint64_t half = uint64_t{1} << 63;
    std::string deep;
    for (int i = 0; i < 100000; ++i) deep += u32(kArray) + u64(1);
    const std::string name = text("a") + u32(1) + u64(1);
    struct Case {
        std::string name;
        std::string file;
        std::string message;
    };
    const Case cases[] = {
        {"empty file", "", "not a GGUF file: 0 bytes, need 24 or more"},
        {"23 bytes", header(3, 0, 0, "").substr(0, 23), "not a GGUF file: 23 bytes"},
        {"another magic", "GGML" + header(3, 0, 0, "").substr(4), "does not begin with \"GGUF\""},
        {"2^63 tensors", header(3, half, 0, zeros(100)),
         "the number of tensors at byte 8 is 9223372036854775808, need at most 3: 108 bytes follow"},
        {"2^64 - 1 tensors", header(3, UINT64_MAX, 0, ""), "is 18446744073709551615, need at most 0"},
        {"2^64 - 1 entries", header(3, 0, UINT64_MAX, zeros(28)),
         "the number of metadata entries at byte 16 is 18446744073709551615, need at most 2"},
        {"one entry too many", header(3, 0, 2, text("a") + u32(kU8) + number(1, 1) + zeros(14)),
         "a metadata key at byte 38 has 0 bytes, need a length in [1, 65535]"},
        {"key of 2^64 - 1 bytes", header(3, 0, 1, u64(UINT64_MAX) + zeros(20)),
         "a metadata key at byte 24 has 18446744073709551615 bytes, need a length in [1, 65535]"},
        {"key of 65536 bytes", Builder().entry(std::string(65536, 'k'), kU8, "1").file(), "has 65536 bytes, need"},
        {"key beyond the end", header(3, 0, 1, u64(9) + "12345678"),
         "a metadata key takes 9 bytes from byte 32, but the file ends at byte 40"},
        {"key with a NUL", Builder().entry(std::string("a\0b", 3), kU8, "1").file(),
         "a metadata key at byte 24 holds a NUL"},
        {"key that is no UTF-8", Builder().entry("a\xFF", kU8, "1").file(), "a metadata key at byte 24 is not UTF-8"},
        {"overlong UTF-8", Builder().entry("\xC0\xAF", kU8, "1").file(), "is not UTF-8"},
        {"overlong in three bytes", Builder().entry("\xE0\x9F\xBF", kU8, "1").file(), "is not UTF-8"},
        {"overlong in four bytes", Builder().entry("\xF0\x8F\xBF\xBF", kU8, "1").file(), "is not UTF-8"},
        {"surrogate", Builder().entry("\xED\xA0\x80", kU8, "1").file(), "is not UTF-8"},
        {"UTF-8 cut short", Builder().entry("\xE2\x82", kU8, "1").file(), "is not UTF-8"},
        {"above U+10FFFF", Builder().entry("\xF4\x90\x80\x80", kU8, "1").file(), "is not UTF-8"},
        {"key twice", Builder().entry("k", kU8, "1").entry("j", kU8, "1").entry("k", kU8, "1").file(),
         "key \"k\" appears twice"},
        {"value type 13", Builder().entry("k", 13, zeros(8)).file(), "key \"k\" has the value type 13, need 0 to 12"},
        {"value type 2^32 - 1", Builder().entry("k", UINT32_MAX, zeros(8)).file(), "has the value type 4294967295"},
        {"list of type 13", Builder().list("k", 13, 1, zeros(8)).file(), "key \"k\" has the value type 13"},
        {"boolean 2", Builder().entry("k", kBool, "\2").file(), "key \"k\" holds a boolean that is neither 0 nor 1"},
        {"boolean 2 in a list", Builder().list("k", kBool, 3, std::string("\1\2\0", 3)).file(), "neither 0 nor 1"},
        {"string of 2^64 - 1 bytes", Builder().entry("k", kString, u64(UINT64_MAX) + zeros(20)).file(),
         "a string takes 18446744073709551615 bytes from byte 45, but the file ends at byte 65"},
        {"string beyond the end", Builder().entry("k", kString, u64(3) + "ab").file(), "a string takes 3 bytes"},
        {"list of 2^61 doubles", Builder().list("k", kF64, uint64_t{1} << 61, zeros(16)).file(),
         "the length of an array at byte 41 is 2305843009213693952, need at most 2: 16 bytes follow, and each takes 8"},
        {"list of 2^64 - 1 strings", Builder().list("k", kString, UINT64_MAX, zeros(16)).file(), "need at most 2"},
        {"list of 2^63 lists", Builder().list("k", kArray, half, zeros(24)).file(), "need at most 2"},
        {"list of strings beyond the end", Builder().list("k", kString, 2, u64(1) + "a" + u64(1)).file(),
         "a string takes 1 bytes from byte 66, but the file ends at byte 66"},
        {"endless nesting", Builder().entry("k", kArray, deep).file(), "key \"k\" nests arrays deeper than 7 levels"},
        {"alignment 0", Builder().align(32).entry("x", kU8, "1").file().replace(24 + 8 + 17 + 4, 4, zeros(4)),
         "key \"general.alignment\" is 0, need a multiple of 8, at least 8"},
        {"alignment 12", Builder().entry("general.alignment", kU32, u32(12)).file(), "is 12, need a multiple of 8"},
        {"alignment -8", Builder().entry("general.alignment", kI32, u32(0xFFFFFFF8)).file(), "is -8, need"},
        {"alignment as text", Builder().entry("general.alignment", kString, text("32")).file(),
         "key \"general.alignment\" is STRING, need an integer"},
        {"name without bytes", header(3, 1, 0, u64(0) + zeros(60)), "a tensor's name at byte 24 has 0 bytes"},
        {"name beyond the end", header(3, 1, 0, u64(50) + zeros(40)), "a tensor's name takes 50 bytes from byte 32"},
        {"name with a NUL", Builder().tensor(std::string("a\0", 2), kTypeI8, {1}, "1").file(), "holds a NUL"},
        {"no dimensions", one(kTypeI8, {}, 0, 32), "tensor \"a\" has 0 dimensions, need 1 to 4"},
        {"5 dimensions", one(kTypeI8, {1, 1, 1, 1, 1}, 0, 32), "tensor \"a\" has 5 dimensions, need 1 to 4"},
        {"2^32 - 1 dimensions", header(3, 1, 0, text("a") + u32(UINT32_MAX) + zeros(60)),
         "tensor \"a\" has 4294967295 dimensions"},
        {"size 2^63", one(kTypeI8, {half}, 0, 32),
         "tensor \"a\" has a dimension of 9223372036854775808, need at most 9223372036854775807"},
        {"size 2^64 - 1", one(kTypeI8, {1, UINT64_MAX}, 0, 32), "has a dimension of 18446744073709551615"},
        {"size 2^63 of an unknown type", one(99, {half}, 0, 32), "has a dimension of 9223372036854775808"},
        {"product over 64 bits", one(kTypeF32, {half - 1, half - 1}, 0, 32),
         "tensor \"a\": F32 of shape [9223372036854775807, 9223372036854775807] takes more bytes than 64 bits"},
        {"product wraps to the right size", one(kTypeF32, {uint64_t{1} << 62, 4}, 0, 32), "takes more bytes than"},
        {"part of a block", one(kTypeQ2K, {255}, 0, 96), "tensor \"a\" has rows of 255 values, need a multiple of 256"},
        {"rows that are no blocks", one(kTypeQ8_0, {16, 2}, 0, 64),
         "has rows of 16 values, need a multiple of 32 (Q8_0)"},
        {"table cut short", header(3, 2, 0, name + u32(kTypeI8) + u64(0) + name + u32(kTypeI8) + u32(0)),
         "a tensor's offset takes 8 bytes from byte 82, but the file ends at byte 86"},
        {"offset not aligned", one(kTypeI8, {1}, 16, 64),
         "tensor \"a\" has the offset 16, need a multiple of 32 (the file's alignment)"},
        {"offset 2^63", one(kTypeI8, {1}, half, 64),
         "tensor \"a\" ends beyond the file: offset 9223372036854775808 and 1 bytes (I8, shape [1]), but 64 bytes"},
        {"offset 2^64 - 32", one(kTypeI8, {32}, uint64_t{0} - 32, 64),
         "ends beyond the file: offset 18446744073709551584"},
        {"offset beyond the end, unknown type", one(99, {1}, 96, 64), "(of an unknown type, shape [1]), but 64 bytes"},
        {"one byte too few", one(kTypeI8, {33}, 32, 64), "offset 32 and 33 bytes (I8, shape [33]), but 64 bytes"},
        {"2^62 bytes", one(kTypeF32, {uint64_t{1} << 60}, 0, 64), "offset 0 and 4611686018427387904 bytes"},
        {"no data at all", header(3, 1, 0, name + u32(kTypeI8) + u64(0)),
         "1 bytes (I8, shape [1]), but 0 bytes of data"},
        {"tensor twice", Builder().tensor("a", kTypeI8, {1}, "1").tensor("a", kTypeI8, {1}, "2").file(),
         "tensor \"a\" appears twice"},
        {"same range twice", Builder().tensor("a", kTypeI8, {1}, "1").tensor_at("b", kTypeI8, {1}, 0).data(32).file(),
         "overlap: one has bytes"},
        {"overlapping ranges",
         Builder().tensor_at("b", kTypeI8, {33}, 0).tensor_at("a", kTypeI8, {1}, 32).data(64).file(),
         "tensors \"b\" and \"a\" overlap: one has bytes 96 to 129 of the file, the other begins at 128"},
        {"one inside the other",
         Builder().tensor_at("in", kTypeI8, {1}, 32).tensor_at("out", kTypeI8, {96}, 0).data(96).file(),
         "tensors \"out\" and \"in\" overlap"},
    };
    for (const Case &c : cases) {
        CAPTURE(c.name);
        check_message(open_refusal(c.file), DS41_STATUS_INVALID_FILE, c.message);
    }
}

TEST_CASE("gguf: what another version or byte order is, the refusal says") {
    const auto refused = [](uint32_t version) { return open_refusal("GGUF" + u32(version) + zeros(40)); };
    for (const uint32_t version : {0u, 1u, 4u, 0xFFFFFFFFu})
        check_message(refused(version), DS41_STATUS_UNSUPPORTED,
                      "GGUF version " + std::to_string(version) + ", need 2 or 3");
    for (const uint32_t version : {1u, 2u, 3u})
        check_message(refused(version << 24), DS41_STATUS_UNSUPPORTED,
                      "the file is big endian (version " + std::to_string(version) + " with its bytes swapped)");
}

TEST_CASE("gguf: empty tensors may lie anywhere in the data, a file without data may end before it") {
    const Opened file(Builder()
                          .tensor_at("full", kTypeI8, {64}, 0)
                          .tensor_at("inside", kTypeF32, {0}, 32)
                          .tensor_at("end", kTypeF32, {3, 0, 2}, 64)
                          .tensor_at("unknown", 99, {1}, 32)
                          .data(64)
                          .file());
    CHECK(file.gguf.tensors().size() == 4);
    CHECK(file.gguf.data(*file.gguf.find("end")).empty());
    const std::string cut = "GGUF" + u32(3) + u64(1) + u64(0) + text("a") + u32(1) + u64(0) + u32(kTypeI8) + u64(0);
    const Opened without(cut);
    CHECK(without.gguf.find("a")->offset == cut.size());
    CHECK(without.gguf.data(*without.gguf.find("a")).empty());
}

TEST_CASE("gguf: a file cut at any byte is refused") {
    const std::string file = small().file();
    REQUIRE_FALSE(open_refusal(file));
    for (size_t n = 0; n < file.size(); ++n) {
        CAPTURE(n);
        check_message(open_refusal(file.substr(0, n)), DS41_STATUS_INVALID_FILE, "");
    }
}

TEST_CASE("gguf: any changed byte of the header is read within bounds or refused") {
    const std::string good = small().file();
    const size_t n_header = good.size() - 136 - 32 - 12;
    int n_refused = 0;
    for (size_t i = 0; i < n_header; ++i) {
        for (const int change : {0x01, 0x08, 0x40, 0x80, 0xFF}) {
            std::string bad = good;
            bad[i] = static_cast<char>(bad[i] ^ change);
            CAPTURE(i);
            CAPTURE(change);
            const Bytes bytes(bad);
            const auto refused = refusal_of([&] {
                const GgufFile file(bytes.span());
                for (const GgufTensor &tensor : file.tensors())
                    CHECK((tensor.offset <= bad.size() && tensor.n_bytes <= bad.size() - tensor.offset));
                for (size_t k = 0; k < file.metadata().size(); ++k) CHECK(file.has(file.metadata().key(k)));
            });
            if (!refused) continue;
            ++n_refused;
            CHECK_FALSE(refused->message.empty());
        }
    }
    // What passes is a change of names, values and padding; counts, lengths and types never do.
    CHECK(n_refused > static_cast<int>(n_header));
}

TEST_CASE("gguf: memory for a header is a small multiple of the header") {
    const auto allocated = [](const std::string &file) {
        const Bytes bytes(file);
        ds41::test::AllocationMeter meter;
        refusal_of([&] { GgufFile opened(bytes.span()); });
        return meter.n_bytes();
    };
    Builder keys, tensors, strings;
    for (int i = 0; i < 5000; ++i) {
        keys.entry(std::to_string(i), kU8, "1");
        tensors.tensor_at(std::to_string(i), 99, {1}, 0);
    }
    strings.list("tokens", kString, 100000, zeros(800000));
    struct Case {
        std::string name;
        std::string file;
        uint64_t per_byte;
    };
    // Entries of 24 and about 100 bytes for 14 and 33 of the file, and what a growing vector leaves behind; values are
    // not copied.
    const Case cases[] = {
        {"many keys", keys.file(), 16},
        {"many tensors", tensors.file(), 16},
        {"a list of strings", strings.file(), 0},
        {"counts beyond the file", "GGUF" + u32(3) + u64(UINT64_MAX) + u64(UINT64_MAX) + zeros(100000), 0},
        {"counts as large as the file allows", "GGUF" + u32(3) + u64(200000) + u64(600000) + zeros(10000000), 0},
    };
    for (const Case &c : cases) {
        CAPTURE(c.name);
        CHECK(allocated(c.file) <= c.per_byte * c.file.size() + 1024);
    }
    const Bytes list(Builder().list("k", kU8, 60000, zeros(60000)).file());
    const GgufFile file(list.span());
    const bool counted = ds41::test::allocations_are_counted();
    ds41::test::AllocationMeter meter;
    CHECK(file.integers("k")->size() == 60000);
    CHECK(meter.n_bytes() == (counted ? 8 * 60000 : 0));
}

TEST_CASE("gguf: a file on disk is mapped, and its refusals begin with the path") {
    const char *root = std::getenv("TMPDIR");
    std::string folder = std::string(root && *root ? root : "/tmp") + "/ds41_gguf_XXXXXX";
    REQUIRE(::mkdtemp(folder.data()));
    const std::string path = folder + "/model.gguf";
    std::ofstream(path, std::ios::binary) << small().file();
    {
        const GgufFile file(path);
        CHECK(file.string("general.architecture") == "deepseek41");
        CHECK(std::memcmp(file.data(*file.find("a.weight")).data(), "aaaabbbbcccc", 12) == 0);
    }
    std::ofstream(path, std::ios::binary) << "GGUF";
    const auto refused = refusal_of([&] { GgufFile file(path); });
    check_message(refused, DS41_STATUS_INVALID_FILE, "path " + path + ": not a GGUF file: 4 bytes, need 24 or more");
    const auto missing = refusal_of([&] { GgufFile file(folder + "/none"); });
    check_message(missing, DS41_STATUS_IO_ERROR, "path " + folder + "/none cannot be opened");
    std::filesystem::remove_all(folder);
}
