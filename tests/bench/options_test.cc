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
