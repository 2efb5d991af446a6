// The simulator: one launch runs block by block, in an order drawn from the seed, on the calling thread; the threads of
// a block are fibers that run until they wait. Under ThreadSanitizer each is a thread of its own to it, ordered by
// barriers only, which makes it a race checker for kernels.
#pragma once

#include "simt/types.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace simt {

// A place in a kernel's source.
struct Where {
    const char *file = "";
    int line = 0;

    static constexpr Where here(const char *file = __builtin_FILE(), int line = __builtin_LINE()) {
        return {file, line};
    }
    bool operator==(const Where &) const = default;
};

enum class Access { kRead = 1, kWrite = 2, kAtomic = 3 }; // an atomic operation does both

enum class WarpOp { kShuffle, kShuffleXor, kShuffleDown, kShuffleUp, kBallot, kSync, kMma };

struct LaunchInfo {
    const char *name = "";
    Dim3 grid, block;
    std::size_t shared_bytes = 0;
};

// What a launch did, counted by its load and store helpers.
struct Counts {
    std::uint64_t n_launches = 0;
    std::uint64_t bytes_read = 0, bytes_written = 0;
};

// ---- For launches.

// Without a simulated device behind `stream` (null) a launch runs at once, unchecked but for what engine and
// sanitizers see. Returns 0, or kLaunchFailure with a sentence in last_failure().
constexpr int kLaunchFailure = 719; // the number that CUDA has for it
int enqueue(Stream stream, const LaunchInfo &info, std::function<void()> kernel);

// Set by the simulated device: takes launches on its streams.
using EnqueueHook = int (*)(Stream stream, const LaunchInfo &info, std::function<void()> kernel);
void set_enqueue_hook(EnqueueHook hook);

// Sees each checked access of a running launch; returns null, or what is wrong with it. Where the launch changes
// nothing it says so in `may_change`, which is true before: blocks cannot be in each other's way there.
class MemoryObserver {
public:
    virtual const char *access(const void *p, std::size_t n_bytes, Access access, bool *may_change) = 0;

protected:
    ~MemoryObserver() = default;
};

// Run a launch now. `observer` may be null.
int run(const LaunchInfo &info, const std::function<void()> &kernel, MemoryObserver *observer);

const std::string &last_failure();
// Drives the orders of blocks and threads; DS41_SIM_SEED in the environment is the first value.
void set_seed(std::uint64_t seed);
std::uint64_t seed();
// All launches of this process since the last call.
Counts take_counts();

// ---- For kernels, through host.h.

struct SharedArray {
    unsigned char *data = nullptr;
    unsigned char *written = nullptr; // one byte per byte: whether it was written in this block
    std::size_t n_bytes = 0;
    const char *name = "";
};

struct Index3 {
    unsigned x, y, z;
};

const Index3 &thread_index();
const Index3 &block_index();
const Dim3 &block_size();
const Dim3 &grid_size();

void check_global(const void *p, std::size_t n_bytes, std::size_t alignment, Access access, Where where);
void check_shared_bytes(const SharedArray &array, std::int64_t offset, std::size_t n_bytes, Access access, Where where);
inline void check_shared(const SharedArray &array, std::int64_t index, std::size_t element, Access access,
                         Where where) {
    check_shared_bytes(array, index * static_cast<std::int64_t>(element), element, access, where);
}
SharedArray static_shared(std::size_t n_bytes, const char *name, Where where);
SharedArray dynamic_shared(std::size_t offset, std::size_t n_bytes, Where where);

void sync_threads(Where where);
void sync_warp(Where where);
std::uint64_t warp_exchange(WarpOp op, unsigned mask, std::uint64_t value, int argument, Where where);
void warp_mma(float *d, const std::uint32_t *a, const std::uint32_t *b, Where where);

void start_async_copy(const SharedArray &array, std::int64_t offset, const void *source, Where where);
void commit_async_copies();
void wait_async_copies(int n_left);

} // namespace simt
