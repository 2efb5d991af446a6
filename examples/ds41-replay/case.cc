// Reads the metadata and sorts the tensors' names: weights, inputs, expected values, and those it does not know.
#include "case.h"

#include "assemble.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

namespace replay {

namespace {

using nlohmann::json;

const char *required(const Fixture &fixture, const char *key) {
    const char *text = fixture.metadata(key);
    if (!text) throw CannotRun("metadata entry '" + std::string(key) + "' is missing: not a file of the replay format");
    return text;
}

/// `read` of a metadata entry's JSON. What it finds of another type than it needs is told with the entry's name.
template <typename Read> auto read_entry(const Fixture &fixture, const char *key, Read &&read) {
    try {
        return read(json::parse(required(fixture, key)));
    } catch (const json::exception &error) {
        throw CannotRun("metadata entry '" + std::string(key) + "': " + error.what());
    }
}

int64_t integer(const json &entry, const char *key) {
    const json &value = entry.at(key);
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX))
        throw CannotRun("metadata entry 'steps': " + std::string(key) + " is " + value.dump() + ", need an integer");
    return value.get<int64_t>();
}

std::vector<Step> read_steps(const json &entries) {
    std::vector<Step> steps;
    for (const json &entry : entries) {
        const Step step{integer(entry, "start_pos"), integer(entry, "tokens")};
        const std::string what = "step " + std::to_string(steps.size()) + " has " + std::to_string(step.n_tokens) +
                                 " tokens at position " + std::to_string(step.start_pos);
        if (step.start_pos < 0 || step.n_tokens < 1 || step.n_tokens > INT32_MAX)
            throw CannotRun(what + ", need a position of 0 or more and 1 token or more");
        if (step.start_pos > 0 && step.n_tokens != 1)
            throw CannotRun(what + "; the format has one token in a step that does not start at 0");
        steps.push_back(step);
    }
    if (steps.empty()) throw CannotRun("the file's list of steps is empty");
    return steps;
}

std::vector<Mode> read_modes(const json &entries) {
    std::vector<Mode> modes;
    for (const auto &[prefix, value] : entries.items()) {
        const std::string name = value.get<std::string>();
        const bool plain = name == "expanded" || name == "bf16act";
        if (!plain && name != "fp8" && name != "q8")
            throw CannotRun("mode '" + prefix + "' is " + name + ", need fp8, q8, expanded or bf16act");
        modes.push_back({prefix.empty() || prefix.ends_with('.') ? prefix : prefix + ".", name, plain});
    }
    return modes;
}

/// `.` behind a number, as in "step12." with `word` "step": the number, and `text` moves past it.
std::optional<int32_t> take_number(std::string_view &text, std::string_view word) {
    if (!text.starts_with(word)) return {};
    int32_t number = 0;
    const char *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + word.size(), end, number);
    if (error != std::errc() || stop == end || *stop != '.' || number < 0) return {};
    text = {stop + 1, static_cast<size_t>(end - stop - 1)};
    return number;
}

ds41_layer_role role_of(const Case &replayed, int32_t layer) {
    ds41_layer_role role;
    ds41_layer_role_init(&role, sizeof(role));
    check(ds41_config_get_role(&replayed.config, layer, &role), "layer " + std::to_string(layer));
    return role;
}

bool any_shares_index_keys(const Case &replayed) {
    for (size_t step = 0; step < replayed.steps.size(); ++step)
        for (int32_t layer : replayed.layers)
            if (shares_index_keys(replayed, step, layer)) return true;
    return false;
}

