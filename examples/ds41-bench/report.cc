// Formats results. A value that is not there (no sample was kept, bytes were not told) is "-" in tables, null in JSON.
#include "report.h"

#include "machine.h"

#include <ds41/ds41.h>

#include <cstdio>
#include <optional>
#include <utility>

namespace bench {

namespace {

/// Bytes or operations a second, in units of 10^9.
std::optional<double> rate(uint64_t amount, const std::optional<Summary> &seconds) {
    if (amount == 0 || !seconds) return std::nullopt;
    return static_cast<double>(amount) / seconds->median * 1e-9;
}

nlohmann::json to_json(const std::optional<double> &value) {
    return value ? nlohmann::json(*value) : nlohmann::json();
}

/// An amount of 0 has not been told.
nlohmann::json or_null(uint64_t amount) {
    return amount ? nlohmann::json(amount) : nlohmann::json();
}

nlohmann::json to_json(const std::optional<Summary> &summary, double unit = 1) {
    if (!summary) return nullptr;
    return {
        {"median", summary->median * unit}, {"q1", summary->q1 * unit}, {"q3", summary->q3 * unit}, {"n", summary->n}};
}

template <class... Values> std::string format(const char *pattern, Values... values) {
    char text[128];
    std::snprintf(text, sizeof(text), pattern, values...);
    return text;
}

std::string to_text(const std::optional<double> &value) {
    return value ? format("%.2f", *value) : "-";
}

std::string ratio_text(const std::optional<Summary> &ratio) {
    return ratio ? format("%.3f (%.3f-%.3f)", ratio->median, ratio->q1, ratio->q3) : "-";
}

std::string median_text(const std::optional<Summary> &seconds) {
    return seconds ? format("%.1f", seconds->median * 1e6) : "-";
}

std::string spread_text(const std::optional<Summary> &seconds) {
    return seconds ? format("%.1f %%", (seconds->q3 - seconds->q1) / seconds->median * 100) : "-";
}

nlohmann::json to_json(const Case &compared, const Contestant &contestant, const Result &result) {
    return {{"mode", compared.mode},
            {"case", compared.name},
            {"contestant", contestant.name},
            {"backend", compared.backend},
            {"threads", contestant.threads},
            {"us", to_json(result.seconds, 1e6)},
            {"bytes", or_null(contestant.bytes)},
            {"flops", or_null(contestant.flops)},
            {"gb_per_s", to_json(rate(contestant.bytes, result.seconds))},
            {"gflop_per_s", to_json(rate(contestant.flops, result.seconds))},
            {"floor", compared.floor},
            {"floor_ratio", to_json(result.floor_ratio)},
            {"baseline", compared.baseline},
            {"baseline_ratio", to_json(result.baseline_ratio)},
            {"n_kept", result.n_kept},
            {"n_dropped", result.n_dropped},
            {"note", compared.note}};
}

void print_head() {
    std::printf("  %-28s %7s %12s %8s %9s %9s  %-21s  %-21s %5s %7s\n", "", "threads", "median us", "spread", "GB/s",
                "GFLOP/s", "of floor", "to baseline", "kept", "dropped");
}

void print_row(const Case &compared, const Contestant &contestant, const Result &result) {
    const bool is_floor = contestant.name == compared.floor, is_baseline = contestant.name == compared.baseline;
    std::printf("  %-28s %7d %12s %8s %9s %9s  %-21s  %-21s %5lld %7lld\n", contestant.name.c_str(), contestant.threads,
                median_text(result.seconds).c_str(), spread_text(result.seconds).c_str(),
                to_text(rate(contestant.bytes, result.seconds)).c_str(),
                to_text(rate(contestant.flops, result.seconds)).c_str(),
                is_floor ? "floor" : ratio_text(result.floor_ratio).c_str(),
                is_baseline ? "baseline" : ratio_text(result.baseline_ratio).c_str(),
                static_cast<long long>(result.n_kept), static_cast<long long>(result.n_dropped));
}

// ---- Costs that are counted.

/// What was counted or not for each byte that there has to be.
std::optional<double> to_floor(uint64_t bytes, const StageCost &cost) {
    if (cost.floor_bytes == 0) return std::nullopt;
    return static_cast<double>(bytes) / static_cast<double>(cost.floor_bytes);
}

nlohmann::json to_json(const StageCost &cost) {
    return {{"stage", cost.stage},
            {"launches", cost.launches},
            {"requested_bytes", cost.requested_bytes},
            {"distinct_bytes", cost.distinct_bytes},
            {"floor_bytes", cost.floor_bytes},
            {"requested_to_floor", to_json(to_floor(cost.requested_bytes, cost))},
            {"distinct_to_floor", to_json(to_floor(cost.distinct_bytes, cost))}};
}

nlohmann::json to_json(const HostCost &cost) {
    return {{"launches", cost.launches},
            {"graph_launches", cost.graph_launches},
            {"uploads", cost.uploads},
            {"uploaded_bytes", cost.uploaded_bytes},
            {"synchronisations", cost.synchronisations},
            {"requested_bytes", cost.requested_bytes}};
}

nlohmann::json to_json(const std::optional<HostCost> &cost) {
    return cost ? to_json(*cost) : nlohmann::json();
}

nlohmann::json to_json(const StepCost &cost) {
    nlohmann::json stages = nlohmann::json::array();
    for (const StageCost &stage : cost.stages) stages.push_back(to_json(stage));
    return {{"mode", "step"},
            {"case", cost.name},
            {"backend", cost.backend},
            {"kind", cost.kind},
            {"layer", cost.layer},
            {"format", cost.format},
            {"context", cost.context},
            {"rows", cost.n_rows},
            {"scale", cost.scale},
            {"stages", std::move(stages)},
            {"all", to_json(cost.all())},
            {"prep", to_json(cost.prep)},
            {"body", to_json(cost.body)},
            {"captured_prep", to_json(cost.captured_prep)},
            {"captured", to_json(cost.captured)}};
}

double in_mb(uint64_t n_bytes) {
    return static_cast<double>(n_bytes) * 1e-6;
}

void print_row(const StageCost &cost) {
    std::printf("  %-16s %8llu %13.3f %13.3f %13.3f %10s %10s\n", cost.stage.c_str(),
                static_cast<unsigned long long>(cost.launches), in_mb(cost.requested_bytes), in_mb(cost.distinct_bytes),
                in_mb(cost.floor_bytes), to_text(to_floor(cost.requested_bytes, cost)).c_str(),
                to_text(to_floor(cost.distinct_bytes, cost)).c_str());
}

void print_row(const char *name, const HostCost &cost) {
    const auto number = [](uint64_t count) { return static_cast<unsigned long long>(count); };
    std::printf("  %-16s %8llu %13.3f %13llu %13llu %10llu %10llu\n", name, number(cost.launches),
                in_mb(cost.requested_bytes), number(cost.graph_launches), number(cost.uploads),
                number(cost.uploaded_bytes), number(cost.synchronisations));
}

} // namespace

Report::Report(bool json) : json_(json), cpu_(cpu_name()) {}

void Report::begin_table(const std::string &mode, const std::string &name) {
    if (!std::exchange(is_begun_, true))
        std::printf("ds41-bench %d.%d.%d, libds41 %s, %s, %d CPUs\n", DS41_VERSION_MAJOR, DS41_VERSION_MINOR,
                    DS41_VERSION_PATCH, ds41_version(), cpu_.c_str(), n_usable_cpus());
    std::printf("\n%s: %s", mode.c_str(), name.c_str());
}

void Report::add(const Case &compared, const std::vector<Result> &results) {
    if (!json_) {
        begin_table(compared.mode, compared.name);
        std::printf("%s%s\n", compared.backend.empty() ? "" : ", backend ", compared.backend.c_str());
        print_head();
    }
    for (size_t i = 0; i < results.size(); ++i) {
        const Contestant &contestant = compared.contestants[i];
        if (results[i].n_kept == 0)
            std::fprintf(stderr, "ds41-bench: %s, %s: every sample of '%s' was preempted; the machine is busy\n",
                         compared.mode.c_str(), compared.name.c_str(), contestant.name.c_str());
        if (json_) {
            records_.push_back(to_json(compared, contestant, results[i]));
            records_.back()["cpu"] = cpu_;
            records_.back()["library"] = ds41_version();
        } else {
            print_row(compared, contestant, results[i]);
        }
    }
    if (json_) return;
    if (!compared.note.empty()) std::printf("  %s\n", compared.note.c_str());
    std::fflush(stdout);
}

void Report::add(const StepCost &cost) {
    if (json_) {
        records_.push_back(to_json(cost));
        records_.back()["cpu"] = cpu_;
        records_.back()["library"] = ds41_version();
        return;
    }
    begin_table("step", cost.name);
    std::printf(", backend %s\n  %-16s %8s %13s %13s %13s %10s %10s\n", cost.backend.c_str(), "", "launches",
                "requested MB", "distinct MB", "floor MB", "requested", "distinct");
    for (const StageCost &stage : cost.stages) print_row(stage);
    print_row(cost.all());
    std::printf("  %-16s %8s %13s %13s %13s %10s %10s\n", "", "launches", "requested MB", "of graphs", "uploads",
                "bytes", "waits");
    print_row("prep", cost.prep);
    print_row("layer", cost.body);
    if (cost.captured_prep) print_row("prep for graph", *cost.captured_prep);
    if (cost.captured) print_row("graph", *cost.captured);
    std::fflush(stdout);
}

void Report::add_times(const StepCost &cost) {
    std::vector<StageCost> rows = cost.stages;
    rows.push_back(cost.all());
    const auto floor = [&](const StageCost &stage) {
        return static_cast<double>(stage.floor_bytes) * 1e-3 / cost.copied_gbs;
    };
    if (json_) {
        nlohmann::json stages = nlohmann::json::array();
        for (const StageCost &stage : rows)
            stages.push_back({{"stage", stage.stage},
                              {"microseconds", stage.microseconds},
                              {"floor_microseconds", floor(stage)},
                              {"floor_bytes", stage.floor_bytes}});
        records_.push_back({{"mode", "step times"},
                            {"case", cost.name},
                            {"backend", cost.backend},
                            {"kind", cost.kind},
                            {"layer", cost.layer},
                            {"format", cost.format},
                            {"context", cost.context},
                            {"rows", cost.n_rows},
                            {"copied_gbs", cost.copied_gbs},
                            {"stages", std::move(stages)},
                            {"cpu", cpu_},
                            {"library", ds41_version()}});
        return;
    }
    begin_table("step times", cost.name);
    std::printf(", backend %s, copies at %.0f GB/s\n  %-16s %10s %10s %10s\n", cost.backend.c_str(), cost.copied_gbs,
                "", "us", "floor us", "ratio");
    for (const StageCost &stage : rows)
        std::printf("  %-16s %10.2f %10.2f %10.2f\n", stage.stage.c_str(), stage.microseconds, floor(stage),
                    stage.microseconds / floor(stage));
    std::fflush(stdout);
}

void Report::skip(const std::string &mode, const std::string &name, const std::string &reason) {
    not_measured_.push_back({{"mode", mode}, {"case", name}, {"reason", reason}});
    if (json_) return;
    begin_table(mode, name);
    std::printf(": not measured: %s\n", reason.c_str());
    std::fflush(stdout);
}

void Report::finish() {
    if (!json_) return;
    const nlohmann::json document = {
        {"tool", "ds41-bench"},      {"library", ds41_version()},      {"cpu", cpu_},
        {"n_cpus", n_usable_cpus()}, {"records", std::move(records_)}, {"not_measured", std::move(not_measured_)}};
    // A path that is no UTF-8 is shown with replacement characters rather than refused.
    std::printf("%s\n", document.dump(1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

} // namespace bench
