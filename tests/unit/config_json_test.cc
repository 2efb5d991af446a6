// config.json: both forms give the same configuration, defaults are the documented ones, and what is wrong is named by
// the key as the text spells it. Whether the numbers make a model is not asked here.
#include "checkpoint/config_json.h"
#include "error.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace {

using ds41::parse_config_json;

// As the golden files carry it: the reference's names, keys of other parts among them.
constexpr char kFlat[] = R"({"vocab_size": 64, "dim": 64, "n_layers": 6, "n_heads": 4, "head_dim": 32,
    "rope_head_dim": 8, "q_lora_rank": 16, "o_lora_rank": 24, "o_groups": 2, "window_size": 9,
    "compress_ratios": [0, 0, 2, 2, 1, 1], "kv_source_layers": [2, 4], "index_source_layers": [2, 4, 5],
    "candidate_source_layer": 4, "candidate_topk_blocks": 3, "candidate_block_size": 7, "index_n_heads": 5,
    "index_head_dim": 33, "index_topk": 6, "rope_theta": 10000.0, "compress_rope_theta": 40000.0, "rope_factor": 2.0,
    "original_seq_len": 31, "beta_fast": 32, "beta_slow": 1, "norm_eps": 1e-20, "max_seq_len": 65})";

// DeepSeek-V4.1-Flash, as released.
constexpr char kRelease[] = R"({
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "quantization_config": {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [32, 32],
                            "expert_dtype": "fp4"},
    "text_config": {
        "model_type": "deepseek_v41_text", "vocab_size": 129280, "hidden_size": 5120, "num_hidden_layers": 40,
        "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
        "q_lora_rank": 1280, "o_lora_rank": 1024, "o_groups": 8, "sliding_window": 128,
        "compress_ratios": [0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,
                            1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
        "kv_source_layer_ids": [2, 8, 14, 20], "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
        "index_n_heads": 32, "index_head_dim": 128, "index_topk": 512, "candidate_source_layer_id": 20,
        "candidate_topk_blocks": 2048, "candidate_block_size": 8, "rope_theta": 10000, "compress_rope_theta": 160000,
        "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                         "original_max_position_embeddings": 65536},
        "max_position_embeddings": 1048576, "rms_norm_eps": 1e-20, "attention_bias": false,
        "tie_word_embeddings": false, "hc_mult": 4, "hc_eps": 1e-6, "engram_layer_ids": [1, 14],
        "num_nextn_predict_layers": 3, "dspark_target_layer_ids": [37, 38, 39],
        "engram_num_embeddings": [384006168, 384016682], "hidden_act": "silu"
    },
    "vision_config": {"hidden_size": 1280, "layers": [{"rope_scaling": {"factor": 3}}], "text_config": {"head_dim": 7}}
})";

struct Edit {
    std::string from, to;
};

// `from` must occur exactly once, so that an edit cannot miss its target.
std::string edited(const char *text, std::initializer_list<Edit> edits) {
    std::string result = text;
    for (const Edit &edit : edits) {
        CAPTURE(edit.from);
        const size_t at = result.find(edit.from);
        REQUIRE(at != std::string::npos);
        REQUIRE(result.find(edit.from, at + 1) == std::string::npos);
        result.replace(at, edit.from.size(), edit.to);
    }
    return result;
}

struct Refusal {
    ds41_status status;
    std::string message;
};

std::optional<Refusal> refusal_of(const std::string &json) {
    // An allocation of exactly this size: a sanitizer sees a read beyond the text.
    const std::vector<char> exact(json.begin(), json.end());
    try {
        parse_config_json({exact.data(), exact.size()});
    } catch (const ds41::Error &error) {
        return Refusal{error.status(), error.what()};
    }
    return std::nullopt;
}

struct Case {
    std::string name;
    std::string json;
    ds41_status status;
    std::string message;
};

void check_refused(const Case &c) {
    CAPTURE(c.name);
    const auto refused = refusal_of(c.json);
    CHECK(refused.has_value());
    if (!refused) return;
    CAPTURE(refused->message);
    CHECK(refused->status == c.status);
    CHECK(refused->message.find(c.message) != std::string::npos);
}

