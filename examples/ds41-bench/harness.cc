// The rounds. A sample that was_preempted() is kept out of all medians, and its round out of the ratios that need it.
#include "harness.h"

#include <algorithm>
#include <stdexcept>

namespace bench {

namespace {

struct Sample {
    double seconds;
    bool dropped;
};

Sample run_once(const Contestant &contestant, uint64_t turn, const Probe &probe) {
    if (contestant.before) contestant.before();
    const Reading begin = probe(Edge::begin);
    contestant.run(turn);
    const Reading end = probe(Edge::end);
    if (contestant.after) contestant.after();
    return {end.wall_s - begin.wall_s, was_preempted(begin, end, contestant.cpu_bound)};
}

/// Index of the contestant of that name, -1 for none.
int64_t index_of(const std::vector<Contestant> &contestants, const std::string &name) {
    if (name.empty()) return -1;
    const auto found = std::find_if(contestants.begin(), contestants.end(),
                                    [&](const Contestant &contestant) { return contestant.name == name; });
    if (found == contestants.end()) throw std::logic_error("no contestant is called '" + name + "'");
    return found - contestants.begin();
}

bool is_over(const Limits &limits, int64_t n_rounds, double elapsed_s) {
    if (limits.rounds > 0) return n_rounds >= limits.rounds;
    return n_rounds >= kMinRounds && elapsed_s >= limits.seconds;
}

} // namespace

std::vector<Result> run_case(const Case &compared, const Limits &limits, const Probe &probe) {
    const std::vector<Contestant> &contestants = compared.contestants;
    const size_t n = contestants.size();
    const int64_t floor = index_of(contestants, compared.floor);
    const int64_t baseline = index_of(contestants, compared.baseline);
    uint64_t turn = 0;
    for (const Contestant &contestant : contestants) run_once(contestant, turn++, probe);

    std::vector<std::vector<std::optional<double>>> seconds(n); // by contestant and round
    const double begin_s = probe(Edge::begin).wall_s;
    int64_t n_rounds = 0;
    for (; !is_over(limits, n_rounds, probe(Edge::end).wall_s - begin_s); ++n_rounds) {
        for (size_t i = 0; i < n; ++i) {
            const size_t who = (i + static_cast<size_t>(n_rounds)) % n;
            const Sample sample = run_once(contestants[who], turn++, probe);
            seconds[who].push_back(sample.dropped ? std::nullopt : std::optional(sample.seconds));
        }
    }

    std::vector<Result> results(n);
    for (size_t i = 0; i < n; ++i) {
        const std::vector<double> kept = present(seconds[i]);
        results[i].n_kept = static_cast<int64_t>(kept.size());
        results[i].n_dropped = n_rounds - results[i].n_kept;
        results[i].seconds = summarize(kept);
        if (floor >= 0) results[i].floor_ratio = summarize_ratios(seconds[static_cast<size_t>(floor)], seconds[i]);
        if (baseline >= 0)
            results[i].baseline_ratio = summarize_ratios(seconds[static_cast<size_t>(baseline)], seconds[i]);
    }
    return results;
}

} // namespace bench
