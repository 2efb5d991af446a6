// Loads one checkpoint as the command line says and tells as JSON how it went: what ds41_checkpoint_* say of it, the
// status, message, log and progress of ds41_model_load, and a hash of each layer's outputs. The Python tests make the
// files. Exit status 0 whenever the library answered; a leak or a sanitizer's finding ends the program with another.
#include "loading.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <optional>
#include <string_view>

using namespace checkpoint_test;
using nlohmann::json;

namespace {

struct Arguments {
    std::optional<std::string> path;
    ds41_load_options options = default_options();
    ds41_model_options model{};
    ds41_config config;
};

[[noreturn]] void usage(const std::string &why) {
    std::cerr << "checkpoint_probe: " << why
              << "\nusage: checkpoint_probe PATH [--first L] [--count N] [--threads N] [--max-seq-len N]"
                 " [--config FILE] [--backend NAME] [--map] [--expand-fp8] [--plain-q2k]\n";
    std::exit(2);
}

void parse(int argc, char **argv, Arguments &arguments) {
    for (int i = 1; i < argc; ++i) {
        const std::string_view option = argv[i];
        ds41_load_options &options = arguments.options;
        const auto value = [&] {
            return i + 1 < argc ? argv[++i] : (usage(std::string(option) + " needs a value"), "");
        };
        if (option == "--first")
            options.first_layer = std::stoi(value());
        else if (option == "--count")
            options.n_layers = std::stoi(value());
        else if (option == "--threads")
            options.n_threads = std::stoi(value());
        else if (option == "--max-seq-len")
            options.max_seq_len = std::stoll(value());
        else if (option == "--map")
            options.flags |= DS41_LOAD_MAP;
        else if (option == "--expand-fp8")
            options.flags |= DS41_LOAD_EXPAND_FP8;
        else if (option == "--plain-q2k")
            options.flags |= DS41_LOAD_PLAIN_Q2_K;
        else if (option == "--backend") {
            ds41_model_options_init(&arguments.model, sizeof(arguments.model));
            arguments.model.backend = value();
            options.model = &arguments.model;
        } else if (option == "--config") {
            ds41_config_init(&arguments.config, sizeof(arguments.config));
            if (ds41_config_load(&arguments.config, value()) != DS41_STATUS_OK) usage(ds41_last_error());
            options.config = &arguments.config;
        } else if (option.starts_with("--") || arguments.path)
            usage("there is no option " + std::string(option));
        else
            arguments.path = option;
    }
    if (!arguments.path) usage("no path");
}

json list(const int32_t *values, int32_t n) {
    return json(std::vector<int32_t>(values, values + n));
}

json describe(const ds41_config &config) {
    return {{"n_layers", config.n_layers},
            {"dim", config.dim},
            {"n_heads", config.n_heads},
            {"head_dim", config.head_dim},
            {"rope_head_dim", config.rope_head_dim},
            {"q_lora_rank", config.q_lora_rank},
            {"o_groups", config.o_groups},
            {"o_lora_rank", config.o_lora_rank},
            {"window_size", config.window_size},
            {"index_n_heads", config.index_n_heads},
            {"index_head_dim", config.index_head_dim},
            {"index_topk", config.index_topk},
            {"candidate_source_layer", config.candidate_source_layer},
            {"candidate_topk_blocks", config.candidate_topk_blocks},
            {"candidate_block_size", config.candidate_block_size},
            {"norm_eps", config.norm_eps},
            {"rope_theta", config.rope_theta},
            {"compress_rope_theta", config.compress_rope_theta},
            {"rope_factor", config.rope_factor},
            {"beta_fast", config.beta_fast},
            {"beta_slow", config.beta_slow},
            {"original_seq_len", config.original_seq_len},
            {"max_seq_len", config.max_seq_len},
            {"compress_ratios", list(config.compress_ratios, config.n_compress_ratios)},
            {"kv_source_layers", list(config.kv_source_layers, config.n_kv_source_layers)},
            {"index_source_layers", list(config.index_source_layers, config.n_index_source_layers)}};
}

json describe(const ds41_memory &memory) {
    return {memory.weights, memory.window, memory.compressed, memory.index_keys, memory.group_state, memory.workspace};
}

ds41_memory empty_memory() {
    ds41_memory memory;
    ds41_memory_init(&memory, sizeof(memory));
    return memory;
}

json failure() {
    return {{"status", "failed"}, {"message", ds41_last_error()}};
}

json answer(ds41_status status) {
    json answer = {{"status", ds41_status_name(status)}};
    if (status != DS41_STATUS_OK) answer["message"] = ds41_last_error();
    return answer;
}

json inspect(const Arguments &arguments) {
    ds41_checkpoint *handle = nullptr;
    json opened = answer(ds41_checkpoint_load(&handle, arguments.path->c_str()));
    const Checkpoint checkpoint(handle);
    if (!checkpoint) return opened;
    opened["format"] = ds41_checkpoint_get_format(handle);
    for (int64_t i = 0; i < ds41_checkpoint_get_n_files(handle); ++i)
        opened["files"].push_back(ds41_checkpoint_get_file(handle, i));
    for (int64_t i = 0; i < ds41_checkpoint_get_n_problems(handle); ++i)
        opened["problems"].push_back(ds41_checkpoint_get_problem(handle, i));
    ds41_config config;
    ds41_config_init(&config, sizeof(config));
    opened["config"] = answer(ds41_checkpoint_get_config(handle, &config));
    if (opened["config"]["status"] == "DS41_STATUS_OK") opened["config"]["values"] = describe(config);
    opened["tensors"] = json::array();
    for (int64_t i = 0; i < ds41_checkpoint_get_n_tensors(handle); ++i) {
        ds41_checkpoint_tensor tensor;
        ds41_checkpoint_tensor_init(&tensor, sizeof(tensor));
        const ds41_status status = ds41_checkpoint_get_tensor(handle, i, &tensor);
        if (status != DS41_STATUS_OK) {
            opened["tensors"].push_back(answer(status));
            continue;
        }
        opened["tensors"].push_back({{"layer", tensor.layer},
                                     {"member", tensor.member},
                                     {"name", tensor.name},
                                     {"type", tensor.type},
                                     {"shape", std::vector<int64_t>(tensor.shape, tensor.shape + tensor.n_dims)},
                                     {"file", tensor.file},
                                     {"dtype", ds41_dtype_name(tensor.dtype)},
                                     {"n_bytes", tensor.n_bytes},
                                     {"n_model_bytes", tensor.n_model_bytes}});
    }
    ds41_memory memory = empty_memory();
    opened["memory"] = answer(ds41_checkpoint_estimate_memory(handle, &arguments.options, 2, 16, 13, &memory));
    if (opened["memory"]["status"] == "DS41_STATUS_OK") opened["memory"]["values"] = describe(memory);
    return opened;
}

std::string hash(const std::vector<uint16_t> &values) {
    uint64_t h = 0xCBF29CE484222325u;
    for (const uint16_t value : values) h = (h ^ value) * 0x100000001B3u;
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(h));
    return text;
}

} // namespace

int main(int argc, char **argv) {
    Arguments arguments;
    parse(argc, argv, arguments);
    json document = {{"checkpoint", inspect(arguments)}};

    Result result = load(*arguments.path, arguments.options);
    document["status"] = ds41_status_name(result.status);
    document["message"] = result.message;
    document["handle_untouched"] = result.handle_untouched;
    document["log"] = json::array();
    for (const auto &[level, line] : result.log) document["log"].push_back({level, line});
    for (const Progress &call : result.progress)
        document["progress"].push_back({call.n_done, call.n_total, call.tensor});
    if (result.model) {
        ds41_memory memory = empty_memory();
        const ds41_status status = ds41_model_estimate_memory(result.model.get(), 2, 16, 13, &memory);
        document["memory"] = status == DS41_STATUS_OK ? describe(memory) : failure();
        document["config"] = describe(config_of(result.model.get()));
        document["outputs"] = json::object();
        for (const auto &[layer, values] : outputs_of(result.model.get()))
            document["outputs"][std::to_string(layer)] = hash(values);
    }
    // Names may be any bytes; what is no UTF-8 shows as U+FFFD.
    std::cout << document.dump(1, ' ', false, json::error_handler_t::replace) << '\n';
    return 0;
}
