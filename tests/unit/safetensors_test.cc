// Safetensors: what a well-formed file lends, and that every way of being malformed is refused with a sentence that
// tells the tensor and the numbers. Files are built in memory; the mapping has its own cases on real files.
#include "checkpoint/mapping.h"
#include "checkpoint/safetensors.h"
#include "error.h"
#include "support/allocation_meter.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef DS41_FIXTURE_DIR
#define DS41_FIXTURE_DIR "tests/fixtures"
#endif

namespace {

using ds41::Error;
using ds41::SafetensorsFile;

// Memory aligned as a mapping is, whose end is the allocation's end so that a sanitizer sees one byte too many.
class Bytes {
public:
    explicit Bytes(const std::string &text)
        : memory_(static_cast<std::byte *>(std::malloc(text.empty() ? 1 : text.size()))), n_bytes_(text.size()) {
        REQUIRE(memory_);
        std::memcpy(memory_, text.data(), text.size());
    }
    Bytes(const Bytes &) = delete;
    Bytes &operator=(const Bytes &) = delete;
    ~Bytes() { std::free(memory_); }

    std::span<const std::byte> span() const { return {memory_, n_bytes_}; }

private:
    std::byte *memory_;
    size_t n_bytes_;
};

std::string length_field(uint64_t length) {
    std::string field;
    for (int i = 0; i < 8; ++i) field += static_cast<char>(length >> (8 * i) & 0xFF);
    return field;
}

std::string file_of(const std::string &header, const std::string &data = "") {
    return length_field(header.size()) + header + data;
}

// Adds entries with running offsets; the header is padded so that the data begins aligned to 8.
class Builder {
public:
    Builder &add(const std::string &name, const std::string &dtype, const std::string &shape, const std::string &data) {
        header_ += header_.empty() ? "" : ",";
        header_ += "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":[)" +
                   std::to_string(data_.size()) + "," + std::to_string(data_.size() + data.size()) + "]}";
        data_ += data;
        return *this;
    }

    Builder &metadata(const std::string &object) {
        header_ += (header_.empty() ? "" : ",") + std::string("\"__metadata__\":") + object;
        return *this;
    }

    std::string file() const {
        std::string header = "{" + header_ + "}";
        header.resize((header.size() + 7) / 8 * 8, ' ');
        return file_of(header, data_);
    }

private:
    std::string header_, data_;
};

std::string zeros(size_t n) {
    return std::string(n, '\0');
}

struct Refusal {
    ds41_status status;
    std::string message;
};

template <typename Call> std::optional<Refusal> refusal_of(Call &&call) {
    try {
        call();
    } catch (const Error &error) {
        return Refusal{error.status(), error.what()};
    }
    return std::nullopt;
}

std::optional<Refusal> open_refusal(const std::string &file) {
    const Bytes bytes(file);
    return refusal_of([&] { SafetensorsFile opened(bytes.span()); });
}

// One entry "a" with the given members, over 8 bytes of data.
std::string entry(const std::string &members) {
    return file_of("{\"a\":{" + members + "}}", zeros(8));
}

std::string small_file() {
    return Builder()
        .metadata(R"({"format":"pt"})")
        .add("b", "U8", "[2,3]", "abcdef")
        .add("a", "BF16", "[1]", "gh")
        .file();
}

struct TempDir {
    TempDir() {
        const char *root = std::getenv("TMPDIR");
        path = std::string(root && *root ? root : "/tmp") + "/ds41_unit_XXXXXX";
        REQUIRE(::mkdtemp(path.data()));
    }
    ~TempDir() { std::filesystem::remove_all(path); }
    std::string write(const char *name, const std::string &text) const {
        std::ofstream(path + "/" + name, std::ios::binary) << text;
        return path + "/" + name;
    }
    std::string path;
};

std::string fixture(const std::string &name) {
    const char *directory = std::getenv("DS41_FIXTURES");
    return std::string(directory && *directory ? directory : DS41_FIXTURE_DIR) + "/" + name;
}

} // namespace

