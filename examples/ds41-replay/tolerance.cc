// The numbers below are those of the format (fixtures/README.md, Tolerances) and hold where a file does not say.
#include "tolerance.h"

#include "api.h"

#include <nlohmann/json.hpp>

namespace replay {

namespace {

using nlohmann::json;

const char *group_of_kind(const std::string &kind) {
    if (kind == "idx" || kind == "candidates") return "exact";
    if (kind == "state_kv" || kind == "state_gate") return "state";
    for (const char *name : {"kv_rows", "ring", "comp_rows", "index_keys", "index_q"})
        if (kind == name) return "quantised";
    return "float";
}

void read_numbers(const json &group, Rule &rule) {
    rule.atol_of_max = group.value("atol_of_max", rule.atol_of_max);
    rule.rtol = group.value("rtol", rule.rtol);
    rule.fraction = group.value("fraction", rule.fraction);
    if (const auto rows = group.find("row_exceptions"); rows != group.end()) {
        rule.exception_fraction = rows->at("fraction_of_rows").get<double>();
        rule.exception_atol_of_max = rows->at("atol_of_max").get<double>();
    }
}

} // namespace

Tolerance::Tolerance(const json &metadata) {
    constexpr double kBf16Step = 0.0078125; // 2^-7, the largest step of a bf16 value relative to it
    groups_["exact"] = {};
    groups_["float"] = {Group::floating, kBf16Step, kBf16Step};
    groups_["state"] = {Group::floating, 1e-5, 1e-5};
    groups_["quantised"] = {Group::quantised, 0.34, 0, 0.001}; // 0.34: one step of fp4 is up to 1/3 of the maximum
    groups_["float_quantised_activations"] = groups_["float"];
    if (!metadata.is_object()) throw CannotRun("metadata entry 'tolerance' is no JSON object");
    for (auto &[name, rule] : groups_) {
        const auto group = metadata.find(name);
        if (group == metadata.end()) continue;
        // "exact" is a plain list, the others carry their numbers beside it.
        if (group->is_object()) read_numbers(*group, rule);
        const json &tensors = group->is_object() ? group->at("tensors") : *group;
        for (const json &tensor : tensors) rules_[tensor.get<std::string>()] = rule;
    }
}

Rule Tolerance::rule_of(const std::string &prefix, const std::string &kind) const {
    if (const auto found = rules_.find(prefix + kind); found != rules_.end()) return found->second;
    if (kind == "out_tail") return rule_of(prefix, "out"); // rows of out
    return groups_.at(group_of_kind(kind));
}

} // namespace replay
