// What mode `step` takes for the least that a step has to move, and what it sets up.
#include "step_cost.h"
#include "step_model.h"

#include <doctest/doctest.h>

#include <map>

using namespace bench;

namespace {

const ds41::Config &flash() {
    static const ds41::Config config(step_config(1));
    return config;
}

std::map<std::string, uint64_t> floor_of(int layer, ds41_dtype format, int64_t context, int32_t n_rows = 1) {
    std::map<std::string, uint64_t> by_stage;
    StepCost cost;
    cost.stages = step_floor(flash(), layer, format, context, n_rows);
    for (const StageCost &stage : cost.stages) by_stage[stage.stage] = stage.floor_bytes;
    CHECK(by_stage.size() == cost.stages.size());
    by_stage["all"] = cost.all().floor_bytes;
    return by_stage;
}

} // namespace

TEST_CASE("a layer of each kind, with those that it depends on") {
    CHECK(layers_of_each_kind(flash()) == std::vector<int>{0, 2, 3, 20, 21, 24});
    CHECK(kind_of(flash().role(0)) == "window only");
    CHECK(kind_of(flash().role(42)) == "window only"); // a draft layer
    CHECK(kind_of(flash().role(2)) == "ratio 2, source");
    CHECK(kind_of(flash().role(19)) == "ratio 2, consumer");
    CHECK(kind_of(flash().role(20)) == "ratio 1, source of candidates");
    CHECK(kind_of(flash().role(36)) == "ratio 1, index source in candidates");
    CHECK(layers_before(flash(), 0).empty());
    CHECK(layers_before(flash(), 2).empty());
    CHECK(layers_before(flash(), 10) == std::vector<int>{8});
    CHECK(layers_before(flash(), 20).empty());
    CHECK(layers_before(flash(), 23) == std::vector<int>{20});
    CHECK(layers_before(flash(), 28) == std::vector<int>{20});
    CHECK(layers_before(flash(), 39) == std::vector<int>{20, 36});
}

TEST_CASE("sizes that are divided are valid, and every format fits them") {
    for (const int32_t scale : {1, 2, 3, 7, 8, 32, 1024}) {
        CAPTURE(scale);
        const ds41_config raw = step_config(scale);
        const ds41::Config config(raw);
        CHECK(raw.dim <= 5120 / scale + 256);
        for (const int64_t columns : {int64_t{raw.dim}, int64_t{raw.q_lora_rank}, int64_t{raw.head_dim},
                                      config.o_group_width(), config.o_lora_width()})
            CHECK(columns % 256 == 0);
        CHECK(layers_of_each_kind(config).size() == 6);
    }
}

TEST_CASE("weights of a layer lie apart and are as large as they have to be") {
    const ds41::Config config(step_config(8));
    for (const ds41_dtype format : {DS41_DTYPE_BF16, DS41_DTYPE_FP8_E4M3, DS41_DTYPE_Q2_K}) {
        CAPTURE(ds41_dtype_name(format));
        const StepWeights weights(config, ds41::host_memory(), format);
        for (const int layer : layers_of_each_kind(config)) {
            CAPTURE(layer);
            const ds41::LayerWeights w = weights.of(layer);
            std::map<const uint8_t *, size_t> places;
            size_t sum = 0;
            for (const ds41::Matrix *m :
                 {&w.wq_a, &w.wq_b, &w.wkv, &w.wo_a, &w.wo_b, &w.compressor_wkv, &w.compressor_wgate, &w.indexer_wk,
                  &w.indexer_wq_b, &w.indexer_weights_proj}) {
                if (!m->data) continue;
                places[m->data] = static_cast<size_t>(m->rows) * ds41::weight_row_bytes(m->dtype, m->cols);
                sum += places[m->data];
                const bool is_pooled =
                    config.role(layer).has_group_state() && (m == &w.compressor_wkv || m == &w.compressor_wgate);
                CHECK(m->dtype == (is_pooled ? DS41_DTYPE_F32 : format));
            }
            const uint8_t *end = nullptr;
            for (const auto &[data, n_bytes] : places) {
                CHECK(data >= end);
                end = data + n_bytes;
            }
            CHECK(sum < weights.bytes_of(layer)); // and vectors
            CHECK(weights.bytes_of(layer) < sum + sum / 100 + 100000);
            CHECK(weights.matrices_of(layer).size() <= sum + 10 * 84 * 64);
        }
    }
}

