// The table of layers: roles in words, types, and which neighbours share a row.
#include "rows.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace inspect;

namespace {

/// All 43 layers of V4.1-Flash with nothing in them.
Contents flash_layers() {
    Contents contents;
    contents.config.emplace();
    ds41_config_flash(&*contents.config, sizeof(ds41_config));
    for (int32_t i = 0; i < contents.config->n_compress_ratios; ++i) {
        Layer layer;
        layer.index = i;
        ds41_layer_role_init(&layer.role, sizeof(layer.role));
        REQUIRE(ds41_config_get_role(&*contents.config, i, &layer.role) == DS41_STATUS_OK);
        contents.layers.push_back(layer);
    }
    return contents;
}

Tensor matrix(const char *member, const char *type, int32_t dtype, bool expands) {
    Tensor tensor;
    tensor.member = member;
    tensor.type = type;
    tensor.dtype = dtype;
    tensor.expands = expands;
    return tensor;
}

/// Gives every layer the five projections, of one type.
void fill(Contents &contents, const char *type) {
    for (Layer &layer : contents.layers) {
        layer.tensors.clear();
        for (const char *member : {"wq_a", "wq_b", "wkv", "wo_a", "wo_b"})
            layer.tensors.push_back(matrix(member, type, DS41_DTYPE_BF16, false));
        layer.n_bytes = layer.n_model_bytes = 1000;
    }
}

} // namespace

TEST_CASE("the layers of V4.1-Flash fold into its kinds") {
    const std::vector<LayerRow> rows = fold_layers(flash_layers());
    struct Row {
        int32_t first, last, ratio;
        const char *role;
    };
    const Row expected[] = {
        {0, 1, 0, "window only"},
        {2, 2, 2, "makes rows, selects"},
        {3, 7, 2, "rows and selection of 2"},
        {8, 8, 2, "makes rows, selects"},
        {9, 13, 2, "rows and selection of 8"},
        {14, 14, 2, "makes rows, selects"},
        {15, 19, 2, "rows and selection of 14"},
        {20, 20, 1, "makes rows, selects, publishes blocks"},
        {21, 23, 1, "rows and selection of 20"},
        {24, 24, 1, "rows of 20, selects in blocks of 20"},
        {25, 27, 1, "rows of 20, selection of 24"},
        {28, 28, 1, "rows of 20, selects in blocks of 20"},
        {29, 31, 1, "rows of 20, selection of 28"},
        {32, 32, 1, "rows of 20, selects in blocks of 20"},
        {33, 35, 1, "rows of 20, selection of 32"},
        {36, 36, 1, "rows of 20, selects in blocks of 20"},
        {37, 39, 1, "rows of 20, selection of 36"},
        {40, 42, 0, "draft, window only"},
    };
    REQUIRE(rows.size() == std::size(expected));
    for (size_t i = 0; i < rows.size(); ++i) {
        CAPTURE(i);
        CHECK(rows[i].first == expected[i].first);
        CHECK(rows[i].last == expected[i].last);
        CHECK(rows[i].ratio == expected[i].ratio);
        CHECK(rows[i].role == expected[i].role);
        CHECK(rows[i].projections == "none");
        CHECK(rows[i].sources.empty());
    }
}

TEST_CASE("layers of one role part where their types or bytes do") {
    Contents contents = flash_layers();
    fill(contents, "BF16");
    const size_t n_alike = fold_layers(contents).size();
    contents.layers[4].tensors[2] = matrix("wkv", "F32", DS41_DTYPE_F32, false);
    CHECK(fold_layers(contents).size() == n_alike + 2); // 3, 4, 5-7
    fill(contents, "BF16");
    contents.layers[4].n_bytes += 1;
    CHECK(fold_layers(contents).size() == n_alike + 2);
    fill(contents, "BF16");
    contents.layers[7].n_model_bytes += 1;
    CHECK(fold_layers(contents).size() == n_alike + 1); // 3-6, 7
}

TEST_CASE("types: what most have comes first, expansions and gaps are told") {
    Contents contents = flash_layers();
    fill(contents, "BF16");
    Layer &layer = contents.layers[0];
    const auto shown = [&] { return fold_layers(contents)[0].projections; };
    CHECK(shown() == "BF16");
    for (Tensor &tensor : layer.tensors) {
        tensor.type = "Q8_0";
        tensor.expands = true;
    }
    CHECK(shown() == "Q8_0 -> BF16");
    layer.tensors[3] = matrix("wo_a", "F32", DS41_DTYPE_F32, false);
    CHECK(shown() == "Q8_0 -> BF16, wo_a F32");
    layer.tensors[0] = matrix("wq_a", "F32", DS41_DTYPE_F32, false);
    layer.tensors.erase(layer.tensors.begin() + 2);
    CHECK(shown() == "F32, wq_b wo_b Q8_0 -> BF16, wkv unusable");
    layer.tensors.clear();
    CHECK(shown() == "none");
}

TEST_CASE("sources show the matrices of their role, others none") {
    Contents contents = flash_layers();
    fill(contents, "BF16");
    for (const int32_t source : {2, 20, 24}) { // ratio 2, ratio 1, index only
        Layer &layer = contents.layers[static_cast<size_t>(source)];
        for (const char *member : {"indexer_wq_b", "indexer_weights_proj"})
            layer.tensors.push_back(matrix(member, "F16", DS41_DTYPE_BF16, true));
        if (source == 24) continue;
        for (const char *member : {"compressor_wkv", "compressor_wgate", "indexer_wk"})
            if (source == 2 || member != std::string("compressor_wgate"))
                layer.tensors.push_back(matrix(member, "F16", DS41_DTYPE_BF16, true));
    }
    for (const LayerRow &row : fold_layers(contents)) {
        CAPTURE(row.first);
        const bool is_filled = row.first == 2 || row.first == 20 || row.first == 24;
        const bool is_source = contents.layers[static_cast<size_t>(row.first)].role.is_index_source != 0;
        CHECK(row.sources == (is_filled ? "F16 -> BF16" : is_source ? "unusable" : ""));
    }
}

TEST_CASE("roles that V4.1-Flash does not have") {
    ds41_layer_role role{};
    role.ratio = 4;
    role.kv_source = 1;
    role.index_source = 3;
    CHECK(role_words(role, 5, -1) == "rows of 1, selection of 3");
    role.is_index_source = 1;
    CHECK(role_words(role, 3, -1) == "rows of 1, selects");
    role.is_index_source = 0;
    role.is_kv_source = 1;
    CHECK(role_words(role, 1, -1) == "makes rows, selection of 3");
}
