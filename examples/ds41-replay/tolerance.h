// Which rule a tensor is judged by: read from the case's own metadata, with the format's rule for the kind where the
// metadata names none.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <string>

namespace replay {

enum class Group {
    exact,     ///< Equal.
    floating,  ///< |a - b| <= atol_of_max * max|b| + rtol * |b|.
    quantised, ///< Equal but for max(1, fraction * n) elements, each |a - b| <= atol_of_max * max|b|.
};

struct Rule {
    Group group = Group::exact;
    double atol_of_max = 0;
    double rtol = 0;
    double fraction = 0;
    /// Floating only, 0 for none: so much of the case's rows (tokens of all steps and layers) may leave the bound, no
    /// element by more than exception_atol_of_max * max|b|.
    double exception_fraction = 0;
    double exception_atol_of_max = 0;
};

class Tolerance {
public:
    /// `metadata` is the value of the key `tolerance`. Throws CannotRun when it is not of the expected form.
    explicit Tolerance(const nlohmann::json &metadata);

    /// Rule of `prefix` + `kind`, where the prefix is that of the arithmetic mode.
    Rule rule_of(const std::string &prefix, const std::string &kind) const;

private:
    std::map<std::string, Rule> groups_; // by the name of the group, with the format's numbers where the file has none
    std::map<std::string, Rule> rules_;  // by tensor, prefix included
};

} // namespace replay
