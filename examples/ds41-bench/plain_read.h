// The floor of everything that is bound by memory: reads bytes once, with wide loads, and does nothing with them that
// would take time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

namespace bench {

/// Threads that share a read. They sleep between reads, so that other contestants have the CPUs to themselves.
class PlainReader {
public:
    /// @param n_threads  The caller's included.
    explicit PlainReader(int n_threads);
    ~PlainReader();
    PlainReader(const PlainReader &) = delete;
    PlainReader &operator=(const PlainReader &) = delete;

    /// Read every byte once. Returns the exclusive or of all 64-bit words, the last one filled up with zeros: whoever
    /// left out a byte, or read one twice, would get another value.
    uint64_t read(std::span<const std::byte> bytes);

private:
    void serve(size_t thread);
    void end_threads();
    std::span<const std::byte> share(size_t thread) const;

    std::span<const std::byte> bytes_; ///< Of the read in flight.
    std::atomic<uint32_t> n_reads_{0}; ///< Wakes the threads.
    std::atomic<uint32_t> n_busy_{0};  ///< Threads that have not finished; wakes the caller.
    std::atomic<bool> ends_{false};
    std::vector<uint64_t> results_; ///< By thread.
    std::vector<std::thread> threads_;
};

} // namespace bench