TEST_CASE("safetensors: a well-formed file lends its tensors in the order of their names' bytes") {
    const Bytes bytes(Builder()
                          .metadata(R"({"zeta":"last","format":"pt","empty":"","\u00fc":"\u00e4"})")
                          .add("b", "F32", "[1,2]", zeros(4) + "wxyz")
                          .add("a\xC3\xBC", "U8", "[3]", "123")
                          .add("B", "I8", "[1]", "4")
                          .add("scalar", "U8", "[]", "5")
                          .add("empty", "F64", "[3,0,2]", "")
                          .file());
    const SafetensorsFile file(bytes.span());
    REQUIRE(file.n_tensors() == 5);
    const char *names[] = {"B", "a\xC3\xBC", "b", "empty", "scalar"};
    for (size_t i = 0; i < 5; ++i) CHECK(std::string(file.name(i)) == names[i]);
    CHECK(file.name(5) == nullptr);
    CHECK(file.name(SIZE_MAX) == nullptr);

    const ds41::SafetensorsEntry &b = *file.find("b");
    CHECK(b.dtype == "F32");
    CHECK(b.shape == std::vector<int64_t>{1, 2});
    CHECK(b.n_bytes == 8);
    CHECK(std::memcmp(b.data, "\0\0\0\0wxyz", 8) == 0);
    CHECK(file.find("scalar")->shape.empty());
    CHECK(*reinterpret_cast<const char *>(file.find("scalar")->data) == '5');
    CHECK(file.find("empty")->n_bytes == 0);
    CHECK(file.find("c") == nullptr);

    CHECK(std::string(file.metadata("format")) == "pt");
    CHECK(std::string(file.metadata("zeta")) == "last");
    CHECK(std::string(file.metadata("empty")).empty());
    CHECK(std::string(file.metadata("\xC3\xBC")) == "\xC3\xA4");
    CHECK(file.metadata("zet") == nullptr);
    CHECK(file.metadata("b") == nullptr);
}

TEST_CASE("safetensors: files without tensors and members in any order are legal") {
    const Bytes empty(file_of("{}"));
    CHECK(SafetensorsFile(empty.span()).n_tensors() == 0);
    CHECK(SafetensorsFile(empty.span()).metadata("a") == nullptr);
    const Bytes metadata_only(file_of(R"({"__metadata__":{}}     )"));
    CHECK(SafetensorsFile(metadata_only.span()).n_tensors() == 0);
    // Where a tensor without bytes begins, another one may begin too.
    const Bytes shared(file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                               R"("b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                               R"("c":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
                               "xy"));
    CHECK(SafetensorsFile(shared.span()).n_tensors() == 3);
    const Bytes spaced(
        file_of("{ \"a\" :\n {\"data_offsets\" : [ 0 , 2 ],\t\"shape\":[2],\"dtype\":\"U8\" } }  ", "xy"));
    CHECK(SafetensorsFile(spaced.span()).find("a")->n_bytes == 2);
}

TEST_CASE("safetensors: every dtype of the format is sized, and viewed where ds41_dtype has it") {
    struct Case {
        std::string name;
        size_t n_bytes;
        int32_t dtype;
    };
    const Case cases[] = {
        {"BOOL", 1, 0},
        {"U8", 1, DS41_DTYPE_U8},
        {"I8", 1, DS41_DTYPE_I8},
        {"F8_E5M2", 1, 0},
        {"F8_E4M3", 1, DS41_DTYPE_FP8_E4M3},
        {"F8_E8M0", 1, DS41_DTYPE_UE8M0},
        {"I16", 2, 0},
        {"U16", 2, 0},
        {"F16", 2, DS41_DTYPE_F16},
        {"BF16", 2, DS41_DTYPE_BF16},
        {"I32", 4, DS41_DTYPE_I32},
        {"U32", 4, 0},
        {"F32", 4, DS41_DTYPE_F32},
        {"I64", 8, 0},
        {"U64", 8, 0},
        {"F64", 8, 0},
    };
    for (const Case &c : cases) {
        CAPTURE(c.name);
        const Bytes bytes(Builder().add("t", c.name, "[2,3]", zeros(6 * c.n_bytes)).file());
        const SafetensorsFile file(bytes.span());
        CHECK(file.find("t")->dtype == c.name);
        CHECK(file.find("t")->n_bytes == 6 * c.n_bytes);
        if (c.dtype != DS41_DTYPE_NONE) {
            const ds41_tensor tensor = file.tensor("t");
            CHECK(tensor.dtype == c.dtype);
            CHECK(tensor.n_dims == 2);
            CHECK(tensor.shape[0] == 2);
            CHECK(tensor.shape[1] == 3);
            CHECK(tensor.shape[2] == 0);
            CHECK(tensor.shape[3] == 0);
            CHECK(tensor.data == file.find("t")->data);
            CHECK(tensor.scales == nullptr);
            CHECK(tensor.scale_shape[0] == 0);
            CHECK(tensor.flags == 0);
            CHECK(tensor.reserved == 0);
        } else {
            const auto refused = refusal_of([&] { file.tensor("t"); });
            REQUIRE(refused);
            CHECK(refused->status == DS41_STATUS_INVALID_DTYPE);
            CHECK(refused->message.find(std::string("tensor \"t\" is ") + c.name) != std::string::npos);
        }
        const Bytes short_by_one(Builder().add("t", c.name, "[2,3]", zeros(6 * c.n_bytes - 1)).file());
        CHECK(refusal_of([&] { SafetensorsFile refused(short_by_one.span()); }));
    }
}

