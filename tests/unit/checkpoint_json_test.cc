// The index of a sharded checkpoint, and what a config.json says of its fp8 weights.
#include "checkpoint/index_json.h"
#include "checkpoint/quantization_json.h"
#include "error.h"

#include <doctest/doctest.h>

#include <string>

using namespace ds41;

namespace {

void refuse_index(const char *json, const char *words) {
    CAPTURE(std::string(json));
    try {
        parse_safetensors_index(json);
        FAIL_CHECK("accepted");
    } catch (const Error &error) {
        CHECK(error.status() == DS41_STATUS_INVALID_FILE);
        CHECK_MESSAGE(std::string(error.what()).find(words) != std::string::npos, error.what());
    }
}

void refuse_scheme(const char *json, ds41_status status, const char *words) {
    CAPTURE(std::string(json));
    try {
        check_quantization_json(json);
        FAIL_CHECK("accepted");
    } catch (const Error &error) {
        CHECK(error.status() == status);
        CHECK_MESSAGE(std::string(error.what()).find(words) != std::string::npos, error.what());
    }
}

} // namespace

TEST_CASE("an index is read in the order of its tensors") {
    const auto entries = parse_safetensors_index(
        R"({"metadata":{"total_size":12,"weight_map":{"x":"y"}},"weight_map":{"b":"2.safetensors","a":"1.safetensors"},
            "other":[{"weight_map":3}]})");
    REQUIRE(entries.size() == 2);
    CHECK(entries[0].tensor == "a");
    CHECK(entries[0].file == "1.safetensors");
    CHECK(entries[1].tensor == "b");
    CHECK(entries[1].file == "2.safetensors");
    CHECK(parse_safetensors_index(R"({"weight_map":{}})").empty());
}

TEST_CASE("an index that is none") {
    refuse_index("", "not valid JSON");
    refuse_index("[1]", "need an object");
    refuse_index("3", "need an object");
    refuse_index("{}", "weight_map is missing");
    refuse_index(R"({"weight_map":[]})", "weight_map is a list");
    refuse_index(R"({"weight_map":"x"})", "weight_map is a string");
    refuse_index(R"({"weight_map":{},"weight_map":{}})", "appears twice");
    refuse_index(R"({"weight_map":{"a":1}})", "is a number");
    refuse_index(R"({"weight_map":{"a":null}})", "is null");
    refuse_index(R"({"weight_map":{"a":{"b":"c"}}})", "is an object");
    refuse_index(R"({"weight_map":{"a":["b"]}})", "is a list");
    refuse_index(R"({"weight_map":{"a":"b","a":"c"}})", "tensor \"a\" twice");
}

TEST_CASE("an index that is cut off, at every byte") {
    const std::string whole = R"({"metadata":{"total_size":3},"weight_map":{"a\u00e9":"x.safetensors","b":"y"}})";
    CHECK(parse_safetensors_index(whole).size() == 2);
    for (std::size_t n = 0; n < whole.size(); ++n) {
        CAPTURE(n);
        refuse_index(whole.substr(0, n).c_str(), "not valid JSON");
    }
}

TEST_CASE("an index does not lead out of its folder") {
    for (const char *name : {"../x", "/etc/passwd", "a/b", "..", ".", "", "a\\u0000b"})
        refuse_index((std::string(R"({"weight_map":{"t":")") + name + "\"}}").c_str(), "same folder");
}

TEST_CASE("the release's quantisation scheme is accepted, at either place, and its absence too") {
    for (const char *json : {
             "{}",
             R"({"quantization_config":null})",
             R"({"quantization_config":{}})",
             R"({"quantization_config":{"quant_method":"fp8","scale_fmt":"ue8m0","weight_block_size":[32,32],
                                        "expert_dtype":"fp4","other":{"scale_fmt":"x","weight_block_size":[1]}}})",
             R"({"text_config":{"quantization_config":{"weight_block_size":[32,32],"scale_fmt":"ue8m0"}}})",
             R"({"vision_config":{"quantization_config":{"weight_block_size":[128,128]}},"scale_fmt":"x"})",
         })
        CHECK_NOTHROW(check_quantization_json(json));
}

TEST_CASE("another quantisation scheme is refused by its key") {
    const auto unsupported = DS41_STATUS_UNSUPPORTED, invalid = DS41_STATUS_INVALID_FILE;
    refuse_scheme(R"({"quantization_config":{"weight_block_size":[128,128]}})", unsupported,
                  "holds 128, need [32, 32]");
    refuse_scheme(R"({"text_config":{"x":1,"quantization_config":{"weight_block_size":[32,128]}}})", unsupported,
                  "128");
    refuse_scheme(R"({"quantization_config":{"scale_fmt":"float32"}})", unsupported, "scale_fmt is \"float32\"");
    refuse_scheme(R"({"quantization_config":{"quant_method":"awq"}})", unsupported, "quant_method is \"awq\"");
    refuse_scheme(R"({"quantization_config":{"weight_block_size":[32]}})", invalid, "1 entries");
    refuse_scheme(R"({"quantization_config":{"weight_block_size":[32,32,32]}})", invalid, "3 entries");
    refuse_scheme(R"({"quantization_config":{"weight_block_size":32}})", invalid, "is a number");
    refuse_scheme(R"({"quantization_config":{"weight_block_size":["32","32"]}})", invalid, "a string");
    refuse_scheme(R"({"quantization_config":{"weight_block_size":[[32,32]]}})", invalid, "a list");
    refuse_scheme(R"({"quantization_config":{"scale_fmt":7}})", invalid, "scale_fmt is a number");
    refuse_scheme(R"({"quantization_config":{"quant_method":["fp8"]}})", invalid, "quant_method is a list");
    refuse_scheme("{", invalid, "not valid JSON");
}
