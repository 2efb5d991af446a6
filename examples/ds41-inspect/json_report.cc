// Numbers as they are, every tensor. Only ASCII leaves here: what a file calls its tensors cannot act on a terminal,
// and bytes that are not UTF-8 become replacement characters.
#include "report.h"
#include "rows.h"

#include <nlohmann/json.hpp>

#include <charconv>
#include <cstdlib>

namespace inspect {

namespace {

using json = nlohmann::ordered_json;

/// The shortest decimal that gives the same float: 1e-20 rather than the double nearest to it.
double shortest(float value) {
    char text[32] = {};
    std::to_chars(text, text + sizeof text - 1, value);
    return std::strtod(text, nullptr);
}

json list(const int32_t *values, int32_t n) {
    return json(std::vector<int32_t>(values, values + n));
}

json to_json(const ds41_config &c) {
    return {{"n_layers", c.n_layers},
            {"n_compress_ratios", c.n_compress_ratios},
            {"dim", c.dim},
            {"n_heads", c.n_heads},
            {"head_dim", c.head_dim},
            {"rope_head_dim", c.rope_head_dim},
            {"q_lora_rank", c.q_lora_rank},
            {"o_groups", c.o_groups},
            {"o_lora_rank", c.o_lora_rank},
            {"window_size", c.window_size},
            {"index_n_heads", c.index_n_heads},
            {"index_head_dim", c.index_head_dim},
            {"index_topk", c.index_topk},
            {"candidate_source_layer", c.candidate_source_layer},
            {"candidate_topk_blocks", c.candidate_topk_blocks},
            {"candidate_block_size", c.candidate_block_size},
            {"norm_eps", shortest(c.norm_eps)},
            {"rope_theta", shortest(c.rope_theta)},
            {"compress_rope_theta", shortest(c.compress_rope_theta)},
            {"rope_factor", shortest(c.rope_factor)},
            {"beta_fast", shortest(c.beta_fast)},
            {"beta_slow", shortest(c.beta_slow)},
            {"original_seq_len", c.original_seq_len},
            {"max_seq_len", c.max_seq_len},
            {"compress_ratios", list(c.compress_ratios, c.n_compress_ratios)},
            {"kv_source_layers", list(c.kv_source_layers, c.n_kv_source_layers)},
            {"index_source_layers", list(c.index_source_layers, c.n_index_source_layers)}};
}

json to_json(const Layer &layer, int32_t candidate_source) {
    const ds41_layer_role &role = layer.role;
    return {{"layer", layer.index},
            {"ratio", role.ratio},
            {"role", role_words(role, layer.index, candidate_source)},
            {"kv_source", role.kv_source},
            {"index_source", role.index_source},
            {"is_kv_source", role.is_kv_source != 0},
            {"is_index_source", role.is_index_source != 0},
            {"is_candidate_source", role.is_candidate_source != 0},
            {"uses_candidates", role.uses_candidates != 0},
            {"is_draft", role.is_draft != 0},
            {"n_tensors", layer.tensors.size()},
            {"n_bytes", layer.n_bytes},
            {"n_model_bytes", layer.n_model_bytes}};
}

json to_json(const Tensor &tensor) {
    return {{"layer", tensor.layer},
            {"member", tensor.member},
            {"name", tensor.name},
            {"type", tensor.type},
            {"shape", tensor.shape},
            {"file", tensor.file},
            {"dtype", ds41_dtype_name(tensor.dtype)},
            {"n_bytes", tensor.n_bytes},
            {"n_model_bytes", tensor.n_model_bytes}};
}

json to_json(const Options &options, const Contents &contents) {
    const ds41_memory &sizes = contents.memory->sizes;
    return {{"context", contents.context},      {"batch", contents.batch},
            {"prefill", contents.prefill},      {"backend", contents.backend},
            {"expand_fp8", options.expand_fp8}, {"map", options.map},
            {"weights", sizes.weights},         {"left_in_files", contents.memory->in_files},
            {"window", sizes.window},           {"compressed", sizes.compressed},
            {"index_keys", sizes.index_keys},   {"group_state", sizes.group_state},
            {"workspace", sizes.workspace},     {"total", contents.memory->total}};
}

} // namespace

std::string json_report(const Options &options, const Contents &contents) {
    json files = json::array(), layers = json::array(), tensors = json::array();
    for (const File &file : contents.files) files.push_back({{"path", file.path}, {"n_bytes", file.n_bytes}});
    for (const Layer &layer : contents.layers) {
        layers.push_back(to_json(layer, contents.config->candidate_source_layer));
        for (const Tensor &tensor : layer.tensors) tensors.push_back(to_json(tensor));
    }
    const json document = {{"tool", "ds41-inspect"},
                           {"library", ds41_version()},
                           {"path", options.path},
                           {"format", contents.format},
                           {"files", std::move(files)},
                           {"config", contents.config ? to_json(*contents.config) : json()},
                           {"layers", std::move(layers)},
                           {"tensors", std::move(tensors)},
                           {"n_bytes", contents.n_bytes},
                           {"n_model_bytes", contents.n_model_bytes},
                           {"memory", contents.memory ? to_json(options, contents) : json()},
                           {"problems", contents.problems},
                           {"other_problems", contents.other_problems},
                           {"ok", contents.is_good()}};
    return document.dump(1, ' ', true, json::error_handler_t::replace) + "\n";
}

} // namespace inspect
