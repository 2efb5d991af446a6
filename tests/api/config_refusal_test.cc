// Configurations with one thing wrong: validation, creation and the roles refuse each, and name the member.
#include "support.h"

#include <climits>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

using namespace api_test;

namespace {

struct ConfigFault {
    std::string name;
    std::vector<std::string> words; // the member, and the value where there is one
    std::function<void(ds41_config &)> spoil;
};

void set_list(int32_t *list, int32_t &n, std::initializer_list<int32_t> values) {
    n = 0;
    for (const int32_t value : values) list[n++] = value;
}

void set_ratios(ds41_config &c, std::initializer_list<int32_t> values) {
    set_list(c.compress_ratios, c.n_compress_ratios, values);
    c.n_layers = c.n_compress_ratios;
}

void set_sources(ds41_config &c, std::initializer_list<int32_t> kv, std::initializer_list<int32_t> index,
                 int32_t candidate) {
    set_list(c.kv_source_layers, c.n_kv_source_layers, kv);
    set_list(c.index_source_layers, c.n_index_source_layers, index);
    c.candidate_source_layer = candidate;
}

struct SizeMember {
    const char *name;
    int32_t ds41_config::*member;
    bool bounded; // INT32_MAX cannot be served
};

const SizeMember kSizes[] = {
    {"dim", &ds41_config::dim, true},
    {"n_heads", &ds41_config::n_heads, true},
    {"head_dim", &ds41_config::head_dim, true},
    {"rope_head_dim", &ds41_config::rope_head_dim, true},
    {"q_lora_rank", &ds41_config::q_lora_rank, true},
    {"o_groups", &ds41_config::o_groups, true},
    {"o_lora_rank", &ds41_config::o_lora_rank, true},
    {"window_size", &ds41_config::window_size, false},
    {"index_n_heads", &ds41_config::index_n_heads, true},
    {"index_head_dim", &ds41_config::index_head_dim, true},
    {"index_topk", &ds41_config::index_topk, false},
    {"candidate_topk_blocks", &ds41_config::candidate_topk_blocks, false},
    {"candidate_block_size", &ds41_config::candidate_block_size, false},
};

struct FloatMember {
    const char *name;
    float ds41_config::*member;
};

const FloatMember kFloats[] = {
    {"norm_eps", &ds41_config::norm_eps},       {"rope_theta", &ds41_config::rope_theta},
    {"rope_factor", &ds41_config::rope_factor}, {"compress_rope_theta", &ds41_config::compress_rope_theta},
    {"beta_fast", &ds41_config::beta_fast},     {"beta_slow", &ds41_config::beta_slow},
};

void check_config_refused(const ConfigFault &fault, const ds41_config &base = small_config()) {
    CAPTURE(fault.name);
    ds41_config config = base;
    fault.spoil(config);
    const ds41_config before = config;
    check_refused(ds41_config_validate(&config), {DS41_STATUS_INVALID_CONFIG}, "ds41_config_validate", fault.words);
    CHECK(std::memcmp(&config, &before, sizeof(config)) == 0);

    ds41_model *model = nullptr;
    check_refused(ds41_model_create(&model, &config, nullptr), {DS41_STATUS_INVALID_CONFIG}, "ds41_model_create",
                  fault.words);
    CHECK(model == nullptr);
    ds41_model_destroy(model);

    ds41_layer_role role;
    ds41_layer_role_init(&role, sizeof(role));
    role.ratio = 77;
    check_refused(ds41_config_get_role(&config, 0, &role), {DS41_STATUS_INVALID_CONFIG}, "ds41_config_get_role",
                  fault.words);
    CHECK(role.ratio == 77);
}

} // namespace

TEST_CASE("a size that is 0, negative or without measure is refused") {
    for (const SizeMember &size : kSizes) {
        for (const int32_t value : {0, -1, INT32_MIN, INT32_MAX}) {
            if (value == INT32_MAX && !size.bounded) continue;
            const std::string name = size.name;
            // INT32_MAX may break a relation of two members, and then either may be named.
            check_config_refused({name + " " + std::to_string(value),
                                  value == INT32_MAX ? std::vector<std::string>{name}
                                                     : std::vector<std::string>{name, std::to_string(value)},
                                  [&](ds41_config &c) { c.*size.member = value; }});
        }
    }
}

