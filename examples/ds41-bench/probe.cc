// Linux's view of the process: monotonic clock, CPU clock, getrusage.
#include "probe.h"

#include <sys/resource.h>

#include <ctime>

namespace bench {

namespace {

double seconds_of(clockid_t clock) {
    timespec time = {};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

} // namespace

Reading read_process(Edge edge) {
    Reading reading = {};
    rusage usage = {};
    if (edge == Edge::end) reading.wall_s = seconds_of(CLOCK_MONOTONIC);
    reading.cpu_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    getrusage(RUSAGE_SELF, &usage);
    reading.n_preemptions = usage.ru_nivcsw;
    if (edge == Edge::begin) reading.wall_s = seconds_of(CLOCK_MONOTONIC);
    return reading;
}

bool was_preempted(const Reading &begin, const Reading &end, bool cpu_bound) {
    const double wall_s = end.wall_s - begin.wall_s, cpu_s = end.cpu_s - begin.cpu_s;
    if (static_cast<double>(end.n_preemptions - begin.n_preemptions) > wall_s / 0.020) return true;
    // Reading the clocks takes some microseconds, which only one of the two counts.
    return cpu_bound && cpu_s < 0.95 * wall_s - 5e-6;
}

} // namespace bench