std::string repeated(const char *text, size_t n) {
    std::string result;
    for (size_t i = 0; i < n; ++i) result += text;
    return result;
}

constexpr ds41_status kFile = DS41_STATUS_INVALID_FILE;
constexpr ds41_status kConfig = DS41_STATUS_INVALID_CONFIG;

} // namespace

TEST_CASE("config.json: the reference's flat names fill every member") {
    const ds41_config config = parse_config_json(kFlat);
    CHECK(config.struct_size == sizeof(ds41_config));
    CHECK(config.n_layers == 6);
    CHECK(config.n_compress_ratios == 6);
    CHECK(config.n_kv_source_layers == 2);
    CHECK(config.n_index_source_layers == 3);
    CHECK(config.candidate_source_layer == 4);
    CHECK(config.dim == 64);
    CHECK(config.n_heads == 4);
    CHECK(config.head_dim == 32);
    CHECK(config.rope_head_dim == 8);
    CHECK(config.q_lora_rank == 16);
    CHECK(config.o_groups == 2);
    CHECK(config.o_lora_rank == 24);
    CHECK(config.window_size == 9);
    CHECK(config.index_n_heads == 5);
    CHECK(config.index_head_dim == 33);
    CHECK(config.index_topk == 6);
    CHECK(config.candidate_topk_blocks == 3);
    CHECK(config.candidate_block_size == 7);
    CHECK(config.norm_eps == 1e-20f);
    CHECK(config.rope_theta == 10000.0f);
    CHECK(config.compress_rope_theta == 40000.0f);
    CHECK(config.rope_factor == 2.0f);
    CHECK(config.beta_fast == 32.0f);
    CHECK(config.beta_slow == 1.0f);
    CHECK(config.reserved == 0);
    CHECK(config.original_seq_len == 31);
    CHECK(config.max_seq_len == 65);
    const int32_t ratios[] = {0, 0, 2, 2, 1, 1, 0};
    const int32_t kv_sources[] = {2, 4, 0};
    const int32_t index_sources[] = {2, 4, 5, 0};
    CHECK(std::memcmp(config.compress_ratios, ratios, sizeof ratios) == 0);
    CHECK(std::memcmp(config.kv_source_layers, kv_sources, sizeof kv_sources) == 0);
    CHECK(std::memcmp(config.index_source_layers, index_sources, sizeof index_sources) == 0);
}

TEST_CASE("config.json: the release's form, draft layers included") {
    const ds41_config config = parse_config_json(kRelease);
    CHECK(config.n_layers == 40);
    CHECK(config.n_compress_ratios == 43);
    int32_t sum = 0;
    for (int32_t layer = 0; layer < DS41_MAX_LAYERS; ++layer) {
        const int32_t ratio = layer < 2 ? 0 : layer < 20 ? 2 : layer < 40 ? 1 : 0;
        CHECK(config.compress_ratios[layer] == ratio);
        sum += config.compress_ratios[layer];
    }
    CHECK(sum == 56);
    CHECK(config.n_kv_source_layers == 4);
    CHECK(config.kv_source_layers[3] == 20);
    CHECK(config.n_index_source_layers == 8);
    CHECK(config.index_source_layers[7] == 36);
    CHECK(config.candidate_source_layer == 20);
    CHECK(config.candidate_topk_blocks == 2048);
    CHECK(config.candidate_block_size == 8);
    CHECK(config.dim == 5120);
    CHECK(config.n_heads == 64);
    CHECK(config.head_dim == 512);
    CHECK(config.rope_head_dim == 64);
    CHECK(config.q_lora_rank == 1280);
    CHECK(config.o_groups == 8);
    CHECK(config.o_lora_rank == 1024);
    CHECK(config.window_size == 128);
    CHECK(config.index_n_heads == 32);
    CHECK(config.index_head_dim == 128);
    CHECK(config.index_topk == 512);
    CHECK(config.norm_eps == 1e-20f);
    CHECK(config.rope_theta == 10000.0f);
    CHECK(config.compress_rope_theta == 160000.0f);
    CHECK(config.rope_factor == 16.0f);
    CHECK(config.beta_fast == 32.0f);
    CHECK(config.beta_slow == 1.0f);
    CHECK(config.original_seq_len == 65536);
    CHECK(config.max_seq_len == 1048576);
}