TEST_CASE("sizes whose products overflow are refused") {
    const int32_t big = 1 << 20, bigger = 1 << 30;
    check_config_refused({"n_heads * head_dim is 2^40", {"n_heads|head_dim"}, [=](ds41_config &c) {
                              c.n_heads = big;
                              c.head_dim = big;
                          }});
    check_config_refused({"n_heads * head_dim is 2^32", {"n_heads|head_dim"}, [](ds41_config &c) {
                              c.n_heads = 1 << 16;
                              c.head_dim = 1 << 16;
                          }});
    check_config_refused({"o_groups * o_lora_rank is 2^32", {"o_groups|o_lora_rank"}, [](ds41_config &c) {
                              c.n_heads = 1 << 16;
                              c.o_groups = 1 << 16;
                              c.o_lora_rank = 1 << 16;
                          }});
    check_config_refused(
        {"index_n_heads * index_head_dim is 2^60", {"index_n_heads|index_head_dim"}, [=](ds41_config &c) {
             c.index_n_heads = bigger;
             c.index_head_dim = bigger;
         }});
    check_config_refused({"everything is 2^30", {"dim|n_heads|head_dim"}, [=](ds41_config &c) {
                              c.dim = c.n_heads = c.head_dim = c.q_lora_rank = c.o_lora_rank = bigger;
                          }});
}

TEST_CASE("sizes that do not fit each other are refused") {
    for (const int32_t value : {1, 16, 31, 33, 48}) {
        check_config_refused({"head_dim " + std::to_string(value),
                              {"head_dim", std::to_string(value), "32"},
                              [=](ds41_config &c) { c.head_dim = value; }});
        check_config_refused({"index_head_dim " + std::to_string(value),
                              {"index_head_dim", std::to_string(value), "32"},
                              [=](ds41_config &c) { c.index_head_dim = value; }});
    }
    check_config_refused({"rope_head_dim odd", {"rope_head_dim", "7"}, [](ds41_config &c) { c.rope_head_dim = 7; }});
    check_config_refused(
        {"rope_head_dim above head_dim", {"rope_head_dim", "34", "32"}, [](ds41_config &c) { c.rope_head_dim = 34; }});
    check_config_refused(
        {"rope_head_dim above index_head_dim", {"rope_head_dim|index_head_dim", "34", "32"}, [](ds41_config &c) {
             c.head_dim = 64;
             c.rope_head_dim = 34;
         }});
    check_config_refused(
        {"o_groups not dividing n_heads", {"o_groups|n_heads", "3", "4"}, [](ds41_config &c) { c.o_groups = 3; }});
    check_config_refused(
        {"o_groups above n_heads", {"o_groups|n_heads", "8", "4"}, [](ds41_config &c) { c.o_groups = 8; }});
}

TEST_CASE("floats that are no positive number are refused") {
    const float inf = std::numeric_limits<float>::infinity();
    for (const FloatMember &member : kFloats) {
        for (const float value : {std::nanf(""), inf, -inf, 0.0f, -0.0f, -1.0f}) {
            check_config_refused({std::string(member.name) + " " + std::to_string(value),
                                  {member.name},
                                  [&](ds41_config &c) { c.*member.member = value; }});
        }
    }
}

TEST_CASE("lengths and reserved members out of range are refused") {
    for (const int64_t value : {int64_t(0), int64_t(-1), INT64_MIN}) {
        check_config_refused(
            {"max_seq_len", {"max_seq_len", std::to_string(value)}, [=](ds41_config &c) { c.max_seq_len = value; }});
    }
    for (const int64_t value : {int64_t(-1), INT64_MIN}) {
        check_config_refused({"original_seq_len", {"original_seq_len", std::to_string(value)}, [=](ds41_config &c) {
                                  c.original_seq_len = value;
                              }});
    }
    for (const int32_t value : {1, -1}) {
        CAPTURE(value);
        ds41_config config = small_config();
        config.reserved = value;
        check_refused(ds41_config_validate(&config), {DS41_STATUS_INVALID_ARGUMENT}, "ds41_config_validate",
                      {"reserved", std::to_string(value)});
    }
}

