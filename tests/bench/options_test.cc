// Command lines of ds41-bench, right and wrong.
#include "machine.h"
#include "modes.h"
#include "options.h"

#include <doctest/doctest.h>

#include <vector>

using namespace bench;

namespace {

Options parse(std::vector<const char *> arguments) {
    arguments.insert(arguments.begin(), "ds41-bench");
    return parse_options(static_cast<int>(arguments.size()), arguments.data());
}

} // namespace

TEST_CASE("a mode alone gets the defaults") {
    const Options options = parse({"read"});
    CHECK(options.mode == "read");
    CHECK(options.path.empty());
    CHECK(options.limits.rounds == 0);
    CHECK(options.limits.seconds == 5);
    CHECK(options.threads == n_usable_cpus());
    CHECK(options.threads >= 1);
    CHECK(!options.json);
    CHECK(options.n_layers == 0);
}

TEST_CASE("options come in any place, with their value after a space or an equals sign") {
    const Options options = parse({"--json", "load", "--seconds=0.5", "file", "--rounds", "7", "--threads", "3",
                                   "--layers", "2-8", "--backend=reference"});
    CHECK(options.mode == "load");
    CHECK(options.path == "file");
    CHECK(options.limits.seconds == 0.5);
    CHECK(options.limits.rounds == 7);
    CHECK(options.threads == 3);
    CHECK(options.first_layer == 2);
    CHECK(options.n_layers == 7);
    CHECK(options.backend == "reference");
    CHECK(options.json);
    CHECK(parse({"--mode", "load", "file"}).path == "file");
    CHECK(parse({"load", "--", "--file"}).path == "--file");
    CHECK(parse({"load", "file", "--layers", "5"}).first_layer == 5);
    CHECK(parse({"load", "file", "--layers", "5"}).n_layers == 1);
}

TEST_CASE("mode step takes lists") {
    const Options defaults = parse({"step"});
    CHECK(defaults.formats == std::vector<std::string>{"bf16", "fp8", "q2_k"});
    CHECK(defaults.contexts == std::vector<int64_t>{4096, 65536});
    CHECK(defaults.rows == std::vector<int32_t>{1});
    CHECK(defaults.scale == 1);
    const Options options = parse({"step", "--formats", "q2_k,bf16", "--contexts=2,3K,1024K,1048576", "--rows", "4,16",
                                   "--scale", "8", "--layers", "20-24", "--backend", "sim"});
    CHECK(options.formats == std::vector<std::string>{"q2_k", "bf16"});
    CHECK(options.contexts == std::vector<int64_t>{2, 3072, 1048576, 1048576});
    CHECK(options.rows == std::vector<int32_t>{4, 16});
    CHECK(options.scale == 8);
    CHECK(options.first_layer == 20);
    CHECK(options.n_layers == 5);
}

TEST_CASE("modes have defaults of their own") {
    CHECK(parse({"proj"}).rows == std::vector<int32_t>{1});
    CHECK(parse({"prefill"}).rows == std::vector<int32_t>{64, 512});
    CHECK(parse({"--rows=7", "prefill"}).rows == std::vector<int32_t>{7});
    CHECK(parse({"attend"}).contexts == std::vector<int64_t>{65536});
    CHECK(parse({"stack"}).contexts == std::vector<int64_t>{4096});
    CHECK(parse({"index"}).contexts == std::vector<int64_t>{65536, 1048576});
    CHECK(parse({"index", "--contexts", "3"}).contexts == std::vector<int64_t>{3});
}

TEST_CASE("--help and --version need nothing else") {
    CHECK(parse({"--help"}).help);
    CHECK(parse({"-h"}).help);
    CHECK(parse({"--version"}).version);
    for (const Mode &mode : all_modes()) CHECK(help_text().find(mode.summary) != std::string::npos);
}