TEST_CASE("safetensors: an fp8 weight carries its companion as scales, and nothing else does") {
    const Bytes bytes(Builder()
                          .add("p.weight", "F8_E4M3", "[2,32]", zeros(64))
                          .add("p.scale", "F8_E8M0", "[1,1]", "s")
                          .add("alone.weight", "F8_E4M3", "[1]", "w")
                          .add("bytes.weight", "U8", "[1]", "w")
                          .add("bytes.scale", "F8_E8M0", "[1,1]", "s")
                          .add("flat.weight", "F8_E4M3", "[1]", "w")
                          .add("flat.scale", "F8_E8M0", "[1]", "s")
                          .add("other.weight", "F8_E4M3", "[1]", "w")
                          .add("other.scale", "U8", "[1,1]", "s")
                          .add("odd.weight", "F8_E4M3", "[1]", "w")
                          .add("odd.scale", "F8_E8M0", "[2,3]", "stuvwx")
                          .add("weight", "F8_E4M3", "[1]", "w")
                          .add("scale", "F8_E8M0", "[1,1]", "s")
                          .file());
    const SafetensorsFile file(bytes.span());
    const ds41_tensor weight = file.tensor("p.weight");
    CHECK(weight.scales == file.find("p.scale")->data);
    CHECK(weight.scale_shape[0] == 1);
    CHECK(weight.scale_shape[1] == 1);
    // A shape that does not fit the weight is passed on: whoever takes the weight names both.
    CHECK(file.tensor("odd.weight").scale_shape[0] == 2);
    CHECK(file.tensor("odd.weight").scale_shape[1] == 3);
    for (const std::string name :
         {"p.scale", "alone.weight", "bytes.weight", "flat.weight", "other.weight", "weight"}) {
        CAPTURE(name);
        CHECK(file.tensor(name).scales == nullptr);
        CHECK(file.tensor(name).scale_shape[0] == 0);
        CHECK(file.tensor(name).scale_shape[1] == 0);
    }
}

TEST_CASE("safetensors: tensors that cannot be viewed are refused one by one") {
    const Bytes bytes(Builder()
                          .add("scalar", "U8", "[]", "x")
                          .add("odd", "F32", "[1]", zeros(4))
                          .add("odd16", "BF16", "[1]", zeros(2))
                          .add("five", "U8", "[1,1,1,1,1]", "x")
                          .add("four", "U8", "[1,1,1,1]", "x")
                          .file());
    const SafetensorsFile file(bytes.span());
    struct Case {
        std::string name;
        ds41_status status;
        std::string message;
    };
    const Case cases[] = {
        {"none", DS41_STATUS_MISSING_TENSOR, "name is \"none\", none of the file's 5 tensors"},
        {"", DS41_STATUS_MISSING_TENSOR, "name is \"\""},
        {"five", DS41_STATUS_INVALID_SHAPE, "tensor \"five\" has 5 dimensions, need 1 to 4"},
        {"scalar", DS41_STATUS_INVALID_SHAPE, "tensor \"scalar\" has 0 dimensions"},
    };
    for (const Case &c : cases) {
        CAPTURE(c.name);
        const auto refused = refusal_of([&] { file.tensor(c.name); });
        REQUIRE(refused);
        CHECK(refused->status == c.status);
        CAPTURE(refused->message);
        CHECK(refused->message.find(c.message) != std::string::npos);
    }
    CHECK(file.tensor("four").n_dims == 4);
}