TEST_CASE("rotations whose angles are no numbers are refused") {
    // The smallest float has a finite inverse only just: times a position it is none.
    check_config_refused({"rope_theta", {"rope_theta", "max_seq_len"}, [](ds41_config &c) {
                              c.rope_theta = std::numeric_limits<float>::min();
                              c.rope_head_dim = c.head_dim;
                              c.max_seq_len = 1 << 30;
                          }});
    check_config_refused(
        {"rope_factor", {"rope_factor", "max_seq_len"}, [](ds41_config &c) { c.rope_factor = 1e-40f; }});
}

TEST_CASE("a model of windows alone may leave the index members at 0, but not at nonsense") {
    ds41_config windows = small_config();
    set_ratios(windows, {0, 0});
    set_sources(windows, {}, {}, -1);
    for (const SizeMember &member : kSizes) {
        const bool of_index =
            std::strncmp(member.name, "index_", 6) == 0 || std::strncmp(member.name, "candidate_", 10) == 0;
        if (!of_index) continue;
        ds41_config config = windows;
        config.*member.member = 0;
        CAPTURE(member.name);
        must(ds41_config_validate(&config));
        for (const int32_t value : {-1, -8, INT32_MIN})
            check_config_refused({std::string(member.name) + " " + std::to_string(value),
                                  {member.name, std::to_string(value)},
                                  [&](ds41_config &c) { c.*member.member = value; }},
                                 windows);
    }
    check_config_refused({"product of index heads",
                          {"index_n_heads", "index_head_dim"},
                          [](ds41_config &c) { c.index_n_heads = c.index_head_dim = 1 << 20; }},
                         windows);
}

TEST_CASE("counts of layers and lists out of range are refused") {
    using C = ds41_config;
    const auto refuse = [](const char *member, int32_t C::*at, std::initializer_list<int32_t> values) {
        for (const int32_t value : values) {
            check_config_refused({std::string(member) + " " + std::to_string(value),
                                  {member, std::to_string(value)},
                                  [=](ds41_config &c) { c.*at = value; }});
        }
    };
    refuse("n_layers", &C::n_layers, {-1, 257, INT32_MAX, INT32_MIN});
    check_config_refused(
        {"more layers than ratios", {"n_layers|n_compress_ratios", "8", "9"}, [](ds41_config &c) { c.n_layers = 9; }});
    refuse("n_compress_ratios", &C::n_compress_ratios, {-1, 0, 6, 257, INT32_MAX, INT32_MIN});
    refuse("n_kv_source_layers", &C::n_kv_source_layers, {-1, 257, INT32_MAX, INT32_MIN});
    refuse("n_index_source_layers", &C::n_index_source_layers, {-1, 257, INT32_MAX, INT32_MIN});
    refuse("candidate_source_layer", &C::candidate_source_layer, {-2, 8, INT32_MAX, INT32_MIN});
    check_config_refused({"n_layers 0", {"n_layers|compress_ratios"}, [](ds41_config &c) { c.n_layers = 0; }});
    check_config_refused(
        {"no layers at all", {"n_layers|n_compress_ratios"}, [](ds41_config &c) { ds41_config_init(&c, sizeof(c)); }});
}

