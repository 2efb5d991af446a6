// Threads are put on CPUs of their own, and let go again.
#include "placement.h"

#include <atomic>
#include <doctest/doctest.h>
#include <thread>
#include <unistd.h>

namespace {

cpu_set_t usable_by(pid_t thread) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CHECK(sched_getaffinity(thread, sizeof cpus, &cpus) == 0);
    return cpus;
}

} // namespace

TEST_CASE("placement: the caller and another thread have a CPU each, and all of them afterwards") {
    std::atomic<pid_t> id{0};
    std::atomic<bool> ends{false};
    std::thread other([&] {
        id = gettid();
        id.notify_one();
        ends.wait(false);
    });
    id.wait(0);
    const cpu_set_t before = usable_by(0);
    if (CPU_COUNT(&before) >= 2) {
        const bench::Placement placement;
        const cpu_set_t mine = usable_by(0), its = usable_by(id);
        CHECK(CPU_COUNT(&mine) == 1);
        CHECK(CPU_COUNT(&its) == 1);
        CHECK(!CPU_EQUAL(&mine, &its));
    }
    const cpu_set_t mine = usable_by(0), its = usable_by(id);
    CHECK(CPU_EQUAL(&mine, &before));
    CHECK(CPU_EQUAL(&its, &before));
    ends = true;
    ends.notify_one();
    other.join();
}
