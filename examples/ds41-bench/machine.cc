// Reads /proc/cpuinfo and the process's CPU mask.
#include "machine.h"

#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <fstream>
#include <thread>

namespace bench {

std::string cpu_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        const size_t value = line.find(": ");
        if (line.starts_with("model name") && value != std::string::npos) return line.substr(value + 2);
    }
    utsname names = {};
    return uname(&names) == 0 ? names.machine : "unknown";
}

int n_usable_cpus() {
    cpu_set_t usable;
    CPU_ZERO(&usable);
    if (sched_getaffinity(0, sizeof(usable), &usable) == 0) return std::max(CPU_COUNT(&usable), 1);
    return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1); // more CPUs than the mask holds
}

} // namespace bench