TEST_CASE("lists that contradict each other are refused") {
    const std::string kv = "kv_source_layers", index = "index_source_layers", ratios = "compress_ratios";
    const std::string any_list = kv + "|" + index + "|" + ratios, candidate = "candidate_source_layer";
    const std::vector<ConfigFault> faults = {
        {"ratio negative", {ratios, "-1"}, [](ds41_config &c) { c.compress_ratios[3] = -1; }},
        {"ratio INT32_MIN", {ratios}, [](ds41_config &c) { c.compress_ratios[3] = INT32_MIN; }},
        {"draft layer with a ratio", {ratios, "7"}, [](ds41_config &c) { c.compress_ratios[7] = 1; }},
        {"kv sources not ascending",
         {kv},
         [](ds41_config &c) { std::swap(c.kv_source_layers[0], c.kv_source_layers[1]); }},
        {"kv source twice", {kv}, [](ds41_config &c) { c.kv_source_layers[1] = 1; }},
        {"kv source beyond the layers", {kv, "8"}, [](ds41_config &c) { c.kv_source_layers[2] = 8; }},
        {"kv source INT32_MAX", {kv, "2147483647"}, [](ds41_config &c) { c.kv_source_layers[2] = INT32_MAX; }},
        {"kv source negative", {kv, "-1"}, [](ds41_config &c) { c.kv_source_layers[0] = -1; }},
        {"kv source with ratio 0", {kv + "|" + ratios, "0"}, [](ds41_config &c) { c.kv_source_layers[0] = 0; }},
        {"kv source that is a draft layer",
         {kv, "7"},
         [](ds41_config &c) { c.kv_source_layers[c.n_kv_source_layers++] = 7; }},
        {"index sources not ascending",
         {index},
         [](ds41_config &c) { std::swap(c.index_source_layers[1], c.index_source_layers[2]); }},
        {"index source twice", {index}, [](ds41_config &c) { c.index_source_layers[3] = 4; }},
        {"index source beyond the layers", {index, "8"}, [](ds41_config &c) { c.index_source_layers[3] = 8; }},
        {"index source negative", {index, "-5"}, [](ds41_config &c) { c.index_source_layers[0] = -5; }},
        {"index source with ratio 0",
         {index + "|" + ratios, "0"},
         [](ds41_config &c) { c.index_source_layers[0] = 0; }},
        {"index source that is a draft layer", {index, "7"}, [](ds41_config &c) { c.index_source_layers[3] = 7; }},
        {"no kv source before a layer",
         {any_list, "1"},
         [](ds41_config &c) {
             set_sources(c, {2, 4}, {2, 4, 6}, 4);
         }},
        {"no kv source at all", {any_list}, [](ds41_config &c) { set_sources(c, {}, {}, -1); }},
        {"no index source before a layer",
         {any_list, "1"},
         [](ds41_config &c) {
             set_sources(c, {1, 2, 4}, {2, 4, 6}, 4);
         }},
        {"kv source of another ratio", {any_list, "3"}, [](ds41_config &c) { c.compress_ratios[3] = 1; }},
        {"index source of another ratio",
         {any_list, "2"},
         [](ds41_config &c) {
             set_sources(c, {1, 2, 4}, {1, 4, 6}, 4);
         }},
        {"an index source over a kv source without keys",
         {any_list, "3"},
         [](ds41_config &c) {
             set_ratios(c, {1, 1, 1, 1});
             set_sources(c, {0, 2}, {0, 3}, -1);
         }},
        {"candidate source that is no index source",
         {candidate, "5"},
         [](ds41_config &c) { c.candidate_source_layer = 5; }},
        {"candidate source with ratio 0", {candidate, "0"}, [](ds41_config &c) { c.candidate_source_layer = 0; }},
        {"an index source of another ratio after the candidate source",
         {candidate + "|" + any_list},
         [](ds41_config &c) { c.candidate_source_layer = 2; }},
        {"an index source of another ratio two layers after the candidate source",
         {candidate + "|" + any_list},
         [](ds41_config &c) { c.candidate_source_layer = 1; }},
    };
    for (const ConfigFault &fault : faults) check_config_refused(fault);
}

TEST_CASE("limits that are larger than any sequence do not hurt") {
    // The header bounds neither of them: they may be refused, but if not they must work.
    const ds41_config usual = [] {
        ds41_config config = small_config();
        config.index_topk = config.candidate_topk_blocks = config.candidate_block_size = config.window_size = 1000;
        return config;
    }();
    const Record expected = whole_prefill(random_model(usual), {5}, 20);
    for (const SizeMember &size : kSizes) {
        if (size.bounded) continue;
        CAPTURE(std::string(size.name));
        ds41_config config = usual;
        config.*size.member = INT32_MAX;
        if (ds41_config_validate(&config) != DS41_STATUS_OK) {
            CHECK(has_word(ds41_last_error(), size.name));
            continue;
        }
        const TestModel model = random_model(config);
        check_same(whole_prefill(model, {5}, 20), expected, config);
    }
    ds41_config config = usual;
    config.max_seq_len = INT64_MAX;
    if (ds41_config_validate(&config) == DS41_STATUS_OK) {
        check_same(whole_prefill(random_model(config), {5}, 20), expected, config);
    } else {
        CHECK(has_word(ds41_last_error(), "max_seq_len"));
    }
}