TEST_CASE("safetensors: every malformed file is refused with a sentence") {
    struct Case {
        std::string name;
        std::string file;
        std::string message;
    };
    const std::string deep(100000, '[');
    const std::string good = R"("dtype":"U8","shape":[8],"data_offsets":[0,8])";
    const std::string one = R"({"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
    const std::string two = R"({"dtype":"U8","shape":[4],"data_offsets":[4,8]})";
    const Case cases[] = {
        {"empty file", "", "0 bytes, need 8 or more"},
        {"seven bytes", zeros(7), "7 bytes, need 8 or more"},
        {"header length 0", length_field(0) + "{}", "length is 0, need a value in [1, 100000000]"},
        {"header length over the limit", length_field(100000001) + "{}",
         "length is 100000001, need a value in [1, 100000000]"},
        {"header length 2^64 - 1", length_field(UINT64_MAX) + "{}", "length is 18446744073709551615, need"},
        {"header beyond the file", length_field(3) + "{}", "header of 3 bytes ends beyond the file: 2 bytes follow"},
        {"header of the limit beyond the file", length_field(100000000) + "{}",
         "header of 100000000 bytes ends beyond"},
        {"leading space", file_of(" {}"), "does not begin with '{'"},
        {"only spaces", file_of("   "), "does not begin with '{'"},
        {"a list", file_of("[]"), "does not begin with '{'"},
        {"byte order mark", file_of("\xEF\xBB\xBF{}"), "does not begin with '{'"},
        {"trailing newline", file_of("{}\n"), "does not end with '}'"},
        {"trailing NUL", file_of(std::string("{}\0", 3)), "does not end with '}'"},
        {"trailing text", file_of("{} x"), "does not end with '}'"},
        {"NUL before more text", file_of(std::string("{}\0{}", 5)), "a NUL at byte 2"},
        {"two objects", file_of("{}{}"), "not valid JSON at byte 3"},
        {"unclosed", file_of("{\"a\":" + one, zeros(4)), "not valid JSON at byte"},
        {"trailing comma", file_of("{\"a\":" + one + ",}", zeros(4)), "not valid JSON at byte"},
        {"comment", file_of("{/**/}"), "not valid JSON at byte"},
        {"no UTF-8 in a name", file_of("{\"\xFF\":" + one + "}", zeros(4)), "not valid JSON at byte 3"},
        {"overlong UTF-8", file_of("{\"\xC0\xAF\":" + one + "}", zeros(4)), "not valid JSON at byte 3"},
        {"lone surrogate", file_of(R"({"\ud800":1})"), "not valid JSON at byte"},
        {"raw newline in a name", file_of("{\"a\nb\":1}"), "not valid JSON at byte"},
        {"NUL in a name", file_of(R"({"a\u0000b":)" + one + "}", zeros(4)), "the name \"a?b\" holds a NUL"},
        {"duplicate tensor", file_of("{\"a\":" + one + ",\"b\":" + two + ",\"a\":" + one + "}", zeros(8)),
         "tensor \"a\" appears twice"},
        {"duplicate through an escape", file_of("{\"a\":" + one + ",\"\\u0061\":" + two + "}", zeros(8)),
         "tensor \"a\" appears twice"},
        {"entry is a number", file_of("{\"a\":1}"), "tensor \"a\": the entry is a number, need an object"},
        {"entry is null", file_of("{\"a\":null}"), "tensor \"a\": the entry is null, need an object"},
        {"entry is a list", file_of("{\"a\":[]}"), "tensor \"a\": the entry is a list, need an object"},
        {"entry is a string", file_of("{\"a\":\"b\"}"), "tensor \"a\": the entry is a string, need an object"},
        {"entry is a boolean", file_of("{\"a\":true}"), "tensor \"a\": the entry is a boolean, need an object"},
        {"unknown key", entry(good + R"(,"extra":1)"), "tensor \"a\": unknown key \"extra\""},
        {"key of another case", entry(R"("Dtype":"U8")"), "tensor \"a\": unknown key \"Dtype\""},
        {"duplicate dtype", entry(good + R"(,"dtype":"U8")"), "tensor \"a\": dtype appears twice"},
        {"duplicate shape", entry(good + R"(,"shape":[8])"), "tensor \"a\": shape appears twice"},
        {"duplicate data_offsets", entry(good + R"(,"data_offsets":[0,8])"),
         "tensor \"a\": data_offsets appears twice"},
        {"missing dtype", entry(R"("shape":[8],"data_offsets":[0,8])"), "tensor \"a\": dtype is missing"},
        {"missing shape", entry(R"("dtype":"U8","data_offsets":[0,8])"), "tensor \"a\": shape is missing"},
        {"missing data_offsets", entry(R"("dtype":"U8","shape":[8])"), "tensor \"a\": data_offsets is missing"},
        {"empty entry", entry(""), "tensor \"a\": dtype is missing"},
        {"dtype is a number", entry(R"("dtype":8)"), "tensor \"a\": dtype is a number, need a string"},
        {"dtype is a list", entry(R"("dtype":["U8"])"), "tensor \"a\": dtype is a list, need a string"},
        {"unknown dtype", entry(R"("dtype":"F4")"), "tensor \"a\": the dtype \"F4\" is unknown"},
        {"dtype of another case", entry(R"("dtype":"u8")"), "the dtype \"u8\" is unknown"},
        {"dtype with a NUL", entry(R"("dtype":"U8\u0000")"), "the dtype \"U8?\" is unknown"},
        {"shape is a number", entry(R"("shape":8)"), "tensor \"a\": shape is a number, need a list of integers"},
        {"shape is an object", entry(R"("shape":{})"), "tensor \"a\": shape is an object, need a list of integers"},
        {"shape is null", entry(R"("shape":null)"), "tensor \"a\": shape is null, need a list of integers"},
        {"shape holds a string", entry(R"("shape":["8"])"), "tensor \"a\": shape holds a string, need integers"},
        {"shape holds a boolean", entry(R"("shape":[true])"), "tensor \"a\": shape holds a boolean, need integers"},
        {"negative size", entry(R"("shape":[-1])"), "tensor \"a\": shape holds -1, need integers from 0"},
        {"negative offset", entry(R"("data_offsets":[-8,0])"), "tensor \"a\": data_offsets holds -8, need integers"},
        {"fractional size", entry(R"("shape":[2.5])"), "tensor \"a\": shape holds 2.5, need integers"},
        {"size with a fraction of zero", entry(R"("shape":[8.0])"), "tensor \"a\": shape holds 8, need integers"},
        {"size with an exponent", entry(R"("shape":[1e3])"), "tensor \"a\": shape holds 1000, need integers"},
        {"size 2^63", entry(R"("shape":[9223372036854775808])"),
         "shape holds 9223372036854775808, need integers from 0 to 9223372036854775807"},
        {"size 2^64", entry(R"("shape":[18446744073709551616])"), "shape holds 18446744073709551616, need"},
        {"size -2^63", entry(R"("shape":[-9223372036854775808])"), "shape holds -9223372036854775808, need"},
        {"size 1e400", entry(R"("shape":[1e400])"), "holds a number beyond the range of a double at byte"},
        {"offset 2^63", entry(R"("data_offsets":[0,9223372036854775808])"),
         "data_offsets holds 9223372036854775808, need"},
        {"offset 2^64 + 8", entry(R"("dtype":"U8","shape":[8],"data_offsets":[0,18446744073709551624])"),
         "data_offsets holds 18446744073709551616, need"},
        {"one offset", entry(R"("dtype":"U8","shape":[8],"data_offsets":[8])"),
         "tensor \"a\": data_offsets has 1 entries, need 2"},
        {"three offsets", entry(R"("dtype":"U8","shape":[8],"data_offsets":[0,8,8])"),
         "tensor \"a\": data_offsets has 3 entries, need 2"},
        {"begin after end", entry(R"("dtype":"U8","shape":[4],"data_offsets":[8,4])"),
         "tensor \"a\": data_offsets [8, 4] begin after their end"},
        {"end beyond the data", entry(R"("dtype":"U8","shape":[9],"data_offsets":[0,9])"),
         "tensor \"a\": data_offsets [0, 9] end beyond the file's 8 bytes"},
        {"end at 2^63 - 1",
         entry(R"("dtype":"U8","shape":[9223372036854775807],"data_offsets":[0,9223372036854775807])"),
         "[0, 9223372036854775807] end beyond the file's 8 bytes"},
        {"too few bytes", entry(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"),
         "tensor \"a\": data_offsets [0, 8] span 8 bytes, need 12 (F32, shape [3])"},
        {"too many bytes", entry(R"("dtype":"U8","shape":[2,3],"data_offsets":[0,8])"),
         "span 8 bytes, need 6 (U8, shape [2, 3])"},
        {"scalar of 8 bytes", entry(R"("dtype":"U8","shape":[],"data_offsets":[0,8])"),
         "span 8 bytes, need 1 (U8, shape [])"},
        {"bytes for no elements", entry(R"("dtype":"U8","shape":[0,8],"data_offsets":[0,8])"),
         "span 8 bytes, need 0 (U8, shape [0, 8])"},
        {"product over 64 bits", entry(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,8])"),
         "tensor \"a\": U8 of shape [4294967296, 4294967296] takes more bytes than 64 bits"},
        {"product wraps to the right size",
         entry(R"("dtype":"F64","shape":[2305843009213693953],"data_offsets":[0,8])"), "takes more bytes than 64 bits"},
        {"65 dimensions",
         entry("\"shape\":[1" +
               [] {
                   std::string ones;
                   for (int i = 0; i < 64; ++i) ones += ",1";
                   return ones;
               }() +
               "]"),
         "tensor \"a\": shape has more than 64 dimensions"},
        {"overlap", file_of(R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"b":)" + two + "}", zeros(8)),
         "tensors \"a\" and \"b\" overlap: one ends at byte 5 of the data, the other begins at 4"},
        {"same range twice", file_of("{\"b\":" + one + ",\"a\":" + one + "}", zeros(4)),
         "overlap: one ends at byte 4 of the data, the other begins at 0"},
        {"one inside the other",
         file_of(R"({"in":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"out":)" + one + "}", zeros(4)),
         "tensors \"out\" and \"in\" overlap"},
        {"empty tensor inside another",
         file_of(R"({"in":{"dtype":"U8","shape":[0],"data_offsets":[2,2]},"out":)" + one + "}", zeros(4)),
         "tensors \"out\" and \"in\" overlap"},
        {"hole at the start", file_of("{\"b\":" + two + "}", zeros(8)),
         "bytes 0 to 4 of the data, before tensor \"b\", belong to no tensor"},
        {"hole in the middle",
         file_of("{\"a\":" + one + R"(,"c":{"dtype":"U8","shape":[3],"data_offsets":[5,8]}})", zeros(8)),
         "bytes 4 to 5 of the data, before tensor \"c\", belong to no tensor"},
        {"uncovered end", file_of("{\"a\":" + one + "}", zeros(5)),
         "bytes 4 to 5 of the data, its end, belong to no tensor"},
        {"data without tensors", file_of("{}", zeros(1)), "bytes 0 to 1 of the data, its end, belong to no tensor"},
        {"metadata is a list", file_of(R"({"__metadata__":[]})"), "__metadata__ is a list, need an object"},
        {"metadata is null", file_of(R"({"__metadata__":null})"), "__metadata__ is null, need an object"},
        {"metadata twice", file_of(R"({"__metadata__":{},"__metadata__":{}})"), "__metadata__ appears twice"},
        {"metadata key twice", file_of(R"({"__metadata__":{"k":"1","j":"2","k":"1"}})"),
         "__metadata__: the key \"k\" appears twice"},
        {"metadata number", file_of(R"({"__metadata__":{"k":1}})"),
         "__metadata__: the value of \"k\" is a number, need a string"},
        {"metadata null", file_of(R"({"__metadata__":{"k":null}})"),
         "__metadata__: the value of \"k\" is null, need a string"},
        {"metadata object", file_of(R"({"__metadata__":{"k":{}}})"),
         "__metadata__: the value of \"k\" is an object, need a string"},
        {"metadata list", file_of(R"({"__metadata__":{"k":["v"]}})"),
         "__metadata__: the value of \"k\" is a list, need a string"},
        {"metadata key with a NUL", file_of(R"({"__metadata__":{"k\u0000":"v"}})"), "the name \"k?\" holds a NUL"},
        {"metadata value with a NUL", file_of(R"({"__metadata__":{"k":"v\u0000w"}})"),
         "__metadata__: the value of \"k\" holds a NUL"},
        {"nesting in a shape", file_of("{\"a\":{\"shape\":" + deep + "}}"), "the header nests deeper than 3 levels"},
        {"nesting in an entry", file_of("{\"a\":" + deep + "}"), "tensor \"a\": the entry is a list"},
        {"nested objects", file_of("{\"a\":{\"dtype\":{\"b\":1}}}"), "tensor \"a\": dtype is an object"},
    };
    for (const Case &c : cases) {
        CAPTURE(c.name);
        const auto refused = open_refusal(c.file);
        CHECK(refused.has_value());
        if (!refused) continue;
        CAPTURE(refused->message);
        CHECK(refused->status == DS41_STATUS_INVALID_FILE);
        CHECK(refused->message.find(c.message) != std::string::npos);
    }
}

