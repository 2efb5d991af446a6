// What the tool prints: tables as the files are done, or one JSON document at the end.
#pragma once

#include "case.h"
#include "options.h"
#include "runner.h"

#include <nlohmann/json.hpp>

#include <string>

namespace replay {

enum class Verdict { ok, outside, error };

const char *to_text(Verdict verdict);

class Report {
public:
    explicit Report(const Options &options) : options_(options) {}

    /// One arithmetic mode of a file. Expected tensors that are not compared are reported with its `first`.
    void add(const std::string &path, const Case &replayed, size_t mode, bool first, const ModeResult &result);

    /// A file that could not be run: the sentence goes to stderr as well. `name` may be empty.
    void add_error(const std::string &path, const std::string &name, const std::string &message);

    void finish();

    int exit_status() const { return overall_ == Verdict::ok ? 0 : overall_ == Verdict::outside ? 1 : 2; }

private:
    void print(const Case &replayed, size_t mode, bool first, const ModeResult &result, Verdict verdict) const;

    const Options &options_;
    Verdict overall_ = Verdict::ok;
    int64_t n_results_ = 0, n_tensors_ = 0, n_outside_ = 0, n_errors_ = 0;
    nlohmann::json files_ = nlohmann::json::array();
};

} // namespace replay
