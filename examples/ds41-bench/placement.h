// Which CPU each thread of the process runs on.
#pragma once

#include <sched.h>

namespace bench {

/**
 * While it lives, threads stay where they are put: the calling one on the first usable CPU, the others that there are
 * when it is made, in the order of their creation, on the other CPUs in turn. So each library's threads, of which the
 * caller's is one, have a CPU each.
 *
 * Left alone, a thread that sleeps between contestants wakes up on the caller's CPU and stays there for milliseconds.
 */
class Placement {
public:
    Placement();
    ~Placement(); ///< All threads may run anywhere again.
    Placement(const Placement &) = delete;
    Placement &operator=(const Placement &) = delete;

private:
    cpu_set_t usable_;
};

} // namespace bench
