// What the clocks say at the edges of a sample, and whether the process had its CPUs to itself in between.
#pragma once

#include <cstdint>
#include <functional>

namespace bench {

struct Reading {
    double wall_s;
    double cpu_s;          ///< Of all threads of the process.
    int64_t n_preemptions; ///< Involuntary context switches of all threads, those that have ended included.
};

enum class Edge { begin, end };

/// Reads the clocks; a test puts its own in place of read_process.
using Probe = std::function<Reading(Edge)>;

/// This process. The wall clock is read last at the beginning and first at the end.
Reading read_process(Edge edge);

/**
 * Whether a sample says more about other processes than about what ran.
 *
 * Of samples up to 20 ms, one preemption spoils all. Longer ones may have one per 20 ms: the kernel's own threads come
 * by a few times a second and leave at once, whereas a process that competes for the CPUs takes them 100 times a second
 * and more (measured on 2 cores: 40 a second in a quiet machine, 250 beside two busy processes).
 *
 * @param cpu_bound  One thread that never waits: its CPU time falls short of wall time only by what others took.
 */
bool was_preempted(const Reading &begin, const Reading &end, bool cpu_bound);

} // namespace bench
