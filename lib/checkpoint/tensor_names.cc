#include "checkpoint/tensor_names.h"

#include <cassert>
#include <charconv>

namespace ds41 {

namespace {

struct Spelling {
    const char *member;  // of ds41_layer_weights
    const char *release; // after "layers.L.attn."
    const char *gguf;    // after "blk.L."
    const char *alias = nullptr;
};

// Facts from the release's shards and from llama.cpp's names for this architecture; the aliases are those of converters
// that kept the V4 names of the index keys.
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
    {"indexer_wk", "indexer.wk.weight", "indexer.attn_k.weight", "indexer_compressor_kv.weight"},
    {"indexer_k_norm", "indexer.k_norm.weight", "indexer.k_norm.weight", "indexer_compressor_norm.weight"},
    {"indexer_wq_b", "indexer.wq_b.weight", "indexer.attn_q_b.weight"},
    {"indexer_weights_proj", "indexer.weights_proj.weight", "indexer.proj.weight"},
};

constexpr std::string_view kWeight = ".weight", kScale = ".scale";
constexpr int kMostLayers = 99999; // a larger number is no layer of anything

const WeightPlace *place_of(std::string_view member) {
    for (const WeightPlace &place : weight_places())
        if (place.name == member) return &place;
    assert(false && "a spelling without a place");
    return nullptr;
}

const Spelling &spelling_of(const WeightPlace &place) {
    for (const Spelling &spelling : kSpellings)
        if (spelling.member == std::string_view(place.name)) return spelling;
    assert(false && "a place without a spelling");
    return kSpellings[0];
}

bool take(std::string_view &text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    return true;
}

// Digits without leading zeros, then '.'.
bool take_number(std::string_view &text, int &number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const auto n = static_cast<std::size_t>(end - text.data());
    if (error != std::errc() || number < 0 || n >= text.size() || text[n] != '.') return false;
    if (text[0] == '-' || (text[0] == '0' && n > 1) || number > kMostLayers) return false;
    text.remove_prefix(n + 1);
    return true;
}

bool parse_release(std::string_view text, TensorName &name) {
    name.is_draft = text.starts_with("mtp.");
    if (!take(text, name.is_draft ? "mtp." : "layers.") || !take_number(text, name.number) || !take(text, "attn."))
        return false;
    for (const Spelling &spelling : kSpellings) {
        const std::string_view release = spelling.release;
        if (text == release) {
            name.place = place_of(spelling.member);
        } else if (release.ends_with(kWeight) && text.ends_with(kScale) &&
                   text.substr(0, text.size() - kScale.size()) == release.substr(0, release.size() - kWeight.size())) {
            name.place = place_of(spelling.member);
            name.is_scale = true;
        }
    }
    return true;
}

bool parse_gguf(std::string_view text, TensorName &name) {
    if (!take(text, "blk.") || !take_number(text, name.number)) return false;
    for (const Spelling &spelling : kSpellings)
        if (text == spelling.gguf || (spelling.alias && text == spelling.alias)) name.place = place_of(spelling.member);
    if (name.place) return true;
    // The norm before the layer, and the one after attention in some conversions, are the caller's.
    const bool outside = text == "attn_norm.weight" || text == "attn_post_norm.weight";
    return !outside && (text.starts_with("attn_") || text.starts_with("indexer"));
}

} // namespace

bool parse_tensor_name(CheckpointFormat format, std::string_view text, TensorName &name) {
    name = TensorName();
    return format == CheckpointFormat::kGguf ? parse_gguf(text, name) : parse_release(text, name);
}

std::string tensor_name(CheckpointFormat format, const WeightPlace &place, int layer, int n_layers) {
    const Spelling &spelling = spelling_of(place);
    if (format == CheckpointFormat::kGguf) return "blk." + std::to_string(layer) + "." + spelling.gguf;
    if (layer >= n_layers) return "mtp." + std::to_string(layer - n_layers) + ".attn." + spelling.release;
    return "layers." + std::to_string(layer) + ".attn." + spelling.release;
}

std::string scale_name(const WeightPlace &place, int layer, int n_layers) {
    std::string name = tensor_name(CheckpointFormat::kSafetensors, place, layer, n_layers);
    name.resize(name.size() - kWeight.size());
    return name.append(kScale);
}

} // namespace ds41
