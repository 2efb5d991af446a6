// ds41_checkpoint_*: what an open checkpoint tells, NULL where something is needed, and queries past the end.
#include "loading.h"
#include "made_files.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

using namespace checkpoint_test;

TEST_CASE("NULL where something is needed, and queries past the end") {
    ds41_model *model = nullptr;
    CHECK(ds41_model_load(nullptr, file("a.release").c_str(), nullptr) == DS41_STATUS_INVALID_ARGUMENT);
    CHECK(ds41_model_load(&model, nullptr, nullptr) == DS41_STATUS_INVALID_ARGUMENT);
    CHECK(model == nullptr);
    REQUIRE(ds41_model_load(&model, file("a.release").c_str(), nullptr) == DS41_STATUS_OK);
    ds41_model_destroy(model);

    ds41_checkpoint *handle = nullptr;
    CHECK(ds41_checkpoint_load(nullptr, file("a.release").c_str()) == DS41_STATUS_INVALID_ARGUMENT);
    CHECK(ds41_checkpoint_load(&handle, nullptr) == DS41_STATUS_INVALID_ARGUMENT);
    CHECK(handle == nullptr);
    ds41_checkpoint_destroy(nullptr);
    CHECK(std::string(ds41_checkpoint_get_format(nullptr)).empty());
    CHECK(ds41_checkpoint_get_n_files(nullptr) == 0);
    CHECK(ds41_checkpoint_get_n_tensors(nullptr) == 0);
    CHECK(ds41_checkpoint_get_n_problems(nullptr) == 0);
    CHECK(ds41_checkpoint_get_file(nullptr, 0) == nullptr);
    CHECK(ds41_checkpoint_get_problem(nullptr, 0) == nullptr);
    ds41_load_options_init(nullptr, sizeof(ds41_load_options));
    ds41_checkpoint_tensor_init(nullptr, sizeof(ds41_checkpoint_tensor));

    REQUIRE(ds41_checkpoint_load(&handle, file("a.release").c_str()) == DS41_STATUS_OK);
    const Checkpoint checkpoint(handle);
    ds41_config config;
    ds41_config_init(&config, sizeof(config));
    ds41_memory memory;
    ds41_memory_init(&memory, sizeof(memory));
    ds41_checkpoint_tensor tensor;
    ds41_checkpoint_tensor_init(&tensor, sizeof(tensor));
    CHECK(ds41_checkpoint_get_config(nullptr, &config) == DS41_STATUS_INVALID_ARGUMENT);
    CHECK(ds41_checkpoint_get_config(handle, nullptr) == DS41_STATUS_INVALID_ARGUMENT);
    CHECK(ds41_checkpoint_get_tensor(handle, 0, nullptr) == DS41_STATUS_INVALID_ARGUMENT);
    CHECK(ds41_checkpoint_get_tensor(nullptr, 0, &tensor) == DS41_STATUS_INVALID_ARGUMENT);
    CHECK(ds41_checkpoint_estimate_memory(nullptr, nullptr, 1, 1, 1, &memory) == DS41_STATUS_INVALID_ARGUMENT);
    CHECK(ds41_checkpoint_estimate_memory(handle, nullptr, 1, 1, 1, nullptr) == DS41_STATUS_INVALID_ARGUMENT);
    CHECK(ds41_checkpoint_estimate_memory(handle, nullptr, -1, 1, 1, &memory) == DS41_STATUS_INVALID_ARGUMENT);
    for (const int64_t index : {int64_t{-1}, INT64_MIN, INT64_MAX, ds41_checkpoint_get_n_tensors(handle)}) {
        CAPTURE(index);
        CHECK(ds41_checkpoint_get_tensor(handle, index, &tensor) == DS41_STATUS_INVALID_ARGUMENT);
        CHECK(ds41_checkpoint_get_file(handle, index) == nullptr);
        CHECK(ds41_checkpoint_get_problem(handle, index) == nullptr);
    }
    tensor.struct_size = 3;
    CHECK(ds41_checkpoint_get_tensor(handle, 0, &tensor) == DS41_STATUS_INVALID_STRUCT);
    CHECK(ds41_checkpoint_estimate_memory(handle, nullptr, 1, 16, 1, &memory) == DS41_STATUS_OK);
    CHECK(memory.weights > 0);
}

TEST_CASE("tensors are listed by layer, and within one in the order of ds41_layer_weights") {
    static const char *const kMembers[] = {"wq_a",
                                           "q_norm",
                                           "wq_b",
                                           "wkv",
                                           "kv_norm",
                                           "attn_sink",
                                           "wo_a",
                                           "wo_b",
                                           "compressor_wkv",
                                           "compressor_wgate",
                                           "compressor_norm",
                                           "indexer_wk",
                                           "indexer_k_norm",
                                           "indexer_wq_b",
                                           "indexer_weights_proj"};
    for (const std::string &name : kFiles) {
        CAPTURE(name);
        ds41_checkpoint *handle = nullptr;
        REQUIRE(ds41_checkpoint_load(&handle, file(name).c_str()) == DS41_STATUS_OK);
        const Checkpoint checkpoint(handle);
        std::pair<int32_t, std::ptrdiff_t> last{-1, -1};
        for (int64_t i = 0; i < ds41_checkpoint_get_n_tensors(handle); ++i) {
            ds41_checkpoint_tensor tensor;
            ds41_checkpoint_tensor_init(&tensor, sizeof(tensor));
            REQUIRE(ds41_checkpoint_get_tensor(handle, i, &tensor) == DS41_STATUS_OK);
            const auto place = std::find(std::begin(kMembers), std::end(kMembers), std::string(tensor.member));
            REQUIRE(place != std::end(kMembers));
            const std::pair<int32_t, std::ptrdiff_t> here{tensor.layer, place - std::begin(kMembers)};
            CHECK(here > last);
            last = here;
            CHECK(tensor.file >= 0);
            CHECK(tensor.file < ds41_checkpoint_get_n_files(handle));
            CHECK((tensor.n_dims == 2) == (tensor.shape[1] != 0));
        }
    }
}
