// What the tool prints: a table as each case is done, or one JSON document at the end.
#pragma once

#include "harness.h"
#include "step_cost.h"

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

namespace bench {

class Report {
public:
    explicit Report(bool json);

    void add(const Case &compared, const std::vector<Result> &results);
    void add(const StepCost &cost);
    /// Of a GPU: the time of each stage beside that of a copy which reads and writes as many bytes as it has to.
    void add_times(const StepCost &cost);

    /// A case that could not be measured here, and why; no failure.
    void skip(const std::string &mode, const std::string &name, const std::string &reason);

    void finish();

private:
    void begin_table(const std::string &mode, const std::string &name);

    bool json_;
    bool is_begun_ = false;
    std::string cpu_;
    nlohmann::json records_ = nlohmann::json::array();
    nlohmann::json not_measured_ = nlohmann::json::array();
};

} // namespace bench
