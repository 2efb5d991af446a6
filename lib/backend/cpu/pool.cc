// Starting, pinning, waking and stopping of a context's threads.
#include "backend/cpu/pool.h"

#include "error.h"

#include <algorithm>
#include <system_error>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif
#include <csignal>

namespace ds41::cpu {

namespace {

// Some 20 us: longer than the single-threaded steps between two products take, shorter than falling asleep and waking.
constexpr int kSpins = 4000;

void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

// Spin, then sleep, until `value` is no longer `old`.
void wait_while(const std::atomic<std::uint32_t> &value, std::uint32_t old) noexcept {
    for (int i = 0; i < kSpins; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause();
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
}

// CPUs that this process may use; quotas of a container are not counted.
int usable_cpus() noexcept {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// To the `index`th CPU that the process may use. A wish: a system without it does without.
void pin(std::thread &thread, int index) noexcept {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) == 0) return;
    index %= CPU_COUNT(&set);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &set) || index-- > 0) continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(thread.native_handle(), sizeof one, &one);
        return;
    }
#else
    static_cast<void>(thread);
    static_cast<void>(index);
#endif
}

// Signals of the host are no business of its guest's threads: they start with all of them blocked.
class SignalsBlocked {
public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
    sigset_t before_;
};

} // namespace

Pool::Pool(const StageOptions &options)
    : n_slots_(options.n_threads > 0 ? options.n_threads : usable_cpus()), pin_(options.pin_threads),
      share_all_(options.share_all), parallel_(options.parallel), parallel_user_(options.parallel_user) {}

void Pool::start() {
    if (parallel_ || n_workers_ == n_slots_ - 1) return;
    stopping_ = false;
    workers_ = std::make_unique<Worker[]>(static_cast<std::size_t>(n_slots_ - 1));
    const SignalsBlocked blocked;
    try {
        for (; n_workers_ < n_slots_ - 1; ++n_workers_) {
            Worker &worker = workers_[static_cast<std::size_t>(n_workers_)];
            worker.thread = std::thread([this, &worker, slot = n_workers_ + 1] { work(worker, slot); });
            if (pin_) pin(worker.thread, n_workers_ + 1);
        }
    } catch (const std::system_error &error) {
        const int n_started = n_workers_;
        stop();
        throw Error(DS41_STATUS_OUT_OF_MEMORY, "thread %d of n_threads %d cannot be started: %s", n_started + 2,
                    n_slots_, error.what());
    } catch (...) {
        stop();
        throw;
    }
}

Pool::~Pool() {
    stop();
}

void Pool::stop() noexcept {
    stopping_ = true;
    for (int i = 0; i < n_workers_; ++i) {
        Worker &worker = workers_[static_cast<std::size_t>(i)];
        worker.signal.fetch_add(1, std::memory_order_release);
        worker.signal.notify_one();
        worker.thread.join();
    }
    n_workers_ = 0;
}

void Pool::run_slots(int n, Task task, void *arg) {
    if (parallel_) {
        parallel_(n, task, arg, parallel_user_);
        return;
    }
    task_ = task;
    arg_ = arg;
    n_running_.store(static_cast<std::uint32_t>(n - 1), std::memory_order_relaxed);
    for (int i = 0; i < n - 1; ++i) {
        Worker &worker = workers_[static_cast<std::size_t>(i)];
        worker.signal.fetch_add(1, std::memory_order_release);
        worker.signal.notify_one(); // a system call only where the worker sleeps
    }
    task(arg, 0);
    for (std::uint32_t left; (left = n_running_.load(std::memory_order_acquire)) != 0;) wait_while(n_running_, left);
}

void Pool::work(Worker &worker, int slot) noexcept {
    for (std::uint32_t seen = 0;; ++seen) {
        wait_while(worker.signal, seen);
        if (stopping_) return;
        task_(arg_, slot);
        // The last one out wakes the caller, who may be asleep.
        if (n_running_.fetch_sub(1, std::memory_order_acq_rel) == 1) n_running_.notify_one();
    }
}

} // namespace ds41::cpu
