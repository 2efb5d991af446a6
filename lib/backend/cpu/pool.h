// Threads of one context, or the caller's in their place. run() gives tasks to as many as they are worth, and returns
// when all are done. Nothing is allocated after construction and nothing locks: workers spin for a moment, then sleep
// on a futex.
//
// Of our own because pthreadpool, the one that Debian has, does not pin threads, does not take a caller's parallel-for,
// and comes as a shared library only, which a library to be embedded would hand on to its users.
#pragma once

#include "backend/stages.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

namespace ds41::cpu {

class Pool {
public:
    explicit Pool(const StageOptions &options); // starts nothing yet
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    // Start the threads, unless they run. Throws OUT_OF_MEMORY where the system gives none, and then none runs.
    void start();

    // Most tasks that run at once.
    int n_slots() const { return n_slots_; }

    // f(slot, item) for each item of [0, n_items), slots being numbers below n_slots() of which no two run at once with
    // the same. `cost` of one item, in bytes read or operations of eight lanes, decides how many threads are woken.
    // Items are claimed one by one, by each thread in ascending order from a stretch of its own, which it has memory
    // fetch ahead of it, then from the others'. What they compute must not depend on who takes them.
    template <typename F> void run(std::int64_t n_items, std::int64_t cost, F &&f) {
        const std::int64_t useful = share_all_ ? n_items : n_items * cost / kWorthWaking + 1;
        const int n = static_cast<int>(std::min({std::int64_t{n_slots_}, n_items, useful}));
        if (n <= 1) {
            for (std::int64_t i = 0; i < n_items; ++i) f(0, i);
            return;
        }
        Work<F> work(f, n_items, n);
        run_slots(
            n, [](void *arg, std::int32_t slot) { static_cast<Work<F> *>(arg)->take(slot); }, &work);
    }

private:
    // Waking a thread takes it some 20 us before it works, in which this one reads a quarter of a megabyte.
    static constexpr std::int64_t kWorthWaking = 256 * 1024;

    using Task = void (*)(void *arg, std::int32_t slot);

    template <typename F> class Work {
    public:
        Work(F &f, std::int64_t n_items, int n_threads) : f_(f), n_stretches_(std::min(n_threads, kMostStretches)) {
            for (int i = 0; i < n_stretches_; ++i) {
                stretches_[i].next.store(n_items * i / n_stretches_, std::memory_order_relaxed);
                stretches_[i].end = n_items * (i + 1) / n_stretches_;
            }
        }
        void take(std::int32_t slot) {
            for (int i = 0; i < n_stretches_; ++i) {
                Stretch &stretch = stretches_[(slot + i) % n_stretches_];
                for (std::int64_t item; (item = stretch.next.fetch_add(1, std::memory_order_relaxed)) < stretch.end;)
                    f_(slot, item);
            }
        }

    private:
        static constexpr int kMostStretches = 64;
        struct alignas(64) Stretch {
            std::atomic<std::int64_t> next;
            std::int64_t end;
        };
        F &f_;
        int n_stretches_;
        Stretch stretches_[kMostStretches];
    };

    // On a line of its own, so that waiting for one worker does not slow another.
    struct alignas(64) Worker {
        std::atomic<std::uint32_t> signal{0}; // counts up: a task is there, or with stopping_ the end
        std::thread thread;
    };

    void run_slots(int n, Task task, void *arg);
    void work(Worker &worker, int slot) noexcept;
    void stop() noexcept;

    int n_slots_;
    bool pin_, share_all_;
    ds41_parallel_fn parallel_;
    void *parallel_user_;
    std::unique_ptr<Worker[]> workers_; // slots 1 and up; slot 0 is the caller
    int n_workers_ = 0;
    Task task_ = nullptr;
    void *arg_ = nullptr;
    bool stopping_ = false;
    alignas(64) std::atomic<std::uint32_t> n_running_{0};
};

} // namespace ds41::cpu
