// Formats results; judges only in so far as one tensor outside makes its file, and one file the whole, "outside".
#include "report.h"

#include <algorithm>
#include <cstdio>

namespace replay {

namespace {

bool inside(const Record &record) {
    return record.result.verdict == "ok" || record.result.verdict == "exception";
}

int64_t count_outside(const ModeResult &result) {
    return std::count_if(result.records.begin(), result.records.end(), [](const Record &r) { return !inside(r); });
}

std::string in_hex(uint64_t value) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
    return text;
}

nlohmann::json to_json(const Record &record) {
    const Comparison &result = record.result;
    nlohmann::json json = {{"step", record.step},
                           {"start_pos", record.start_pos},
                           {"layer", record.layer},
                           {"tensor", record.tensor},
                           {"n", result.n},
                           {"max_abs", result.max_abs},
                           {"max_rel", result.max_rel},
                           {"differing", result.differing},
                           {"outside", result.outside},
                           {"left_out", result.left_out},
                           {"verdict", result.verdict}};
    if (!result.note.empty()) json["note"] = result.note;
    return json;
}

} // namespace

const char *to_text(Verdict verdict) {
    return verdict == Verdict::ok ? "ok" : verdict == Verdict::outside ? "outside" : "error";
}

void Report::add(const std::string &path, const Case &replayed, size_t mode, bool first, const ModeResult &result) {
    const int64_t n_outside = count_outside(result);
    const Verdict verdict = n_outside ? Verdict::outside : Verdict::ok;
    overall_ = std::max(overall_, verdict);
    ++n_results_;
    n_tensors_ += static_cast<int64_t>(result.records.size());
    n_outside_ += n_outside;
    if (!options_.json) {
        print(replayed, mode, first, result, verdict);
        return;
    }
    nlohmann::json records = nlohmann::json::array();
    for (const Record &record : result.records) records.push_back(to_json(record));
    nlohmann::json file = {{"file", path},
                           {"case", replayed.name},
                           {"mode", replayed.modes[mode].name},
                           {"backend", result.backend},
                           {"topk", result.topk},
                           {"chunk", options_.run.chunk},
                           {"threads", options_.run.threads},
                           {"fingerprint", in_hex(result.fingerprint)},
                           {"records", std::move(records)},
                           {"verdict", to_text(verdict)}};
    if (first) {
        file["not_compared"] = replayed.not_compared;
        file["n_refslot"] = replayed.n_refslot;
    }
    files_.push_back(std::move(file));
}

void Report::print(const Case &replayed, size_t mode, bool first, const ModeResult &result, Verdict verdict) const {
    const std::string chunks =
        options_.run.chunk ? "prefill in chunks of " + std::to_string(options_.run.chunk) : "whole prefill";
    const std::string title = replayed.name + ", mode " + replayed.modes[mode].name + ", backend " + result.backend +
                              ", top-k " + result.topk + ", " + chunks;
    std::printf("%s\n%5s %7s %6s  %-22s %8s %10s %10s %8s %8s  %s\n", title.c_str(), "step", "pos", "layer", "tensor",
                "n", "max abs", "max rel", "outside", "left out", "verdict");
    for (const Record &record : result.records) {
        const Comparison &r = record.result;
        std::printf("%5zu %7lld %6d  %-22s %8lld %10.3e %10.3e %8lld %8lld  %s%s%s\n", record.step,
                    static_cast<long long>(record.start_pos), static_cast<int>(record.layer), record.tensor.c_str(),
                    static_cast<long long>(r.n), r.max_abs, r.max_rel, static_cast<long long>(r.outside),
                    static_cast<long long>(r.left_out), r.verdict.c_str(), r.note.empty() ? "" : ": ", r.note.c_str());
    }
    std::string rest;
    const auto n_empty =
        std::count_if(result.records.begin(), result.records.end(), [](const Record &r) { return r.result.n == 0; });
    if (n_empty) rest += "; " + std::to_string(n_empty) + " left out whole";
    if (first && !replayed.not_compared.empty()) {
        rest += "; not compared, since unknown or of a layer or step that was not run:";
        for (const std::string &name : replayed.not_compared) rest += " " + name;
    }
    if (first && replayed.n_refslot)
        rest += "; " + std::to_string(replayed.n_refslot) + " refslot tensors not compared";
    std::printf("%s: %s: %lld of %zu tensors outside%s; fingerprint %s\n\n", title.c_str(), to_text(verdict),
                static_cast<long long>(count_outside(result)), result.records.size(), rest.c_str(),
                in_hex(result.fingerprint).c_str());
    std::fflush(stdout);
}

void Report::add_error(const std::string &path, const std::string &name, const std::string &message) {
    overall_ = Verdict::error;
    ++n_errors_;
    std::fprintf(stderr, "ds41-replay: %s: %s\n", path.c_str(), message.c_str());
    files_.push_back({{"file", path},
                      {"case", name},
                      {"mode", ""},
                      {"backend", options_.run.backend},
                      {"chunk", options_.run.chunk},
                      {"records", nlohmann::json::array()},
                      {"verdict", to_text(Verdict::error)},
                      {"error", message}});
}

void Report::finish() {
    if (options_.json) {
        const nlohmann::json document = {{"tool", "ds41-replay"},
                                         {"library", ds41_version()},
                                         {"files", std::move(files_)},
                                         {"verdict", to_text(overall_)}};
        // A name that is no UTF-8 is shown with replacement characters rather than refused.
        const auto replace = nlohmann::json::error_handler_t::replace;
        std::printf("%s\n", document.dump(1, ' ', false, replace).c_str());
        return;
    }
    std::printf("%s: %lld of %lld tensors outside in %lld runs; %lld files could not be run\n", to_text(overall_),
                static_cast<long long>(n_outside_), static_cast<long long>(n_tensors_),
                static_cast<long long>(n_results_), static_cast<long long>(n_errors_));
}

} // namespace replay
