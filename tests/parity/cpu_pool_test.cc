// The cpu backend's threads: every item once, no two at once on one slot, short work stays on the caller's thread.
#include "backend/cpu/pool.h"

#include <atomic>
#include <doctest/doctest.h>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

using namespace ds41;

namespace {

constexpr std::int64_t kDear = 1 << 30; // cost of an item that is worth any thread

// Every item is taken once, and a slot by one thread at a time.
void check_run(cpu::Pool &pool, std::int64_t n_items) {
    std::vector<int> times(static_cast<std::size_t>(n_items), 0);
    std::vector<std::atomic<int>> busy(static_cast<std::size_t>(pool.n_slots()));
    std::atomic<bool> apart{true};
    pool.run(n_items, kDear, [&](int slot, std::int64_t item) {
        std::atomic<int> &users = busy.at(static_cast<std::size_t>(slot));
        if (users.fetch_add(1) != 0) apart = false;
        ++times[static_cast<std::size_t>(item)];
        users.fetch_sub(1);
    });
    CHECK(apart);
    CHECK(times == std::vector<int>(static_cast<std::size_t>(n_items), 1));
}

StageOptions with_threads(int n) {
    StageOptions options;
    options.n_threads = n;
    return options;
}

struct Host {
    int n_calls = 0;
    int most = 0;
};

void in_reverse(std::int32_t n, ds41_task_fn task, void *task_arg, void *user) {
    Host &host = *static_cast<Host *>(user);
    ++host.n_calls;
    host.most = std::max(host.most, n);
    for (std::int32_t i = n; i-- > 0;) task(task_arg, i);
}

void in_threads(std::int32_t n, ds41_task_fn task, void *task_arg, void *user) {
    ++static_cast<Host *>(user)->n_calls;
    std::vector<std::thread> threads;
    for (std::int32_t i = 0; i < n; ++i) threads.emplace_back(task, task_arg, i);
    for (std::thread &thread : threads) thread.join();
}

} // namespace

TEST_CASE("cpu pool: every item once, over and over, after sleeping too") {
    for (const int n_threads : {1, 2, 3, 5}) {
        CAPTURE(n_threads);
        for (const bool pinned : {false, true}) {
            StageOptions options = with_threads(n_threads);
            options.pin_threads = pinned;
            cpu::Pool pool(options);
            CHECK(pool.n_slots() == n_threads);
            pool.start();
            pool.start(); // once is enough
            for (int round = 0; round < 200; ++round) check_run(pool, round % 17);
            std::this_thread::sleep_for(std::chrono::milliseconds(5)); // asleep by now
            check_run(pool, 1000);
        }
    }
}

TEST_CASE("cpu pool: threads that never had work, and none that were started, end") {
    cpu::Pool idle(with_threads(4));
    idle.start();
    cpu::Pool never(with_threads(4));
    CHECK(cpu::Pool(with_threads(0)).n_slots() >= 1);
}

TEST_CASE("cpu pool: short work stays on the caller's thread, long work does not") {
    cpu::Pool pool(with_threads(3));
    pool.start();
    std::set<std::thread::id> seen;
    std::mutex mutex;
    const auto note = [&](int, std::int64_t) {
        const std::lock_guard lock(mutex);
        seen.insert(std::this_thread::get_id());
    };
    for (int round = 0; round < 50; ++round) pool.run(100, 10, note);
    CHECK(seen == std::set{std::this_thread::get_id()});
    // Three items that wait for one another need three threads.
    std::atomic<int> n_here{0};
    pool.run(3, kDear, [&](int, std::int64_t) {
        ++n_here;
        while (n_here < 3) std::this_thread::yield();
    });
    CHECK(n_here == 3);
}

TEST_CASE("cpu pool: a caller's parallel-for in any order, and on threads of its own") {
    for (const ds41_parallel_fn parallel : {in_reverse, in_threads}) {
        Host host;
        StageOptions options = with_threads(4);
        options.parallel = parallel;
        options.parallel_user = &host;
        cpu::Pool pool(options);
        pool.start();
        for (int n = 0; n < 40; ++n) check_run(pool, n);
        CHECK(host.n_calls == 38); // no item and one item need no other thread
        CHECK(host.most <= 4);
    }
}
