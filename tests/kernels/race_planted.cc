// Whether ThreadSanitizer finds races of kernels on the simulator: race_planted WHAT runs a small kernel in which a
// race is planted, or its correct twin. Exits 0 where a data race is reported, or for the twin none; 77 where this is
// no build with ThreadSanitizer. What blocks do to each other the simulator itself finds, before it happens.
#include "simt.h"
#include "simt/engine.h"

#include <cstdio>
#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#define HAS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAS_TSAN 1
#endif
#endif

namespace {

constexpr int kThreads = 64;
constexpr int kBlocks = 4;

struct Params {
    const int *in;
    int *out;
};

// A missing barrier between threads of different warps.
template <bool kCorrect> __global__ void shared(const __grid_constant__ Params p) {
    SIMT_SHARED(int, words, kThreads);
    const int i = static_cast<int>(threadIdx.x);
    for (int from = 0; from < kThreads; from += simt::kWarp) {
        words[i] = simt::load(p.in + i);
        __syncthreads();
        simt::store(p.out + blockIdx.x * kThreads + i, words[(i + simt::kWarp) % kThreads]);
        if (kCorrect) __syncthreads();
    }
}

// A missing __syncwarp between lanes of one warp.
template <bool kCorrect> __global__ void warp(const __grid_constant__ Params p) {
    SIMT_SHARED(int, words, kThreads);
    const int i = static_cast<int>(threadIdx.x), begin = i / simt::kWarp * simt::kWarp;
    words[i] = simt::load(p.in + i);
    __syncwarp();
    const int sum = words[i] + words[begin + (i + 1) % simt::kWarp];
    if (kCorrect) __syncwarp();
    words[i] = sum;
    __syncwarp();
    simt::store(p.out + blockIdx.x * kThreads + i, words[begin + (i + 1) % simt::kWarp]);
}

// A shuffle exchanges registers: it orders no memory.
template <bool kCorrect> __global__ void shuffle(const __grid_constant__ Params p) {
    SIMT_SHARED(int, words, kThreads);
    const int i = static_cast<int>(threadIdx.x);
    words[i] = simt::load(p.in + i);
    __shfl_xor_sync(simt::kFullMask, i, 1);
    if (kCorrect) __syncwarp();
    simt::store(p.out + blockIdx.x * kThreads + i, words[i ^ 1]);
}

// An asynchronous copy into a place that another thread writes: the copy itself is the other access.
template <bool kCorrect> __global__ void async(const __grid_constant__ Params p) {
    SIMT_SHARED(int, words, kThreads);
    const int i = static_cast<int>(threadIdx.x);
    constexpr int kCopies = kThreads / 4;
    if (i < kCopies) simt::copy_async16(words, 4 * i, p.in + 4 * i);
    simt::copy_async_commit();
    simt::copy_async_wait<0>();
    if (kCorrect) __syncthreads();
    if (i < kCopies) words[4 * ((i + 1) % kCopies) + 1] = 1;
    if (i < kCopies) simt::store(p.out + blockIdx.x * kThreads + i, words[4 * i]);
}

// Blocks that write the same place of global memory.
template <bool kCorrect> __global__ void global(const __grid_constant__ Params p) {
    const int i = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
    int *const target = p.out + (kCorrect ? block * kThreads + i : i);
    simt::store(target, simt::load(p.in + i) + block);
}

// One block reads what another writes.
template <bool kCorrect> __global__ void blocks(const __grid_constant__ Params p) {
    const int i = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
    simt::store(p.out + block * kThreads + i, 1);
    const int from = kCorrect ? block : (block + 1) % kBlocks;
    simt::store(p.out + (kBlocks + block) * kThreads + i, simt::load(p.out + from * kThreads + i));
}

// A block's barrier orders its own threads, not those of another block that has one too.
template <bool kCorrect> __global__ void barriers(const __grid_constant__ Params p) {
    const int i = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
    __syncthreads();
    simt::store(p.out + (kCorrect ? block * kThreads + i : i), block);
    __syncthreads();
}

// Nor does its __syncwarp.
template <bool kCorrect> __global__ void syncwarps(const __grid_constant__ Params p) {
    const int i = static_cast<int>(threadIdx.x), block = static_cast<int>(blockIdx.x);
    __syncwarp();
    simt::store(p.out + (kCorrect ? block * kThreads + i : i), block);
    __syncwarp();
}

// Sums that are added atomically; or not.
template <bool kCorrect> __global__ void counter(const __grid_constant__ Params p) {
    if (kCorrect)
        simt::atomic_add(p.out, 1);
    else
        simt::store(p.out, simt::load(p.out) + 1);
}

struct Case {
    const char *name;
    void (*planted)(Params);
    void (*correct)(Params);
    bool between_blocks = false;
};

const Case kCases[] = {
    {"shared", shared<false>, shared<true>},
    {"warp", warp<false>, warp<true>},
    {"shuffle", shuffle<false>, shuffle<true>},
    {"async", async<false>, async<true>},
    {"global", global<false>, global<true>, true},
    {"blocks", blocks<false>, blocks<true>, true},
    {"barriers", barriers<false>, barriers<true>, true},
    {"syncwarps", syncwarps<false>, syncwarps<true>, true},
    {"counter", counter<false>, counter<true>},
};

bool wants_race = false;
int n_reports = 0;

} // namespace