TEST_CASE("safetensors: the header may be as long as the limit") {
    std::string file = length_field(100000000) + "{}";
    file.resize(8 + 100000000, ' ');
    CHECK(!open_refusal(file));
}

TEST_CASE("safetensors: foreign names are shown short, printable and whole in their characters") {
    std::string name;
    for (int i = 0; i < 300; ++i) name += "\xC3\xBC";
    const auto refused = open_refusal(file_of("{\"x\\ny" + name + "\":1}"));
    REQUIRE(refused);
    // Of 96 bytes, three are x?y, and 46 characters of two bytes fit into the other 93.
    std::string shown = "tensor \"x?y";
    for (int i = 0; i < 46; ++i) shown += "\xC3\xBC";
    CHECK(refused->message.starts_with(shown + "...\": the entry is a number"));
}

TEST_CASE("safetensors: a file cut at any byte is refused") {
    const std::string whole = small_file();
    REQUIRE(!open_refusal(whole));
    for (size_t n = 0; n < whole.size(); ++n) {
        CAPTURE(n);
        const auto refused = open_refusal(whole.substr(0, n));
        REQUIRE(refused);
        CHECK(refused->status == DS41_STATUS_INVALID_FILE);
    }
    CHECK(open_refusal(whole + "x"));
}

TEST_CASE("safetensors: any flipped bit of the header is read within bounds or refused") {
    const std::string whole = small_file();
    const size_t n_header = whole.size() - 8; // Eight bytes of data.
    int n_refused = 0;
    for (size_t bit = 0; bit < 8 * n_header; ++bit) {
        CAPTURE(bit);
        std::string flipped = whole;
        flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
        const Bytes bytes(flipped);
        const auto refused = refusal_of([&] {
            const SafetensorsFile file(bytes.span());
            for (const ds41::SafetensorsEntry &entry : file.entries()) {
                CHECK(entry.data >= bytes.span().data());
                CHECK(entry.data + entry.n_bytes <= bytes.span().data() + bytes.span().size());
                refusal_of([&] { file.tensor(entry.name); });
            }
        });
        if (refused) {
            ++n_refused;
            CHECK(refused->status == DS41_STATUS_INVALID_FILE);
            CHECK(!refused->message.empty());
        }
    }
    // What passes is a bit in a name or in the metadata's texts; structure and numbers never do.
    CHECK(n_refused > static_cast<int>(4 * n_header));
}

