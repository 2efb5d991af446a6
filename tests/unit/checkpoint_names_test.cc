// Names of tensors in both formats, told again here from the release's and llama.cpp's lists.
#include "checkpoint/tensor_names.h"

#include <doctest/doctest.h>

#include <string>

using namespace ds41;

namespace {

struct Spelling {
    const char *member;
    const char *release;
    const char *gguf;
};
constexpr Spelling kSpellings[] = {
    {"wq_a", "wq_a.weight", "attn_q_a.weight"},
    {"q_norm", "q_norm.weight", "attn_q_a_norm.weight"},
    {"wq_b", "wq_b.weight", "attn_q_b.weight"},
    {"wkv", "wkv.weight", "attn_kv.weight"},
    {"kv_norm", "kv_norm.weight", "attn_kv_a_norm.weight"},
    {"attn_sink", "attn_sink", "attn_sinks.weight"},
    {"wo_a", "wo_a.weight", "attn_output_a.weight"},
    {"wo_b", "wo_b.weight", "attn_output_b.weight"},
    {"compressor_wkv", "compressor.wkv.weight", "attn_compressor_kv.weight"},
    {"compressor_wgate", "compressor.wgate.weight", "attn_compressor_gate.weight"},
    {"compressor_norm", "compressor.norm.weight", "attn_compressor_norm.weight"},
    {"indexer_wk", "indexer.wk.weight", "indexer.attn_k.weight"},
    {"indexer_k_norm", "indexer.k_norm.weight", "indexer.k_norm.weight"},
    {"indexer_wq_b", "indexer.wq_b.weight", "indexer.attn_q_b.weight"},
    {"indexer_weights_proj", "indexer.weights_proj.weight", "indexer.proj.weight"},
};

std::string member(const TensorName &name) {
    return name.place ? name.place->name : "";
}

} // namespace

TEST_CASE("each place has its name in each format, and the name its place") {
    CHECK(weight_places().size() == std::size(kSpellings));
    for (std::size_t i = 0; i < std::size(kSpellings); ++i) {
        const Spelling &spelling = kSpellings[i];
        const WeightPlace &place = weight_places()[i];
        CAPTURE(std::string(spelling.member));
        CHECK(std::string(place.name) == spelling.member);
        const std::string release = std::string("layers.17.attn.") + spelling.release;
        const std::string draft = std::string("mtp.2.attn.") + spelling.release;
        const std::string gguf = std::string("blk.17.") + spelling.gguf;
        TensorName name;
        REQUIRE(parse_tensor_name(CheckpointFormat::kSafetensors, release, name));
        CHECK(member(name) == spelling.member);
        CHECK(name.number == 17);
        CHECK(!name.is_draft);
        CHECK(!name.is_scale);
        CHECK(tensor_name(CheckpointFormat::kSafetensors, place, 17, 40) == release);
        REQUIRE(parse_tensor_name(CheckpointFormat::kSafetensors, draft, name));
        CHECK(member(name) == spelling.member);
        CHECK(name.is_draft);
        CHECK(name.layer(40) == 42);
        CHECK(tensor_name(CheckpointFormat::kSafetensors, place, 42, 40) == draft);
        REQUIRE(parse_tensor_name(CheckpointFormat::kGguf, gguf, name));
        CHECK(member(name) == spelling.member);
        CHECK(name.layer(40) == 17);
        CHECK(tensor_name(CheckpointFormat::kGguf, place, 17, 40) == gguf);
    }
}

TEST_CASE("scales belong to the weight of their name") {
    TensorName name;
    REQUIRE(parse_tensor_name(CheckpointFormat::kSafetensors, "layers.3.attn.indexer.wq_b.scale", name));
    CHECK(name.is_scale);
    CHECK(member(name) == "indexer_wq_b");
    CHECK(scale_name(*name.place, 3, 40) == "layers.3.attn.indexer.wq_b.scale");
    CHECK(scale_name(*name.place, 41, 40) == "mtp.1.attn.indexer.wq_b.scale");
    // A sink has no ".weight" that a scale could stand beside.
    REQUIRE(parse_tensor_name(CheckpointFormat::kSafetensors, "layers.3.attn.attn_sink.scale", name));
    CHECK(name.place == nullptr);
}

TEST_CASE("index keys have a second name in GGUF") {
    TensorName name;
    REQUIRE(parse_tensor_name(CheckpointFormat::kGguf, "blk.2.indexer_compressor_kv.weight", name));
    CHECK(member(name) == "indexer_wk");
    REQUIRE(parse_tensor_name(CheckpointFormat::kGguf, "blk.2.indexer_compressor_norm.weight", name));
    CHECK(member(name) == "indexer_k_norm");
}

TEST_CASE("names of attention that no layer has are told apart from names of something else") {
    TensorName name;
    for (const char *text : {"layers.0.attn.wq.weight", "layers.0.attn.", "layers.0.attn.wq_a.weight.weight",
                             "mtp.0.attn.compressor.ape"}) {
        CAPTURE(std::string(text));
        CHECK(parse_tensor_name(CheckpointFormat::kSafetensors, text, name));
        CHECK(name.place == nullptr);
    }
    for (const char *text :
         {"blk.0.attn_compressor_ape.weight", "blk.0.indexer_compressor_gate.weight", "blk.0.attn_q.weight"}) {
        CAPTURE(std::string(text));
        CHECK(parse_tensor_name(CheckpointFormat::kGguf, text, name));
        CHECK(name.place == nullptr);
    }
    for (const char *text :
         {"", "layers", "layers.", "layers.0", "layers.0.", "layers.0.ffn.w1.weight", "layers.0.attn_norm.weight",
          "layers.-1.attn.wq_a.weight", "layers.+1.attn.wq_a.weight", "layers.01.attn.wq_a.weight",
          "layers.1x.attn.wq_a.weight", "layers.99999999999.attn.wq_a.weight", "layers.2147483647.attn.wq_a.weight",
          "layers..attn.wq_a.weight", "model.layers.0.attn.wq_a.weight", "embed.weight"}) {
        CAPTURE(std::string(text));
        CHECK(!parse_tensor_name(CheckpointFormat::kSafetensors, text, name));
    }
    for (const char *text : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "token_embd.weight",
                             "blk.0.hc_attn.weight", "blk.0", "blk.attn_q_a.weight"}) {
        CAPTURE(std::string(text));
        CHECK(!parse_tensor_name(CheckpointFormat::kGguf, text, name));
    }
}
