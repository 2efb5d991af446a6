// Options take their value as the next argument or after `=`; what is no option is the path.
#include "options.h"

#include <charconv>
#include <string_view>

namespace inspect {

const char *const kHelp =
    R"(usage: ds41-inspect [OPTION]... PATH

Tells what a checkpoint holds for the attention layers of DeepSeek-V4.1, what they take in memory, and what is wrong
with them. PATH is the release's folder, one safetensors file with its config.json beside it, or a GGUF (any shard of
a split one). Only headers are read. Uses nothing but the public interface, ds41/ds41.h.

  --context N     tokens per sequence that memory is told for; default: 4096, or as many as the model takes
  --batch N       sequences; default: 1
  --prefill N     tokens of the largest step; default: the larger of --batch and 64, but no more than there are tokens
  --layers A-B    only these layers, both included, or one layer A; default: all, less draft layers that are not there
  --expand-fp8    as when FP8 weights are expanded to BF16 at load (DS41_LOAD_EXPAND_FP8)
  --map           as when weights stay in the mapping of the file where they can (DS41_LOAD_MAP)
  --backend NAME  backend to tell memory for; default: the best that runs here
  --json          print one JSON document instead of tables
  --help          print this
  --version       print the versions of the tool and of the library

One line of the table stands for neighbouring layers that are alike:
  role            where a layer's compressed rows and its selection come from: of its own, or of the layer named
  projections     types of wq_a, wq_b, wkv, wo_a and wo_b as the file calls them, "-> BF16" where they are expanded at
                  load: first what most have, then those that differ. "unusable" is what is missing or wrong, "none" a
                  layer without anything usable
  compressor, indexer
                  likewise for the matrices of layers that make rows or select them
  each in file    bytes of a layer's tensors, norms, sinks and scales included
  each loaded     the same after a load that copies everything
Units are decimal: 1 MB is 1000000 bytes. JSON has every number exactly, and every tensor.

Memory is what the library allocates for weights, for the caches of all sequences and for one context. "left in files"
are weights that --map leaves there: the system keeps their pages in memory while they are used.

exit status: 0 everything needed is there; 1 there are problems, which are listed; 2 the usage is wrong or the path
cannot be opened as a checkpoint
)";

namespace {

template <class Number> bool read_number(std::string_view text, Number &number) {
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    return error == std::errc() && stop == text.data() + text.size();
}

int64_t count(const char *option, const std::string &text, int64_t most) {
    int64_t value = 0;
    if (!read_number(text, value) || value < 1 || value > most)
        throw BadUsage(std::string(option) + " is '" + text + "', need a number from 1 to " + std::to_string(most));
    return value;
}

constexpr int64_t kMostTokens = INT64_MAX; // what the model takes is checked when it is known
constexpr int64_t kMostRows = 1 << 30;     // of a step, and most sequences: what the library takes

/// "A-B", both included, or "A".
void set_layers(Options &options, const std::string &value) {
    const std::string_view text = value;
    const size_t dash = text.find('-');
    const bool is_read = read_number(text.substr(0, dash), options.first_layer) &&
                         (dash == std::string_view::npos || read_number(text.substr(dash + 1), options.last_layer));
    if (dash == std::string_view::npos) options.last_layer = options.first_layer;
    if (!is_read || options.first_layer < 0 || options.last_layer < options.first_layer)
        throw BadUsage("--layers is '" + value + "', need A-B or A: numbers of the first layer and the last");
    options.some_layers = true;
}

struct Row {
    const char *name;
    bool takes_value;
    void (*set)(Options &options, const std::string &value);
};

constexpr Row kRows[] = {
    {"--context", true,
     [](Options &o, const std::string &value) { o.context = count("--context", value, kMostTokens); }},
    {"--batch", true, [](Options &o, const std::string &value) { o.batch = count("--batch", value, kMostRows); }},
    {"--prefill", true, [](Options &o, const std::string &value) { o.prefill = count("--prefill", value, kMostRows); }},
    {"--layers", true, set_layers},
    {"--backend", true, [](Options &o, const std::string &value) { o.backend = value; }},
    {"--expand-fp8", false, [](Options &o, const std::string &) { o.expand_fp8 = true; }},
    {"--map", false, [](Options &o, const std::string &) { o.map = true; }},
    {"--json", false, [](Options &o, const std::string &) { o.json = true; }},
    {"--help", false, [](Options &o, const std::string &) { o.help = true; }},
    {"--version", false, [](Options &o, const std::string &) { o.version = true; }},
};

const Row &find_row(const std::string &name) {
    for (const Row &row : kRows)
        if (row.name == name) return row;
    throw BadUsage("there is no option " + name);
}

} // namespace

Options parse_options(int argc, const char *const *argv) {
    Options options;
    bool only_paths = false, has_path = false;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        if (only_paths || !argument.starts_with("-") || argument == "-") {
            if (has_path) throw BadUsage("two paths are given, need one: " + options.path + " and " + argument);
            has_path = true;
            options.path = argument;
            continue;
        }
        if (argument == "--") {
            only_paths = true;
            continue;
        }
        const size_t equals = argument.find('=');
        const std::string name = argument == "-h" ? "--help" : argument.substr(0, equals);
        const Row &row = find_row(name);
        if (!row.takes_value && equals != std::string::npos) throw BadUsage(name + " takes no value");
        if (row.takes_value && equals == std::string::npos && i + 1 == argc) throw BadUsage(name + " needs a value");
        std::string value;
        if (row.takes_value) value = equals == std::string::npos ? argv[++i] : argument.substr(equals + 1);
        row.set(options, value);
    }
    if (!has_path && !options.help && !options.version) throw BadUsage("no path is given");
    return options;
}

} // namespace inspect
