// The command line: what is taken, and a sentence with the value for what is not.
#include "options.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace inspect;

namespace {

Options parse(std::vector<const char *> arguments) {
    arguments.insert(arguments.begin(), "ds41-inspect");
    return parse_options(static_cast<int>(arguments.size()), arguments.data());
}

std::string refusal(const std::vector<const char *> &arguments) {
    try {
        parse(arguments);
    } catch (const BadUsage &error) {
        return error.what();
    }
    return "";
}

bool contains(const std::string &text, const char *part) {
    return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("a path alone leaves the defaults") {
    const Options options = parse({"model.gguf"});
    CHECK(options.path == "model.gguf");
    CHECK(options.batch == 1);
    CHECK(options.context == 0);
    CHECK(options.prefill == 0);
    CHECK(options.backend == "auto");
    const bool any = options.some_layers || options.expand_fp8 || options.map || options.json;
    CHECK_FALSE(any);
}

TEST_CASE("values come as the next argument or after the equals sign, before or after the path") {
    for (const std::vector<const char *> &arguments : std::vector<std::vector<const char *>>{
             {"--context", "7", "--batch", "3", "--prefill", "2", "--layers", "4-9", "--backend", "x", "--json", "p"},
             {"p", "--context=7", "--batch=3", "--prefill=2", "--layers=4-9", "--backend=x", "--json"}}) {
        const Options options = parse(arguments);
        CHECK(options.path == "p");
        CHECK(options.context == 7);
        CHECK(options.batch == 3);
        CHECK(options.prefill == 2);
        CHECK(options.some_layers);
        CHECK(options.first_layer == 4);
        CHECK(options.last_layer == 9);
        CHECK(options.backend == "x");
        CHECK(options.json);
    }
}

TEST_CASE("one layer is a range") {
    const Options options = parse({"--layers", "20", "p"});
    CHECK(options.first_layer == 20);
    CHECK(options.last_layer == 20);
}

TEST_CASE("after two dashes everything is a path") {
    CHECK(parse({"--map", "--", "--json"}).path == "--json");
    CHECK_FALSE(parse({"--", "--json"}).json);
}

TEST_CASE("the last of two wins") {
    CHECK(parse({"--batch", "2", "--batch", "5", "p"}).batch == 5);
}

TEST_CASE("help and version need no path") {
    CHECK(parse({"--help"}).help);
    CHECK(parse({"-h"}).help);
    CHECK(parse({"--version"}).version);
}

TEST_CASE("what is wrong is named with its value") {
    struct Case {
        std::vector<const char *> arguments;
        const char *part;
    };
    const Case cases[] = {
        {{}, "no path"},
        {{"a", "b"}, "two paths"},
        {{"--nothing", "p"}, "--nothing"},
        {{"-x", "p"}, "-x"},
        {{"--json=1", "p"}, "--json takes no value"},
        {{"p", "--batch"}, "--batch needs a value"},
        {{"--batch", "0", "p"}, "'0'"},
        {{"--batch", "-1", "p"}, "'-1'"},
        {{"--batch", "1073741825", "p"}, "1073741824"},
        {{"--prefill", "1073741825", "p"}, "1073741824"},
        {{"--context", "", "p"}, "''"},
        {{"--context", "4k", "p"}, "'4k'"},
        {{"--context", "1.5", "p"}, "'1.5'"},
        {{"--context", " 1", "p"}, "' 1'"},
        {{"--context", "9223372036854775808", "p"}, "'9223372036854775808'"},
        {{"--layers", "3-1", "p"}, "'3-1'"},
        {{"--layers", "-1", "p"}, "'-1'"},
        {{"--layers", "1-", "p"}, "'1-'"},
        {{"--layers", "1-2-3", "p"}, "'1-2-3'"},
        {{"--layers", "", "p"}, "''"},
        {{"--layers", "0-4294967296", "p"}, "'0-4294967296'"},
    };
    for (const Case &one : cases) {
        CAPTURE(one.part);
        CHECK(contains(refusal(one.arguments), one.part));
    }
}
