// What a configuration says: the roles of its layers, the built-in one, and the ways to read one from JSON.
#include "support.h"

#include <cstring>

using namespace api_test;

namespace {

ds41_layer_role role_of(const ds41_config &config, int32_t layer) {
    ds41_layer_role role;
    ds41_layer_role_init(&role, sizeof(role));
    must(ds41_config_get_role(&config, layer, &role));
    return role;
}

void check_same_role(const ds41_layer_role &got, const ds41_layer_role &expected) {
    CHECK(got.ratio == expected.ratio);
    CHECK(got.kv_source == expected.kv_source);
    CHECK(got.index_source == expected.index_source);
    CHECK(got.is_kv_source == expected.is_kv_source);
    CHECK(got.is_index_source == expected.is_index_source);
    CHECK(got.is_candidate_source == expected.is_candidate_source);
    CHECK(got.uses_candidates == expected.uses_candidates);
    CHECK(got.is_draft == expected.is_draft);
}

ds41_config parse(const std::string &json) {
    ds41_config config;
    ds41_config_init(&config, sizeof(config));
    must(ds41_config_parse(&config, json.data(), json.size()));
    return config;
}

bool same(const ds41_config &a, const ds41_config &b) {
    return std::memcmp(&a, &b, sizeof(a)) == 0;
}

// One refused text: the configuration given stays as it was.
void check_parse_refused(const std::string &json, ds41_status status, const std::vector<std::string> &words) {
    CAPTURE(json.substr(0, 200));
    ds41_config config;
    ds41_config_init(&config, sizeof(config));
    config.dim = 77;
    const ds41_config before = config;
    check_refused(ds41_config_parse(&config, json.data(), json.size()), {status}, "ds41_config_parse", words);
    CHECK(same(config, before));
    const TempFile file(json);
    check_refused(ds41_config_load(&config, file.path()), {status}, "ds41_config_load", words);
    CHECK(same(config, before));
}

std::string replaced(std::string text, const std::string &from, const std::string &to) {
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
}

// The line `"key": value` out of to_json's text.
std::string without(const std::string &json, const std::string &key) {
    const size_t at = json.find("\"" + key + "\":");
    REQUIRE(at != std::string::npos);
    const size_t end = json.find('\n', at);
    if (end == std::string::npos) return json.substr(0, json.rfind(',', at)) + "}";
    return json.substr(0, at) + json.substr(end + 1);
}

const char *const kRelease = R"({
  "architectures": ["DeepseekV41ForCausalLM"], "model_type": "deepseek_v41",
  "quantization_config": {"quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [32, 32]},
  "text_config": {
    "model_type": "deepseek_v41_text", "vocab_size": 129280, "hidden_size": 5120, "num_hidden_layers": 40,
    "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1280,
    "o_lora_rank": 1024, "o_groups": 8, "sliding_window": 128,
    "compress_ratios": [0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,
                        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "kv_source_layer_ids": [2, 8, 14, 20], "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "index_n_heads": 32, "index_head_dim": 128, "index_topk": 512, "candidate_source_layer_id": 20,
    "candidate_topk_blocks": 2048, "candidate_block_size": 8, "rope_theta": 10000, "compress_rope_theta": 160000,
    "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
                     "original_max_position_embeddings": 65536},
    "max_position_embeddings": 1048576, "rms_norm_eps": 1e-20, "attention_bias": false, "tie_word_embeddings": false
  },
  "vision_config": {"hidden_size": 1, "num_hidden_layers": 2}
})";

} // namespace

