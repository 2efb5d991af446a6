// Linux lists a process's threads in /proc, and takes an affinity for each of them. What it refuses stays as it was.
#include "placement.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace bench {

namespace {

std::vector<pid_t> other_threads() {
    std::vector<pid_t> threads;
    std::error_code ignored;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/task", ignored)) {
        const pid_t thread = std::stoi(entry.path().filename());
        if (thread != gettid()) threads.push_back(thread);
    }
    std::sort(threads.begin(), threads.end());
    return threads;
}

void put(pid_t thread, int cpu) {
    cpu_set_t only;
    CPU_ZERO(&only);
    CPU_SET(cpu, &only);
    sched_setaffinity(thread, sizeof only, &only);
}

} // namespace

Placement::Placement() {
    CPU_ZERO(&usable_);
    sched_getaffinity(0, sizeof usable_, &usable_);
    std::vector<int> cpus;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &usable_)) cpus.push_back(cpu);
    if (cpus.size() < 2) return;
    put(0, cpus[0]);
    size_t n = 0;
    for (const pid_t thread : other_threads()) put(thread, cpus[1 + n++ % (cpus.size() - 1)]);
}

Placement::~Placement() {
    sched_setaffinity(0, sizeof usable_, &usable_);
    for (const pid_t thread : other_threads()) sched_setaffinity(thread, sizeof usable_, &usable_);
}

} // namespace bench
