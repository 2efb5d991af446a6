#include "checkpoint/load_jobs.h"

#include "checkpoint/text.h"

#include <algorithm>
#include <thread>

namespace ds41 {

namespace {

// Large enough that a system call and a callback cost nothing beside it, small enough to stay in a core's cache while
// it is expanded and to be shared out evenly.
constexpr std::uint64_t kChunkBytes = 1 << 20;
// Chunks that the system is asked for in advance. 16 MB cover the latency of a disk that gives some GB/s.
constexpr std::size_t kChunksAhead = 16;
constexpr int kMostThreads = 8; // more do not read faster

} // namespace

void LoadJobs::tell(const std::string &tensor) {
    const bool stop = options_.progress && options_.progress(n_done_.load(std::memory_order_relaxed), n_total_,
                                                             tensor.c_str(), options_.progress_user) != 0;
    if (!stop) return;
    stop_.store(true, std::memory_order_relaxed);
    throw Error(DS41_STATUS_CANCELLED, "the progress callback cancelled at %s, %llu of %llu bytes done",
                quoted(tensor).c_str(), static_cast<unsigned long long>(n_done_.load(std::memory_order_relaxed)),
                static_cast<unsigned long long>(n_total_));
}

void LoadJobs::advance(std::uint64_t n_bytes, const std::string &tensor) {
    n_done_.fetch_add(n_bytes, std::memory_order_relaxed);
    tell(tensor);
}

std::vector<std::uint8_t> LoadJobs::read_whole(const FoundTensor &tensor) {
    const CheckpointFile &file = checkpoint_.files()[static_cast<std::size_t>(tensor.range.file)];
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(tensor.range.n_bytes));
    try {
        file.mapping.read(tensor.range.offset, std::as_writable_bytes(std::span(bytes)));
    } catch (const Error &error) {
        throw Error(error.status(), "path %s %s", shortened_path(file.path).c_str(), error.what());
    }
    advance(tensor.range.n_bytes, tensor.name);
    return bytes;
}

int LoadJobs::count_threads() const {
    int n = options_.n_threads;
    if (n == 0) n = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, kMostThreads);
    return static_cast<int>(std::min(static_cast<std::size_t>(n), std::max<std::size_t>(chunks_.size(), 1)));
}

void LoadJobs::run(std::span<const std::unique_ptr<MatrixLoad>> matrices) {
    for (const auto &matrix : matrices) {
        const FoundTensor &weight = *matrix->tensor->weight;
        const std::int64_t rows = weight.shape[0], cols = weight.shape[1];
        const std::uint64_t row_bytes = file_row_bytes(*weight.type, cols);
        const std::uint64_t widest =
            std::max<std::uint64_t>({row_bytes, weight_row_bytes(matrix->conversion.dtype, cols), 1});
        const std::int64_t step = static_cast<std::int64_t>(std::max<std::uint64_t>(kChunkBytes / widest, 1));
        for (std::int64_t row = 0; row < rows; row += step) {
            const std::int64_t n = std::min(step, rows - row);
            chunks_.push_back({matrix.get(),
                               row,
                               n,
                               {weight.range.file, weight.range.offset + static_cast<std::uint64_t>(row) * row_bytes,
                                static_cast<std::uint64_t>(n) * row_bytes}});
        }
    }
    // In the order of the disk.
    std::sort(chunks_.begin(), chunks_.end(), [](const Chunk &a, const Chunk &b) {
        return a.range.file != b.range.file ? a.range.file < b.range.file : a.range.offset < b.range.offset;
    });

    std::vector<std::thread> threads;
    const int n_threads = count_threads();
    threads.reserve(static_cast<std::size_t>(n_threads));
    try {
        while (static_cast<int>(threads.size()) < n_threads - 1) threads.emplace_back([this] { work(false); });
    } catch (const std::exception &) {
        // No more threads, or no memory for one: as many as there are have to do.
    }
    work(true);
    for (std::thread &thread : threads) thread.join();
    if (failure_) std::rethrow_exception(failure_);
    if (!chunks_.empty()) tell(chunks_.back().matrix->tensor->weight->name);
}

void LoadJobs::work(bool reports) {
    try {
        Buffers buffers;
        for (;;) {
            const std::size_t i = next_.fetch_add(1, std::memory_order_relaxed);
            if (i >= chunks_.size() || stop_.load(std::memory_order_relaxed)) return;
            if (i == 0)
                for (std::size_t j = 1; j < std::min(kChunksAhead, chunks_.size()); ++j) ask_for(chunks_[j]);
            if (i + kChunksAhead < chunks_.size()) ask_for(chunks_[i + kChunksAhead]);
            load_chunk(chunks_[i], buffers);
            n_done_.fetch_add(chunks_[i].range.n_bytes, std::memory_order_relaxed);
            // The last word, with all bytes done, comes when all threads have ended.
            if (reports && n_done_.load(std::memory_order_relaxed) < n_total_)
                tell(chunks_[i].matrix->tensor->weight->name);
        }
    } catch (...) {
        stop_.store(true, std::memory_order_relaxed);
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
    }
}

void LoadJobs::ask_for(const Chunk &chunk) const noexcept {
    checkpoint_.files()[static_cast<std::size_t>(chunk.range.file)].mapping.read_ahead(chunk.range.offset,
                                                                                       chunk.range.n_bytes);
}

void LoadJobs::load_chunk(const Chunk &chunk, Buffers &buffers) {
    MatrixLoad &matrix = *chunk.matrix;
    const FoundTensor &weight = *matrix.tensor->weight;
    const std::int64_t cols = weight.shape[1];
    const std::size_t target_row = weight_row_bytes(matrix.conversion.dtype, cols);
    const std::size_t target_bytes = static_cast<std::size_t>(chunk.n_rows) * target_row;
    std::uint8_t *const target = matrix.target + static_cast<std::size_t>(chunk.first_row) * target_row;
    std::uint8_t *written = target;
    if (!memory_.is_host()) {
        buffers.target.resize(target_bytes);
        written = buffers.target.data();
    }
    std::uint8_t *read = written;
    if (matrix.conversion.expands) {
        buffers.source.resize(static_cast<std::size_t>(chunk.range.n_bytes));
        read = buffers.source.data();
    }

    const CheckpointFile &file = checkpoint_.files()[static_cast<std::size_t>(chunk.range.file)];
    try {
        file.mapping.read(chunk.range.offset,
                          std::as_writable_bytes(std::span(read, static_cast<std::size_t>(chunk.range.n_bytes))));
    } catch (const Error &error) {
        throw Error(error.status(), "path %s %s", shortened_path(file.path).c_str(), error.what());
    }
    if (matrix.conversion.expands) {
        const RowExpander expander(*weight.type, cols, matrix.scales.empty() ? nullptr : matrix.scales.data(),
                                   matrix.conversion.dtype);
        const std::uint64_t n_rounded =
            expander.expand(chunk.first_row, chunk.n_rows, buffers.source.data(), written, buffers.values);
        if (n_rounded) matrix.n_rounded.fetch_add(n_rounded, std::memory_order_relaxed);
    }
    if (written != target) memory_.upload(target, written, target_bytes);
}

} // namespace ds41