TEST_CASE("flash is DeepSeek-V4.1-Flash") {
    ds41_config config;
    ds41_config_flash(&config, sizeof(config));
    must(ds41_config_validate(&config));
    CHECK(config.struct_size == sizeof(config));
    CHECK(config.n_layers == 40);
    CHECK(config.n_compress_ratios == 43);
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
    CHECK(config.candidate_source_layer == 20);
    CHECK(config.candidate_topk_blocks == 2048);
    CHECK(config.candidate_block_size == 8);
    CHECK(config.norm_eps == 1e-20f);
    CHECK(config.rope_theta == 10000);
    CHECK(config.compress_rope_theta == 160000);
    CHECK(config.rope_factor == 16);
    CHECK(config.beta_fast == 32);
    CHECK(config.beta_slow == 1);
    CHECK(config.original_seq_len == 65536);
    CHECK(config.max_seq_len == 1048576);
    CHECK(same(parse(kRelease), config));
}

TEST_CASE("the roles are what the lists say") {
    ds41_config flash;
    ds41_config_flash(&flash, sizeof(flash));
    for (const ds41_config &config : {flash, small_config(), wide_config(), chained_config()}) {
        for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) {
            CAPTURE(layer);
            check_same_role(role_of(config, layer), expected_role(config, layer));
        }
        for (const int32_t layer : {-1, config.n_compress_ratios, INT32_MAX, INT32_MIN}) {
            ds41_layer_role role;
            ds41_layer_role_init(&role, sizeof(role));
            role.ratio = 77;
            check_refused(
                ds41_config_get_role(&config, layer, &role), {DS41_STATUS_INVALID_LAYER}, "ds41_config_get_role",
                {"layer", std::to_string(layer),
                 std::to_string(config.n_compress_ratios - 1) + "|" + std::to_string(config.n_compress_ratios)});
            CHECK(role.ratio == 77);
        }
    }
    // Spelled out for the release, so that the rule in expected_role is pinned as well.
    CHECK(role_of(flash, 19).kv_source == 14);
    CHECK(role_of(flash, 27).kv_source == 20);
    CHECK(role_of(flash, 27).index_source == 24);
    CHECK(role_of(flash, 36).uses_candidates == 1);
    CHECK(role_of(flash, 20).uses_candidates == 0);
    CHECK(role_of(flash, 14).uses_candidates == 0);
    CHECK(role_of(flash, 42).is_draft == 1);
    CHECK(role_of(flash, 42).kv_source == -1);
}

TEST_CASE("a configuration survives the way through JSON") {
    for (const ds41_config &config : {small_config(), wide_config()}) CHECK(same(parse(to_json(config)), config));
    const ds41_config config = small_config();
    const std::string json = to_json(config);
    const TempFile file(json);
    ds41_config loaded;
    ds41_config_init(&loaded, sizeof(loaded));
    must(ds41_config_load(&loaded, file.path()));
    CHECK(same(loaded, config));
    // No terminating NUL is needed: what follows the text is not read.
    const std::string longer = json + "garbage";
    ds41_config_init(&loaded, sizeof(loaded));
    must(ds41_config_parse(&loaded, longer.data(), json.size()));
    CHECK(same(loaded, config));
}

TEST_CASE("a key that concerns attention is needed unless it has a default") {
    const ds41_config config = small_config();
    const std::string json = to_json(config);
    for (const char *key : {"n_layers",
                            "compress_ratios",
                            "kv_source_layers",
                            "index_source_layers",
                            "dim",
                            "n_heads",
                            "head_dim",
                            "rope_head_dim",
                            "q_lora_rank",
                            "o_groups",
                            "o_lora_rank",
                            "window_size",
                            "index_n_heads",
                            "index_head_dim",
                            "index_topk",
                            "candidate_topk_blocks",
                            "candidate_block_size",
                            "norm_eps",
                            "rope_theta",
                            "compress_rope_theta",
                            "rope_factor",
                            "beta_fast",
                            "beta_slow",
                            "original_seq_len"}) {
        CAPTURE(std::string(key));
        check_parse_refused(without(json, key), DS41_STATUS_INVALID_FILE, {key});
    }
    CHECK(parse(without(json, "max_seq_len")).max_seq_len == 1048576);
    const std::string no_candidates =
        without(without(without(json, "candidate_source_layer"), "candidate_topk_blocks"), "candidate_block_size");
    CHECK(parse(no_candidates).candidate_source_layer == -1);
}

