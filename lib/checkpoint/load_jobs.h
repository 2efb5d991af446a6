// The reading of matrices: chunks of rows from files into memory, on several threads, with progress and cancellation.
#pragma once

#include "backend/memory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/expand.h"

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace ds41 {

// A matrix on its way.
struct MatrixLoad {
    const PlacedTensor *tensor;
    Conversion conversion;
    std::uint8_t *target;             // in `memory`
    std::vector<std::uint8_t> scales; // of an F8_E4M3 matrix that is expanded
    std::atomic<std::uint64_t> n_rounded{0};

    MatrixLoad(const PlacedTensor *of, Conversion to, std::uint8_t *into) : tensor(of), conversion(to), target(into) {}
};

class LoadJobs {
public:
    LoadJobs(const Checkpoint &checkpoint, const Memory &memory, const ds41_load_options &options,
             std::uint64_t n_bytes_total)
        : checkpoint_(checkpoint), memory_(memory), options_(options), n_total_(n_bytes_total) {}

    // Counts bytes that were read, or left in the mapping, and tells the caller. On the caller's thread. Throws
    // CANCELLED.
    void advance(std::uint64_t n_bytes, const std::string &tensor);

    // Read a small tensor whole, and count it. On the caller's thread.
    std::vector<std::uint8_t> read_whole(const FoundTensor &tensor);

    // Fill all targets. Throws the first failure, when all threads have ended.
    void run(std::span<const std::unique_ptr<MatrixLoad>> matrices);

private:
    struct Chunk {
        MatrixLoad *matrix;
        std::int64_t first_row, n_rows;
        FileRange range;
    };
    struct Buffers {
        std::vector<std::uint8_t> source, target;
        std::vector<float> values;
    };

    int count_threads() const;
    void work(bool reports);
    void load_chunk(const Chunk &chunk, Buffers &buffers);
    void ask_for(const Chunk &chunk) const noexcept;
    void tell(const std::string &tensor);

    const Checkpoint &checkpoint_;
    const Memory &memory_;
    const ds41_load_options &options_;
    std::uint64_t n_total_;
    std::atomic<std::uint64_t> n_done_{0};
    std::vector<Chunk> chunks_;
    std::atomic<std::size_t> next_{0};
    std::atomic<bool> stop_{false};
    std::mutex mutex_; // of failure_
    std::exception_ptr failure_;
};

} // namespace ds41