TEST_CASE("config.json: only text_config counts where it is present, wherever the same names stand elsewhere") {
    const std::string mixed =
        edited(kRelease, {{R"("model_type": "deepseek_v41",)",
                           R"("dim": "wide", "n_layers": 3, "n_layers": 4, "head_dim": 16, "hidden_size": 1,
                              "rope_scaling": {"factor": 9}, "num_key_value_heads": 8,)"}});
    const ds41_config config = parse_config_json(mixed);
    CHECK(config.head_dim == 512);
    CHECK(config.n_layers == 40);
    CHECK(config.dim == 5120);
    CHECK(config.rope_factor == 16.0f);
    // Nor do names of rope_scaling count outside it, or others inside.
    const ds41_config moved = parse_config_json(
        edited(kRelease, {{R"("vocab_size": 129280)", R"("factor": 3, "beta_fast": "x", "rope_scaling.beta_slow": 7)"},
                          {R"("rope_type": "yarn")", R"("hidden_size": 3, "type": "yarn")"}}));
    CHECK(moved.rope_factor == 16.0f);
    CHECK(moved.beta_slow == 1.0f);
    CHECK(moved.dim == 5120);
    // A text_config of null is none.
    CHECK(parse_config_json(edited(kFlat, {{R"("vocab_size": 64)", R"("text_config": null)"}})).dim == 64);
}

TEST_CASE("config.json: without a candidate source its two settings may be missing, and nothing else") {
    const std::string settings = R"("candidate_topk_blocks": 3, "candidate_block_size": 7, )";
    for (const std::string source : {"", R"("candidate_source_layer": null, )", R"("candidate_source_layer": -1, )"}) {
        CAPTURE(source);
        const ds41_config kept = parse_config_json(edited(kFlat, {{R"("candidate_source_layer": 4, )", source}}));
        CHECK(kept.candidate_source_layer == -1);
        CHECK(kept.candidate_topk_blocks == 3);
        CHECK(kept.candidate_block_size == 7);
        const ds41_config none = parse_config_json(edited(
            kFlat, {{R"("candidate_source_layer": 4, )", source}, {settings, R"("candidate_topk_blocks": null,)"}}));
        CHECK(none.candidate_source_layer == -1);
        CHECK(none.candidate_topk_blocks == 0);
        CHECK(none.candidate_block_size == 0);
    }
    check_refused({"blocks missing", edited(kFlat, {{R"("candidate_topk_blocks": 3, )", ""}}), kFile,
                   "the key candidate_topk_blocks is missing"});
    check_refused({"size null", edited(kFlat, {{R"("candidate_block_size": 7)", R"("candidate_block_size": null)"}}),
                   kFile, "the key candidate_block_size is null"});
    check_refused({"size missing, source last",
                   edited(kFlat, {{R"("candidate_source_layer": 4, )", ""},
                                  {R"("candidate_block_size": 7, )", ""},
                                  {R"("max_seq_len": 65)", R"("candidate_source_layer": 4)"}}),
                   kFile, "the key candidate_block_size is missing"});
}

TEST_CASE("config.json: the length of a sequence has a default") {
    CHECK(parse_config_json(edited(kFlat, {{R"(, "max_seq_len": 65)", ""}})).max_seq_len == 1048576);
    CHECK(parse_config_json(edited(kFlat, {{R"("max_seq_len": 65)", R"("max_seq_len": null)"}})).max_seq_len ==
          1048576);
    CHECK(parse_config_json(edited(kRelease, {{R"("max_position_embeddings": 1048576,)", ""}})).max_seq_len == 1048576);
    CHECK(parse_config_json(
              edited(kRelease, {{R"("max_position_embeddings": 1048576)", R"("max_position_embeddings": 4294967296)"}}))
              .max_seq_len == 4294967296);
}

TEST_CASE("config.json: every key without a default is missed by name, in both forms") {
    struct Names {
        std::string reference, release;
    };
    const Names names[] = {
        {"n_layers", "num_hidden_layers"},
        {"dim", "hidden_size"},
        {"n_heads", "num_attention_heads"},
        {"head_dim", "head_dim"},
        {"rope_head_dim", "qk_rope_head_dim"},
        {"q_lora_rank", "q_lora_rank"},
        {"o_groups", "o_groups"},
        {"o_lora_rank", "o_lora_rank"},
        {"window_size", "sliding_window"},
        {"compress_ratios", "compress_ratios"},
        {"kv_source_layers", "kv_source_layer_ids"},
        {"index_source_layers", "index_source_layer_ids"},
        {"index_n_heads", "index_n_heads"},
        {"index_head_dim", "index_head_dim"},
        {"index_topk", "index_topk"},
        {"candidate_topk_blocks", "candidate_topk_blocks"},
        {"candidate_block_size", "candidate_block_size"},
        {"norm_eps", "rms_norm_eps"},
        {"rope_theta", "rope_theta"},
        {"compress_rope_theta", "compress_rope_theta"},
        {"rope_factor", "rope_scaling.factor"},
        {"beta_fast", "rope_scaling.beta_fast"},
        {"beta_slow", "rope_scaling.beta_slow"},
        {"original_seq_len", "rope_scaling.original_max_position_embeddings"},
    };
    // Renaming a key hides it. In the release's text the other occurrences of a name are no concern of text_config.
    const std::string release = edited(
        kRelease,
        {{R"("vision_config": {"hidden_size": 1280, "layers": [{"rope_scaling": {"factor": 3}}], "text_config": {"head_dim": 7}})",
          R"("x": 0)"}});
    for (const Names &name : names) {
        CAPTURE(name.reference);
        const std::string quoted = "\"" + name.reference + "\"";
        check_refused({"flat", edited(kFlat, {{quoted + ":", "\"hidden\":"}}), kFile,
                       ("the key " + name.reference + " is missing")});
        std::string key = name.release;
        if (key.starts_with("rope_scaling.")) key = key.substr(std::strlen("rope_scaling."));
        check_refused({"release", edited(release.c_str(), {{"\"" + key + "\":", "\"hidden\":"}}), kFile,
                       ("the key text_config." + name.release + " is missing")});
    }
    check_refused({"empty object", "{}", kFile, "the key n_layers is missing"});
    check_refused({"empty text_config", R"({"text_config": {}})", kFile, "text_config.num_hidden_layers is missing"});
    check_refused({"no rope_scaling",
                   edited(kRelease, {{R"("rope_scaling": {"rope_type")", R"("other": {"rope_type")"}}), kFile,
                   "text_config.rope_scaling.factor is missing"});
    check_refused({"rope_scaling null",
                   edited(release.c_str(), {{R"("rope_scaling": {)", R"("rope_scaling": null, "other": {)"}}), kFile,
                   "text_config.rope_scaling.factor is missing"});
    check_refused({"dim null", edited(kFlat, {{R"("dim": 64)", R"("dim": null)"}}), kFile, "the key dim is null"});
    check_refused({"the release's names without text_config", R"({"num_hidden_layers": 40, "hidden_size": 5120})",
                   kFile, "the key n_layers is missing"});
}

TEST_CASE("config.json: wrong types and values that a member cannot hold are refused by name") {
    const auto dim = [](const char *value) {
        return edited(kFlat, {{R"("dim": 64)", std::string(R"("dim": )") + value}});
    };
    const auto length = [](const char *value) {
        return edited(kFlat, {{R"("max_seq_len": 65)", std::string(R"("max_seq_len": )") + value}});
    };
    const auto eps = [](const char *value) {
        return edited(kFlat, {{R"("norm_eps": 1e-20)", std::string(R"("norm_eps": )") + value}});
    };
    const auto sources = [](const std::string &value) {
        return edited(kFlat, {{R"("kv_source_layers": [2, 4])", R"("kv_source_layers": )" + value}});
    };
    const auto release = [](const char *from, const char *to) { return edited(kRelease, {{from, to}}); };
    const Case cases[] = {
        {"dim a string", dim(R"("64")"), kFile, "dim is a string, need an integer"},
        {"dim a list", dim("[64]"), kFile, "dim is a list, need an integer"},
        {"dim an object", dim(R"({"a": [1, {"dim": 64}]})"), kFile, "dim is an object, need an integer"},
        {"dim a boolean", dim("true"), kFile, "dim is a boolean, need an integer"},
        {"dim 64.5", dim("64.5"), kFile, "dim is 64.5, need an integer"},
        {"dim 1e-3", dim("1e-3"), kFile, "dim is 0.001, need an integer"},
        {"dim 2^31", dim("2147483648"), kConfig, "dim is 2147483648, need a value in [-2147483648, 2147483647]"},
        {"dim -2^31 - 1", dim("-2147483649"), kConfig, "dim is -2147483649, need a value in"},
        {"dim 2^31 as a float", dim("2147483648.0"), kConfig, "dim is 2147483648, need a value in"},
        {"dim 2^32 + 64", dim("4294967360"), kConfig, "dim is 4294967360, need a value in"},
        {"dim 2^64 + 64", dim("18446744073709551680"), kConfig, "dim is 18446744073709551616, need a value in"},
        {"dim 1e300", dim("1e300"), kConfig, "dim is 1e+300, need a value in"},
        {"dim 1e999", dim("1e999"), kFile, "holds a number beyond the range of a double at byte"},
        {"length 2^63", length("9223372036854775808"), kConfig,
         "max_seq_len is 9223372036854775808, need a value in [-9223372036854775808, 9223372036854775807]"},
        {"length 1e19", length("1e19"), kConfig, "max_seq_len is 10000000000000000000, need a value in"},
        {"length -1e19", length("-1e19"), kConfig, "max_seq_len is -10000000000000000000, need a value in"},
        {"length 0.5", length("0.5"), kFile, "max_seq_len is 0.5, need an integer"},
        {"eps a string", eps(R"("1e-20")"), kFile, "norm_eps is a string, need a number"},
        {"eps over a float", eps("1e39"), kConfig, "norm_eps is 1e+39, need a number that a float holds"},
        {"eps under a float", eps("-1e39"), kConfig, "norm_eps is -1e+39, need a number that a float holds"},
        {"list a number", sources("2"), kFile, "kv_source_layers is a number, need a list of integers"},
        {"list an object", sources(R"({"0": 2})"), kFile, "kv_source_layers is an object, need a list of integers"},
        {"list a string", sources(R"("2, 4")"), kFile, "kv_source_layers is a string, need a list of integers"},
        {"list null", sources("null"), kFile, "the key kv_source_layers is null"},
        {"list of strings", sources(R"([2, "4"])"), kFile, "kv_source_layers holds a string, need integers"},
        {"list of null", sources("[null]"), kFile, "kv_source_layers holds null, need integers"},
        {"list of lists", sources("[[2], [4]]"), kFile, "kv_source_layers holds a list, need integers"},
        {"list of objects", sources(R"([{"a": [2]}, 4])"), kFile, "kv_source_layers holds an object, need integers"},
        {"list of a boolean", sources("[2, false]"), kFile, "kv_source_layers holds a boolean, need integers"},
        {"list with a fraction", sources("[2, 4.5]"), kFile, "kv_source_layers is 4.5, need an integer"},
        {"list beyond int32", sources("[2, 4294967298]"), kConfig, "kv_source_layers is 4294967298, need a value in"},
        {"list of 257", sources("[0" + repeated(",0", 256) + "]"), kConfig,
         "kv_source_layers has 257 entries, need at most 256"},
        {"list of 100000", sources("[0" + repeated(",0", 99999) + "]"), kConfig,
         "kv_source_layers has 100000 entries, need at most 256"},
        {"dim twice", edited(kFlat, {{R"("vocab_size": 64)", R"("dim": 64)"}}), kFile, "the key dim appears twice"},
        {"dim twice, once null", edited(kFlat, {{R"("vocab_size": 64)", R"("dim": null)"}}), kFile,
         "the key dim appears twice"},
        {"list twice", edited(kFlat, {{R"("vocab_size": 64)", R"("kv_source_layers": [2, 4])"}}), kFile,
         "the key kv_source_layers appears twice"},
        {"dim three times", edited(kFlat, {{R"("vocab_size": 64)", R"("dim": 64, "dim": 64)"}}), kFile,
         "the key dim appears twice"},
        {"hidden_size twice", release(R"("vocab_size": 129280)", R"("hidden_size": 5120)"), kFile,
         "the key text_config.hidden_size appears twice"},
        {"factor twice", release(R"("factor": 16,)", R"("factor": 16, "factor": 16,)"), kFile,
         "text_config.rope_scaling.factor appears twice"},
        {"rope_scaling twice", release(R"("vocab_size": 129280)", R"("rope_scaling": {})"), kFile,
         "the key text_config.rope_scaling appears twice"},
        {"text_config twice", release(R"("model_type": "deepseek_v41",)", R"("text_config": {},)"), kFile,
         "the key text_config appears twice"},
        {"text_config a list", R"({"text_config": [1]})", kFile, "the key text_config is a list, need an object"},
        {"text_config a string", R"({"text_config": "x"})", kFile, "the key text_config is a string, need an object"},
        {"rope_scaling a number", release(R"("vocab_size": 129280, "hidden_size": 5120)", R"("rope_scaling": 16)"),
         kFile, "the key text_config.rope_scaling is a number, need an object"},
        {"hidden_size a string", release(R"("hidden_size": 5120)", R"("hidden_size": "5120")"), kFile,
         "text_config.hidden_size is a string, need an integer"},
        {"factor a string", release(R"("factor": 16)", R"("factor": "16")"), kFile,
         "text_config.rope_scaling.factor is a string, need a number"},
        {"linear scaling", release(R"("rope_type": "yarn")", R"("rope_type": "linear")"), kConfig,
         "text_config.rope_scaling.rope_type is \"linear\", need \"yarn\""},
        {"linear scaling, older name", release(R"("rope_type": "yarn")", R"("type": "linear")"), kConfig,
         "text_config.rope_scaling.type is \"linear\", need \"yarn\""},
        {"rope_type a number", release(R"("rope_type": "yarn")", R"("rope_type": 1)"), kFile,
         "rope_type is a number, need a string"},
        {"two latents", release(R"("num_key_value_heads": 1)", R"("num_key_value_heads": 2)"), kConfig,
         "text_config.num_key_value_heads is 2, need 1"},
        {"bias", release(R"("attention_bias": false)", R"("attention_bias": true)"), kConfig,
         "text_config.attention_bias is true, need false"},
        {"bias a number", release(R"("attention_bias": false)", R"("attention_bias": 0)"), kFile,
         "attention_bias is a number, need a boolean"},
    };
    for (const Case &c : cases) check_refused(c);
}

TEST_CASE("config.json: integral floats are integers, and the limits of members can be reached") {
    CHECK(parse_config_json(edited(kFlat, {{R"("dim": 64)", R"("dim": 64.0)"}})).dim == 64);
    CHECK(parse_config_json(edited(kFlat, {{R"("dim": 64)", R"("dim": 6.4e1)"}})).dim == 64);
    CHECK(parse_config_json(edited(kFlat, {{R"("dim": 64)", R"("dim": 2147483647)"}})).dim == INT32_MAX);
    CHECK(parse_config_json(edited(kFlat, {{R"("dim": 64)", R"("dim": -2147483648)"}})).dim == INT32_MIN);
    CHECK(parse_config_json(edited(kFlat, {{"[2, 4]", "[2.0, 4]"}})).kv_source_layers[0] == 2);
    CHECK(parse_config_json(edited(kFlat, {{R"("max_seq_len": 65)", R"("max_seq_len": 9223372036854775807)"}}))
              .max_seq_len == INT64_MAX);
    CHECK(parse_config_json(edited(kFlat, {{R"("beta_fast": 32)", R"("beta_fast": 32.5)"}})).beta_fast == 32.5f);

    const std::string longest = "[9" + repeated(",1", DS41_MAX_LAYERS - 2) + ",7]";
    const ds41_config config = parse_config_json(edited(kFlat, {{"[0, 0, 2, 2, 1, 1]", longest}}));
    CHECK(config.n_compress_ratios == DS41_MAX_LAYERS);
    CHECK(config.compress_ratios[0] == 9);
    CHECK(config.compress_ratios[DS41_MAX_LAYERS - 1] == 7);
    CHECK(parse_config_json(edited(kFlat, {{"[2, 4]", "[]"}})).n_kv_source_layers == 0);
}

TEST_CASE("config.json: text that is no JSON object is refused with its place") {
    const std::string flat = kFlat;
    const Case cases[] = {
        {"nothing", "", kFile, "the configuration is not valid JSON at byte"},
        {"a word", "config", kFile, "the configuration is not valid JSON at byte 1"},
        {"a number", "5", kFile, "the configuration is a number, need an object"},
        {"a string", R"("dim")", kFile, "the configuration is a string, need an object"},
        {"null", "null", kFile, "the configuration is null, need an object"},
        {"a list", R"([{"dim": 64}])", kFile, "the configuration is a list, need an object"},
        {"two objects", flat + flat, kFile, "not valid JSON at byte"},
        {"a trailing NUL", flat + std::string(1, '\0'), kFile, "not valid JSON: a NUL at byte"},
        {"text after a NUL", flat + std::string("\0x", 2), kFile, "not valid JSON: a NUL at byte"},
        {"bytes that are no UTF-8", edited(kFlat, {{"vocab_size", "vocab\xFF"}}), kFile, "not valid JSON at byte"},
        {"NaN", edited(kFlat, {{"1e-20", "NaN"}}), kFile, "not valid JSON at byte"},
        {"hexadecimal", edited(kFlat, {{R"("dim": 64)", R"("dim": 0x40)"}}), kFile, "not valid JSON at byte"},
    };
    for (const Case &c : cases) check_refused(c);
    for (size_t n = 0; n < flat.size(); ++n) {
        CAPTURE(n);
        CHECK(refusal_of(flat.substr(0, n)));
    }
    CHECK(!refusal_of("\n" + flat + "\n"));
}

TEST_CASE("config.json: nesting is bounded and does not use the stack") {
    const auto nested = [](size_t depth) {
        return edited(kFlat, {{R"("vocab_size": 64)", R"("x": )" + repeated("[", depth) + repeated("]", depth)}});
    };
    CHECK(!refusal_of(nested(63)));
    check_refused({"64 lists in the object", nested(64), kFile, "the configuration nests deeper than 64 levels"});
    check_refused({"lists", repeated("[", 10'000'000), kFile, "the configuration is a list"});
    check_refused({"lists in an object", R"({"x":)" + repeated("[", 10'000'000), kFile, "deeper than 64 levels"});
    check_refused({"objects", repeated(R"({"a":)", 1'000'000), kFile, "deeper than 64 levels"});
    check_refused({"objects in a list of ours", R"({"compress_ratios":[)" + repeated(R"({"a":[)", 1'000'000), kFile,
                   "deeper than 64 levels"});
}

TEST_CASE("config.json: any flipped bit is read or refused") {
    const std::string whole = kRelease;
    for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
        std::string flipped = whole;
        flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
        const auto refused = refusal_of(flipped);
        if (!refused) continue;
        CAPTURE(bit);
        CHECK((refused->status == kFile || refused->status == kConfig));
        CHECK(!refused->message.empty());
    }
}