TEST_CASE("text that is no configuration is refused") {
    const std::string json = to_json(small_config());
    const std::vector<std::string> none;
    check_parse_refused("", DS41_STATUS_INVALID_FILE, none);
    check_parse_refused("   ", DS41_STATUS_INVALID_FILE, none);
    check_parse_refused("[]", DS41_STATUS_INVALID_FILE, none);
    check_parse_refused("{}", DS41_STATUS_INVALID_FILE, none);
    check_parse_refused("null", DS41_STATUS_INVALID_FILE, none);
    check_parse_refused(json.substr(0, json.size() - 1), DS41_STATUS_INVALID_FILE, none);
    check_parse_refused(json + "{", DS41_STATUS_INVALID_FILE, none);
    check_parse_refused(std::string(100000, '['), DS41_STATUS_INVALID_FILE, none);
    check_parse_refused(replaced(json, "\"dim\": 64", "\"dim\": \"64\""), DS41_STATUS_INVALID_FILE, {"dim"});
    check_parse_refused(replaced(json, "\"dim\": 64", "\"dim\": [64]"), DS41_STATUS_INVALID_FILE, {"dim"});
    check_parse_refused(replaced(json, "\"dim\": 64", "\"dim\": 64.5"), DS41_STATUS_INVALID_FILE, {"dim"});
    check_parse_refused(replaced(json, "\"dim\": 64", "\"dim\": null"), DS41_STATUS_INVALID_FILE, {"dim"});
    check_parse_refused(replaced(json, "\"dim\": 64", "\"dim\": true"), DS41_STATUS_INVALID_FILE, {"dim"});
    check_parse_refused(replaced(json, "[1, 2, 4],", "[1, \"2\", 4],"), DS41_STATUS_INVALID_FILE, {"kv_source_layers"});
    check_parse_refused(replaced(json, "[1, 2, 4],", "7,"), DS41_STATUS_INVALID_FILE, {"kv_source_layers"});
    check_parse_refused(replaced(json, "\"dim\": 64", "\"dim\": -64"), DS41_STATUS_INVALID_CONFIG, {"dim", "-64"});
    check_parse_refused(replaced(json, "\"head_dim\": 32", "\"head_dim\": 33"), DS41_STATUS_INVALID_CONFIG,
                        {"head_dim", "33"});
}

TEST_CASE("numbers and lists that do not fit the struct are refused, not cut") {
    const std::string json = to_json(small_config());
    const auto refuse = [](const std::string &text, const char *key) {
        CAPTURE(text.substr(0, 100));
        ds41_config config;
        ds41_config_init(&config, sizeof(config));
        check_refused(ds41_config_parse(&config, text.data(), text.size()),
                      {DS41_STATUS_INVALID_FILE, DS41_STATUS_INVALID_CONFIG}, "ds41_config_parse", {key});
    };
    refuse(replaced(json, "\"dim\": 64", "\"dim\": 4294967360"), "dim"); // 2^32 + 64
    refuse(replaced(json, "\"dim\": 64", "\"dim\": 18446744073709551680"), "dim");
    refuse(replaced(json, "\"dim\": 64", "\"dim\": 1e300"), "dim");
    refuse(replaced(json, "\"norm_eps\": 9.99999968e-21", "\"norm_eps\": 1e300"), "norm_eps");
    refuse(replaced(json, "\"norm_eps\": 9.99999968e-21", "\"norm_eps\": 1e-300"), "norm_eps");
    std::string ratios = "[0";
    for (int i = 1; i < 257; i++) ratios += ", 0";
    refuse(replaced(json, "[0, 4, 2, 2, 1, 1, 1, 0]", ratios + "]"), "compress_ratios|n_compress_ratios");
    std::string sources = "[1";
    for (int i = 1; i < 1000; i++) sources += ", 1";
    refuse(replaced(json, "[1, 2, 4],", sources + "],"), "kv_source_layers|n_kv_source_layers");
}