TEST_CASE("a wrong command line is refused with a sentence that shows what is wrong") {
    struct Row {
        std::vector<const char *> arguments;
        const char *part;
    };
    const Row rows[] = {
        {{}, "no mode is given"},
        {{"nothing"}, "there is no mode 'nothing'"},
        {{"--mode=nothing"}, "there is no mode 'nothing'"},
        {{"read", "file"}, "takes no argument 'file'"},
        {{"load"}, "mode load needs a path"},
        {{"load", "a", "b"}, "takes no argument 'b'"},
        {{"read", "--layers", "1-2"}, "mode read takes no option --layers"},
        {{"read", "--nothing"}, "there is no option --nothing"},
        {{"read", "-x"}, "there is no option -x"},
        {{"read", "--json=1"}, "--json takes no value"},
        {{"read", "--seconds"}, "--seconds needs a value"},
        {{"read", "--seconds", "0"}, "--seconds is '0'"},
        {{"read", "--seconds", "nan"}, "--seconds is 'nan'"},
        {{"read", "--seconds", "1e9"}, "--seconds is '1e9'"},
        {{"read", "--seconds", "1s"}, "--seconds is '1s'"},
        {{"read", "--rounds", "0"}, "--rounds is '0'"},
        {{"read", "--rounds", ""}, "--rounds is ''"},
        {{"read", "--threads", "-1"}, "--threads is '-1'"},
        {{"read", "--threads", "1025"}, "--threads is '1025'"},
        {{"read", "--threads", "99999999999"}, "--threads is '99999999999'"},
        {{"load", "a", "--layers", "3-2"}, "--layers is '3-2'"},
        {{"load", "a", "--layers", "-1"}, "--layers is '-1'"},
        {{"load", "a", "--layers", "1-"}, "--layers is '1-'"},
        {{"load", "a", "--layers", "1-2-3"}, "--layers is '1-2-3'"},
        {{"load", "a", "--layers", "2147483647"}, "--layers is '2147483647'"},
        {{"step", "file"}, "takes no argument 'file'"},
        {{"load", "a", "--formats", "bf16"}, "mode load takes no option --formats"},
        {{"read", "--contexts", "4K"}, "mode read takes no option --contexts"},
        {{"step", "--formats", "bf16,q4_k"}, "--formats has 'q4_k', need some of bf16, fp8, q2_k"},
        {{"step", "--formats", "bf16,"}, "--formats is 'bf16,', need values between commas"},
        {{"step", "--formats", ""}, "--formats is ''"},
        {{"step", "--contexts", "1"}, "--contexts is '1', need counts from 2 to 1048576"},
        {{"step", "--contexts", "0K"}, "--contexts is '0'"},
        {{"step", "--contexts", "K"}, "--contexts is ''"},
        {{"step", "--contexts", "4k"}, "--contexts is '4k'"},
        {{"step", "--contexts", "1025K"}, "--contexts is '1025'"},
        {{"step", "--contexts", "4096,,2"}, "--contexts is '4096,,2'"},
        {{"step", "--rows", "0"}, "--rows is '0'"},
        {{"step", "--rows", "1025"}, "--rows is '1025'"},
        {{"step", "--rows", "1,,2"}, "--rows is '1,,2', need values between commas"},
        {{"prefill", "--rows", "64,1025"}, "--rows is '1025', need counts from 1 to 1024"},
        {{"step", "--scale", "0"}, "--scale is '0'"},
        {{"proj", "file"}, "mode proj takes no argument 'file'"},
        {{"proj", "--contexts", "4K"}, "mode proj takes no option --contexts"},
        {{"prefill", "--layers", "1"}, "mode prefill takes no option --layers"},
        {{"attend", "--rows", "1"}, "mode attend takes no option --rows"},
        {{"index", "--formats", "bf16"}, "mode index takes no option --formats"},
        {{"index", "--backend", "cpu"}, "mode index takes no option --backend"},
    };
    for (const Row &row : rows) {
        std::string message;
        try {
            parse(row.arguments);
        } catch (const BadUsage &error) {
            message = error.what();
        }
        CAPTURE(message);
        CHECK(message.find(row.part) != std::string::npos);
    }
}
