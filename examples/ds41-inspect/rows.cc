#include "rows.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace inspect {

namespace {

constexpr std::string_view kProjections[] = {"wq_a", "wq_b", "wkv", "wo_a", "wo_b"};
constexpr char kUnusable[] = "unusable";

/// Matrices of the role, beside the projections, as the public header lists them.
std::vector<std::string_view> source_matrices(const ds41_layer_role &role) {
    std::vector<std::string_view> members;
    if (role.is_kv_source) members.push_back("compressor_wkv");
    if (role.is_kv_source && role.ratio > 1) members.push_back("compressor_wgate");
    if (role.is_kv_source && role.is_index_source) members.push_back("indexer_wk");
    if (role.is_index_source) members.insert(members.end(), {"indexer_wq_b", "indexer_weights_proj"});
    return members;
}

std::string type_of(const Layer &layer, std::string_view member) {
    const auto found = std::find_if(layer.tensors.begin(), layer.tensors.end(),
                                    [&](const Tensor &tensor) { return tensor.member == member; });
    if (found == layer.tensors.end()) return kUnusable;
    return found->type + (found->expands ? std::string(" -> ") + ds41_dtype_name(found->dtype) : "");
}

/// The type that most have, then those that have another: "BF16, indexer_wq_b F8_E4M3".
template <class Members> std::string type_words(const Layer &layer, const Members &members) {
    if (layer.tensors.empty()) return "none";
    struct Type {
        std::string name, members;
        int n;
    };
    std::vector<Type> types;
    for (const std::string_view member : members) {
        const std::string name = type_of(layer, member);
        const auto known =
            std::find_if(types.begin(), types.end(), [&](const Type &type) { return type.name == name; });
        Type &type = known == types.end() ? types.emplace_back(Type{name, "", 0}) : *known;
        type.members.append(type.n > 0 ? " " : "").append(member);
        ++type.n;
    }
    const auto most =
        std::max_element(types.begin(), types.end(), [](const Type &a, const Type &b) { return a.n < b.n; });
    std::string text = most->name;
    for (const Type &type : types)
        if (&type != &*most) text += ", " + type.members + " " + type.name;
    return text;
}

} // namespace

std::string role_words(const ds41_layer_role &role, int32_t layer, int32_t candidate_source) {
    if (role.ratio == 0) return role.is_draft ? "draft, window only" : "window only";
    const auto of = [](int32_t source) { return " of " + std::to_string(source); };
    if (role.kv_source != layer && role.kv_source == role.index_source)
        return "rows and selection" + of(role.kv_source);
    std::string text = role.is_kv_source ? "makes rows" : "rows" + of(role.kv_source);
    text += role.is_index_source ? ", selects" : ", selection" + of(role.index_source);
    if (role.uses_candidates) text += " in blocks" + of(candidate_source);
    if (role.is_candidate_source) text += ", publishes blocks";
    return text;
}

std::vector<LayerRow> fold_layers(const Contents &contents) {
    std::vector<LayerRow> rows;
    for (const Layer &layer : contents.layers) {
        LayerRow row;
        row.first = row.last = layer.index;
        row.ratio = layer.role.ratio;
        row.role = role_words(layer.role, layer.index, contents.config->candidate_source_layer);
        row.projections = type_words(layer, kProjections);
        const std::vector<std::string_view> members = source_matrices(layer.role);
        if (!members.empty() && !layer.tensors.empty()) row.sources = type_words(layer, members);
        row.n_bytes = layer.n_bytes;
        row.n_model_bytes = layer.n_model_bytes;
        const auto alike = [&](const LayerRow &other) {
            return other.ratio == row.ratio && other.role == row.role && other.projections == row.projections &&
                   other.sources == row.sources && other.n_bytes == row.n_bytes &&
                   other.n_model_bytes == row.n_model_bytes;
        };
        if (!rows.empty() && alike(rows.back()))
            rows.back().last = layer.index;
        else
            rows.push_back(std::move(row));
    }
    return rows;
}

} // namespace inspect
