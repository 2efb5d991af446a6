// The floor of everything that is bound by memory: reads bytes once, with wide loads, and does nothing with them that
// would take time.
#pragma once

#include "team.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace bench {

/// Threads that share a read.
class PlainReader {
public:
    /// @param n_threads  The caller's included.
    explicit PlainReader(int n_threads);

    /// Read every byte once. Returns the exclusive or of all 64-bit words, the last one filled up with zeros: whoever
    /// left out a byte, or read one twice, would get another value.
    uint64_t read(std::span<const std::byte> bytes);

private:
    std::vector<uint64_t> results_; ///< By thread.
    Team team_;
};

} // namespace bench
