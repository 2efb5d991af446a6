// Threads that share what a contestant does, where the library's own do not: the floor's and the baselines'.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace bench {

/// They sleep between works, so that other contestants have the CPUs to themselves.
class Team {
public:
    /// @param n_threads  The caller's included.
    explicit Team(int n_threads);
    ~Team();
    Team(const Team &) = delete;
    Team &operator=(const Team &) = delete;

    size_t n_threads() const { return threads_.size() + 1; }

    /// work(i) on each thread i of n_threads(), the caller being 0. Returns when all are done.
    void run(const std::function<void(size_t thread)> &work);

    /// The part of n items that is a thread's: part(n, i) up to part(n, i + 1).
    int64_t part(int64_t n, size_t thread) const {
        return n * static_cast<int64_t>(thread) / static_cast<int64_t>(n_threads());
    }

private:
    void serve(size_t thread);
    void end_threads();

    const std::function<void(size_t)> *work_ = nullptr; ///< In flight.
    std::atomic<uint32_t> n_works_{0};                  ///< Wakes the threads.
    std::atomic<uint32_t> n_busy_{0};                   ///< Threads that have not finished; wakes the caller.
    std::atomic<bool> ends_{false};
    std::vector<std::thread> threads_;
};

} // namespace bench
