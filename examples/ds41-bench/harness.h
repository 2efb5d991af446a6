// Measures contestants against each other. Machines wander by more than what is to be seen, so everything is relative:
// in each round every contestant runs once, rounds begin with another one each time, and what counts is the median over
// rounds of the ratio within a round. Knows nothing of what runs.
#pragma once

#include "probe.h"
#include "statistics.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace bench {

struct Contestant {
    std::string name;

    /// What is timed. `turn` is another number each time, over all contestants of the case: a contestant that reads
    /// weights takes copy `turn % n_copies`, so that no run finds in a cache what the one before it read.
    std::function<void(uint64_t turn)> run;
    std::function<void()> before = nullptr; ///< Right before each run, not timed. May be empty.
    std::function<void()> after = nullptr;  ///< Right after each run, not timed. May be empty.

    uint64_t bytes = 0;     ///< That one run has to read; 0: not told.
    uint64_t flops = 0;     ///< That one run has to do; 0: not told.
    int threads = 1;        ///< Told in the record.
    bool cpu_bound = false; ///< See was_preempted().
};

/// A comparison. The floor is what no contestant can beat by much (a plain read of the same bytes); the baseline is
/// what the others are to be compared with. Either may be missing ("") and both may be the same.
struct Case {
    std::string mode;
    std::string name;    ///< Shape or circumstances: what tells it from the other cases of its mode.
    std::string backend; ///< Of the library; "" where it takes no part.
    std::string floor, baseline;
    std::string note; ///< A sentence for the reader; may be empty.
    std::vector<Contestant> contestants;
};

struct Limits {
    double seconds = 5; ///< A round begins before they are over. Untimed work counts too.
    int64_t rounds = 0; ///< Exactly as many; 0: as many as the seconds allow, kMinRounds at least.
};

constexpr int64_t kMinRounds = 3; ///< Fewer make no median.

struct Result {
    std::optional<Summary> seconds; ///< Of one run; nothing when all samples were dropped.
    /// Time of the floor over time of this one: 1 is as fast as the floor. Nothing without a common round.
    std::optional<Summary> floor_ratio;
    /// Time of the baseline over time of this one: 2 is twice as fast.
    std::optional<Summary> baseline_ratio;
    int64_t n_kept = 0, n_dropped = 0;
};

/// Runs every contestant once untimed and then the rounds. Results are in the order of the contestants. What a
/// contestant throws passes through.
std::vector<Result> run_case(const Case &compared, const Limits &limits, const Probe &probe = read_process);

} // namespace bench