TEST_CASE("safetensors: memory for a header is a small multiple of the header") {
    std::string pairs, entries, sizes;
    for (int i = 0; i < 20000; ++i) {
        pairs += (i ? ",\"" : "\"") + std::to_string(i) + "\":\"\"";
        entries += (i ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
        sizes += i ? ",1" : "1";
    }
    struct Case {
        std::string name;
        std::string header;
    };
    const Case cases[] = {
        {"many pairs of metadata", "{\"__metadata__\":{" + pairs + "}}"},
        {"many tensors", "{" + entries + "}"},
        {"one long shape", R"({"a":{"shape":[)" + sizes + "]}}"},
        {"one long name", "{\"" + std::string(200000, 'n') + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"},
        {"one long name that is cut short", "{\"" + std::string(200000, 'n') + "}"},
    };
    for (const Case &c : cases) {
        CAPTURE(c.name);
        const Bytes bytes(file_of(c.header));
        ds41::test::AllocationMeter meter;
        refusal_of([&] { SafetensorsFile opened(bytes.span()); });
        // Entries of 90 bytes for 50 or more, pairs of 8 and their text for 6 or more, and what growing vectors and
        // strings leave behind; errors of the JSON library quote the text some times over.
        CHECK(meter.n_bytes() <= 16 * c.header.size() + 4096);
    }
}

TEST_CASE("safetensors: a file on disk is mapped, and its refusals begin with the path") {
    const TempDir directory;
    const std::string good = directory.write("good.safetensors", small_file());
    const SafetensorsFile file(good);
    CHECK(file.n_tensors() == 2);
    CHECK(std::memcmp(file.find("b")->data, "abcdef", 6) == 0);
    CHECK(file.tensor("a").dtype == DS41_DTYPE_BF16);

    const std::string bad = directory.write("bad.safetensors", length_field(0));
    const auto refused = refusal_of([&] { SafetensorsFile opened(bad); });
    REQUIRE(refused);
    CHECK(refused->status == DS41_STATUS_INVALID_FILE);
    CHECK(refused->message ==
          "path " + bad + ": not a safetensors file: the header's length is 0, need a value in [1, 100000000]");

    const auto empty = refusal_of([&] { SafetensorsFile opened(directory.write("empty", "")); });
    REQUIRE(empty);
    CHECK(empty->status == DS41_STATUS_INVALID_FILE);
}

#ifdef __linux__
TEST_CASE("mapping: bytes that are asked for ahead come into the page cache") {
    constexpr size_t kMiB = size_t{1} << 20;
    const TempDir directory;
    const std::string path = directory.write("file", std::string(4 * kMiB, 'x'));
    const ds41::Mapping mapping(path);
    const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const auto n_resident = [&](size_t offset, size_t n_bytes) {
        std::vector<unsigned char> pages(n_bytes / page);
        void *const begin = const_cast<std::byte *>(mapping.bytes().data()) + offset;
        REQUIRE(::mincore(begin, n_bytes, pages.data()) == 0);
        return std::count_if(pages.begin(), pages.end(), [](unsigned char flags) { return (flags & 1) != 0; });
    };
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(fd >= 0);
    ::fsync(fd);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
    if (n_resident(0, 4 * kMiB) > 0) {
        MESSAGE("this file system keeps its pages in memory: nothing to see");
        return;
    }
    mapping.read_ahead(kMiB, kMiB);
    const auto wanted = static_cast<std::ptrdiff_t>(kMiB / page);
    for (int tries = 0; tries < 1000 && n_resident(kMiB, kMiB) < wanted; ++tries)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(n_resident(kMiB, kMiB) == wanted);
    mapping.read_ahead(3 * kMiB, 9 * kMiB); // beyond the end: ignored
}
#endif

TEST_CASE("mapping: regular files only, whatever their size; a refusal tells path and reason") {
    const TempDir directory;
    const std::string path = directory.write("file", "hello");
    ds41::Mapping mapping(path);
    REQUIRE(mapping.bytes().size() == 5);
    CHECK(std::memcmp(mapping.bytes().data(), "hello", 5) == 0);

    const std::byte *address = mapping.bytes().data();
    ds41::Mapping moved(std::move(mapping));
    CHECK(moved.bytes().data() == address);
    ds41::Mapping assigned;
    CHECK(assigned.bytes().empty());
    assigned = std::move(moved);
    CHECK(assigned.bytes().data() == address);
    CHECK(std::memcmp(assigned.bytes().data(), "hello", 5) == 0);

    CHECK(ds41::Mapping(directory.write("empty", "")).bytes().empty());
    CHECK(ds41::Mapping(path).bytes().size() == 5);

    REQUIRE(::mkfifo((directory.path + "/fifo").c_str(), 0600) == 0);
    std::filesystem::create_symlink("nowhere", directory.path + "/dangling");
    struct Case {
        std::string path;
        std::string reason;
    };
    const Case cases[] = {
        {directory.path + "/none", std::strerror(ENOENT)},
        {"", std::strerror(ENOENT)},
        {directory.path + "/dangling", std::strerror(ENOENT)},
        {path + "/below", std::strerror(ENOTDIR)},
        {directory.path, std::strerror(EISDIR)},
        {directory.path + "/fifo", "not a regular file"},
        {"/dev/null", "not a regular file"},
        {directory.path + "/" + std::string(300, 'n'), std::strerror(ENAMETOOLONG)},
    };
    for (const Case &c : cases) {
        CAPTURE(c.path);
        const auto refused = refusal_of([&] { ds41::Mapping refused_mapping(c.path); });
        REQUIRE(refused);
        CAPTURE(refused->message);
        CHECK(refused->status == DS41_STATUS_IO_ERROR);
        CHECK(refused->message.find(c.reason) != std::string::npos);
        CHECK(refused->message.starts_with("path "));
        CHECK(refused->message.find(c.path.substr(c.path.size() - std::min<size_t>(c.path.size(), 160))) !=
              std::string::npos);
    }
}

TEST_CASE("safetensors: the published quantiser tables are read") {
    const SafetensorsFile file(fixture("quant_tables.safetensors"));
    CHECK(file.n_tensors() == 26);
    CHECK(std::string(file.name(0)) == "act_quant.code");
    CHECK(std::string(file.metadata("case")) == "quant_tables");

    const ds41_tensor code = file.tensor("act_quant.code");
    CHECK(code.dtype == DS41_DTYPE_U8);
    CHECK(code.n_dims == 2);
    CHECK(code.shape[0] == 60);
    CHECK(code.shape[1] == 64);
    CHECK(file.tensor("act_quant.out").dtype == DS41_DTYPE_BF16);
    CHECK(file.tensor("bf16.in").shape[0] == 1606);
    CHECK(file.find("pow2_ceil.out")->n_bytes == 960);

    // Tensors stand without padding here, so some are not aligned to their elements. They are lent all the same.
    const ds41_tensor odd = file.tensor("e4m3.in");
    CHECK(odd.dtype == DS41_DTYPE_F32);
    CHECK(reinterpret_cast<std::uintptr_t>(odd.data) % 4 != 0);
}