void sort_tensors(const Fixture &fixture, Case &replayed) {
    std::set<int32_t> with_weights, with_inputs;
    for (const auto &[name, part] : fixture.names()) {
        std::string_view rest = name;
        if (const auto layer = take_number(rest, "layers."); layer && rest.starts_with("attn.")) {
            with_weights.insert(*layer);
        } else if (const auto step = take_number(rest, "step")) {
            const auto input_layer = take_number(rest, "layer");
            if (input_layer && rest == "x") with_inputs.insert(*input_layer);
        }
    }
    std::set_intersection(with_weights.begin(), with_weights.end(), with_inputs.begin(), with_inputs.end(),
                          std::back_inserter(replayed.layers));

    replayed.expected.resize(replayed.modes.size());
    for (const auto &[name, part] : fixture.names()) {
        std::string_view rest = name;
        if (take_number(rest, "layers.") && rest.starts_with("attn.")) continue;
        rest = name;
        const auto step = take_number(rest, "step");
        const auto layer = step ? take_number(rest, "layer") : std::nullopt;
        if (layer && rest.starts_with("refslot.")) {
            ++replayed.n_refslot;
            continue;
        }
        const bool runs = layer && static_cast<size_t>(*step) < replayed.steps.size() &&
                          std::binary_search(replayed.layers.begin(), replayed.layers.end(), *layer) &&
                          fixture.has("step" + std::to_string(*step) + ".layer" + std::to_string(*layer) + ".x");
        if (runs && rest == "x") continue;
        bool known = false;
        for (size_t i = 0; runs && i < replayed.modes.size(); ++i) {
            const std::string &prefix = replayed.modes[i].prefix;
            if (!rest.starts_with(prefix)) continue;
            const std::string kind(rest.substr(prefix.size()));
            if (order_of(kind) < 0) continue;
            replayed.expected[i].push_back({static_cast<size_t>(*step), *layer, kind, name});
            known = true;
        }
        if (!known) replayed.not_compared.push_back(name);
    }
    for (auto &expected : replayed.expected)
        std::sort(expected.begin(), expected.end(), [](const Expected &a, const Expected &b) {
            return std::tuple(a.step, a.layer, order_of(a.kind)) < std::tuple(b.step, b.layer, order_of(b.kind));
        });
}

} // namespace

bool shares_index_keys(const Case &replayed, size_t step, int32_t layer) {
    const ds41_layer_role role = role_of(replayed, layer);
    const int64_t start_pos = replayed.steps[step].start_pos;
    if (!role.is_index_source || start_pos == 0 || (start_pos + 1) % role.ratio == 0) return false;
    return std::any_of(replayed.layers.begin(), replayed.layers.end(), [&](int32_t other) {
        const ds41_layer_role other_role = role_of(replayed, other);
        return other != layer && other_role.is_kv_source && other_role.is_index_source;
    });
}

Case read_case(const Fixture &fixture) {
    if (!fixture.metadata("steps"))
        throw CannotRun("the file has no steps: a table of single values or products is not replayed, since the public "
                        "interface runs whole layers");
    Case replayed{.name = fixture.metadata("case") ? fixture.metadata("case") : "?",
                  .config = {},
                  .tie = "stable",
                  .steps = read_entry(fixture, "steps", read_steps),
                  .modes = {{"", "default", false}},
                  .expected = {},
                  .tolerance = Tolerance(json::object()),
                  .layers = {},
                  .q2_k = {},
                  .not_compared = {}};
    if (fixture.metadata("modes")) replayed.modes = read_entry(fixture, "modes", read_modes);
    if (fixture.metadata("tolerance"))
        replayed.tolerance = read_entry(fixture, "tolerance", [](const json &entry) { return Tolerance(entry); });
    ds41_config_init(&replayed.config, sizeof(replayed.config));
    const char *config = required(fixture, "config");
    check(ds41_config_parse(&replayed.config, config, std::strlen(config)), "metadata entry 'config'");
    if (fixture.metadata("weights"))
        replayed.q2_k = read_entry(fixture, "weights", [](const json &weights) {
            const std::string format = weights.at("format").get<std::string>();
            if (format != "fp8" && format != "q2_k") throw CannotRun("weights are " + format + ", need fp8 or q2_k");
            return format == "q2_k" ? weights.at("tensors").get<std::set<std::string>>() : std::set<std::string>();
        });
    sort_tensors(fixture, replayed);
    if (replayed.layers.empty()) throw CannotRun("no layer has both weights and inputs");

    std::string index_k = "own";
    if (fixture.metadata("rules"))
        std::tie(replayed.tie, index_k) = read_entry(fixture, "rules", [](const json &rules) {
            return std::pair<std::string, std::string>(rules.value("tie", "stable"), rules.value("index_k", "own"));
        });
    if (replayed.tie != "stable" && replayed.tie != "torch_cpu")
        throw CannotRun("rules.tie is " + replayed.tie + ", need stable or torch_cpu");
    if (index_k != "own" && any_shares_index_keys(replayed))
        throw CannotRun("rules.index_k is " + index_k +
                        ", need own: an index source of this library scores against its "
                        "own keys by design, so these values cannot be reproduced");
    return replayed;
}

} // namespace replay