#ifdef HAS_TSAN
extern "C" {
int __tsan_get_report_data(void *report, const char **description, int *count, int *stack_count, int *mop_count,
                           int *loc_count, int *mutex_count, int *thread_count, int *unique_tid_count,
                           void **sleep_trace, unsigned long trace_size);

// Called with each report, after it was printed.
__attribute__((no_sanitize("thread"))) void __tsan_on_report(void *report) {
    const char *description = "";
    int counts[7] = {};
    void *trace[1] = {};
    __tsan_get_report_data(report, &description, counts, counts + 1, counts + 2, counts + 3, counts + 4, counts + 5,
                           counts + 6, trace, 1);
    if (std::strcmp(description, "data-race") != 0) _exit(3);
    ++n_reports;
    if (wants_race) _exit(0); // whatever TSAN_OPTIONS say of the exit code
}
}
#endif

int main(int argc, char **argv) {
    const Case *found = nullptr;
    for (const Case &c : kCases)
        if (argc == 3 && std::strcmp(argv[1], c.name) == 0) found = &c;
    if (!found || (std::strcmp(argv[2], "planted") != 0 && std::strcmp(argv[2], "correct") != 0)) {
        std::fprintf(stderr, "usage: race_planted WHAT planted|correct\n");
        return 2;
    }
#ifndef HAS_TSAN
    std::fprintf(stderr, "no ThreadSanitizer in this build\n");
    return 77;
#endif
    wants_race = std::strcmp(argv[2], "planted") == 0;
    std::vector<int> in(kThreads, 3), out(2 * kThreads * kBlocks, 0);
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        simt::set_seed(seed);
        const int error = simt::launch(nullptr, found->name, wants_race ? found->planted : found->correct,
                                       simt::Dim3{kBlocks}, simt::Dim3{kThreads}, 0, Params{in.data(), out.data()});
        if (wants_race && found->between_blocks) {
            if (error != 0 && simt::last_failure().find("the order of blocks") != std::string::npos) continue;
            std::fprintf(stderr, "two blocks in each other's way in %s were not found\n", found->name);
            return 1;
        }
        if (error != 0) {
            std::fprintf(stderr, "%s\n", simt::last_failure().c_str());
            return 4;
        }
    }
    if (wants_race && !found->between_blocks) {
        std::fprintf(stderr, "the race in %s was not found\n", found->name);
        return 1;
    }
    return n_reports == 0 ? 0 : 1;
}