TEST_CASE("the floor is weights, rows and keys once") {
    // Five projections of a layer: 126.6 million values.
    constexpr uint64_t kValues = 1280 * 5120 + 32768 * 1280 + 512 * 5120 + 8192 * 4096 + 5120 * 8192;
    constexpr uint64_t kNorms = 4 * (1280 + 512), kSinks = 4 * 64, kX = 2 * 5120, kQr = 2 * 1280, kQ = 2 * 32768;
    constexpr uint64_t kWindow = 528, kRow = 288, kKey = 68;
    constexpr uint64_t kActivations = 2 * kX + kQr + 4 * kQ; // q and o are written and read
    const uint64_t rows = kNorms + kSinks + kActivations + 3 * kWindow + 128 * kWindow;
    CHECK(floor_of(0, DS41_DTYPE_BF16, 4096)["all"] == 2 * kValues + rows);
    CHECK(floor_of(0, DS41_DTYPE_FP8_E4M3, 4096)["all"] == kValues + kValues / 1024 + rows);
    CHECK(floor_of(0, DS41_DTYPE_Q2_K, 4096)["all"] == kValues / 256 * 84 + rows);
    CHECK(floor_of(0, DS41_DTYPE_Q2_K, 100)["all"] == kValues / 256 * 84 + rows - 28 * kWindow);
    CHECK(floor_of(3, DS41_DTYPE_BF16, 65536)["all"] == 2 * kValues + rows + 512 * (kRow + 4));
    CHECK(floor_of(3, DS41_DTYPE_BF16, 101)["all"] == 2 * kValues + rows - 27 * kWindow + 50 * (kRow + 4));

    // Of two sequences everything but the weights twice.
    auto one = floor_of(20, DS41_DTYPE_BF16, 65536), two = floor_of(20, DS41_DTYPE_BF16, 65536, 2);
    CHECK(two["select"] == 2 * one["select"]);
    CHECK(two["commit_window"] == 2 * one["commit_window"]);
    CHECK(two["output"] == one["output"] + kQ + kX);

    // Keys: all of them, or those of 2048 blocks of 8; queries, weights, blocks and groups beside them.
    constexpr uint64_t kQueries = 32 * kKey + 2 * 32, kGroups = 4 * 512, kBlocks = 4 * 2048;
    CHECK(floor_of(2, DS41_DTYPE_BF16, 65536)["select"] == 32768 * kKey + kQueries + kGroups);
    CHECK(one["select"] == 65536 * kKey + kQueries + kGroups + kBlocks);
    CHECK(floor_of(24, DS41_DTYPE_BF16, 65536)["select"] == 16384 * kKey + kQueries + kGroups + kBlocks);
    CHECK(floor_of(24, DS41_DTYPE_BF16, 65533)["select"] == 16381 * kKey + kQueries + kGroups + kBlocks);
    CHECK(floor_of(24, DS41_DTYPE_BF16, 4094)["select"] == 4094 * kKey + kQueries + kGroups + 4 * 512);

    // A pair of f32 compressor matrices; the group's first token leaves its products, the last one reads them.
    constexpr uint64_t kPool = 2 * 4 * 512 * 5120 + 4 * 512, kKeys = 4 * 128;
    CHECK(floor_of(2, DS41_DTYPE_FP8_E4M3, 4096)["compress"] ==
          kPool + kKeys + 128 * 512 + 128 * 512 / 1024 + kX + 4096 + kRow + kKey);
    CHECK(floor_of(2, DS41_DTYPE_FP8_E4M3, 4095)["compress"] ==
          kPool + kKeys + 128 * 512 + 128 * 512 / 1024 + kX + 4096);
    CHECK(floor_of(20, DS41_DTYPE_BF16, 4095)["compress"] ==
          2 * 512 * 5120 + 4 * 512 + kKeys + 2 * 128 * 512 + kX + kRow + kKey);
    // Without a group there is nothing to score.
    CHECK(floor_of(20, DS41_DTYPE_BF16, 2).count("select") == 1);
    CHECK(floor_of(3, DS41_DTYPE_BF16, 65536).count("compress") == 0);
}
