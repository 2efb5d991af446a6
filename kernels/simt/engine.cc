// Fibers, barriers and warp operations of the simulator.
#include "simt/engine.h"
#include "simt/conflicts.h"

#include <boost/context/detail/fcontext.hpp>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif
// SIMT_TSAN comes from the build: this file itself is not instrumented, since what the engine notes about its fibers is
// no access of theirs.

#ifdef SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef SIMT_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace simt {

namespace {

using boost::context::detail::fcontext_t;
using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr std::size_t kStackBytes = 128 * 1024; // sanitizers' frames are large
constexpr std::size_t kMaxThreads = 1024;
constexpr std::size_t kMaxShared = 227 * 1024; // of a block on sm_90
constexpr std::size_t kMaxStatic = 48 * 1024;

#ifdef SIMT_TSAN
// A thread that has passed a barrier is ordered after its whole block, so the next block takes other threads.
constexpr std::size_t kThreadSets = 2;
#else
constexpr std::size_t kThreadSets = 1;
#endif
constexpr std::size_t kStacks = kThreadSets * kMaxThreads;

enum class State { kReady, kAtBarrier, kAtWarp, kDone };

struct AsyncCopy {
    unsigned char *target;
    unsigned char *written;
    const void *source;
    int group;
};

struct Fiber {
    fcontext_t context = nullptr;
    State state = State::kDone;
    Index3 index{};
    Where where;
    // The warp operation it waits in.
    WarpOp op{};
    unsigned mask = 0;
    std::uint64_t value = 0;
    int argument = 0;
    float *mma_d = nullptr;
    const std::uint32_t *mma_a = nullptr, *mma_b = nullptr;

    std::vector<AsyncCopy> copies;
    int n_groups = 0;
    unsigned char *stack = nullptr;
#ifdef SIMT_TSAN
    void *tsan = nullptr; // goes with the stack
#endif
#ifdef SIMT_ASAN
    void *fake_stack = nullptr;
#endif
};

// Memory of one block's shared arrays. Under ThreadSanitizer each block has new memory, which is freed after the
// launch: blocks are not ordered with each other, and the same addresses would look like races.
struct Arena {
    std::vector<unsigned char> data, written;
#ifdef SIMT_TSAN
    std::vector<char>
        tokens; // of the block's barrier, then of each warp's; in turn, since threads pass the next one early
#endif
};

struct StaticArray {
    Where where;
    SharedArray array;
};

struct Engine {
    std::vector<Fiber> fibers{kMaxThreads};
    unsigned char *stacks = nullptr;

    // The launch that runs.
    const LaunchInfo *info = nullptr;
    const std::function<void()> *kernel = nullptr;
    MemoryObserver *observer = nullptr;
    std::vector<std::uint32_t> blocks; // in the order in which they run
    Conflicts conflicts;               // of launches of more than one block
    bool running = false;
    bool failed = false;

    // The block that runs.
    Index3 block{};
    std::size_t n_threads = 0;
    Fiber *current = nullptr;
    fcontext_t scheduler = nullptr;
    Arena arena;
    std::vector<Arena> old_arenas;
    std::vector<StaticArray> statics;
    std::size_t static_bytes = 0;

    std::mt19937_64 random{1};
    std::uint64_t seed = 1;
    std::string failure;
    Counts counts;

#ifdef SIMT_TSAN
    void *tsan_scheduler = nullptr;
    std::vector<void *> tsan_fibers = std::vector<void *>(kStacks); // by stack, made at first use: it is dear
    std::size_t thread_set = 0;
    char start_token = 0;
    char end_token = 0;
    std::size_t parity[1 + kMaxThreads / kWarp] = {}; // which token is next, of barrier and warps

    char *token(std::size_t which) {
        return &arena.tokens[2 * which + parity[which]];
    }
#endif
#ifdef SIMT_ASAN
    void *scheduler_fake_stack = nullptr;
    const void *scheduler_stack = nullptr;
    std::size_t scheduler_stack_bytes = 0;
#endif

    Engine() {
        void *memory = ::mmap(nullptr, kStacks * kStackBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) std::abort(); // a test's tool: there is no caller to tell
        stacks = static_cast<unsigned char *>(memory);
        for (std::size_t i = 0; i < kMaxThreads; ++i) fibers[i].stack = stacks + i * kStackBytes;
        if (const char *text = std::getenv("DS41_SIM_SEED")) seed = std::strtoull(text, nullptr, 10);
        random.seed(seed);
    }
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;
    ~Engine() {
#ifdef SIMT_TSAN
        for (void *fiber : tsan_fibers)
            if (fiber) __tsan_destroy_fiber(fiber);
#endif
        ::munmap(stacks, kStacks * kStackBytes);
    }
};

std::atomic<EnqueueHook> enqueue_hook{nullptr};

// One per host thread: contexts of different threads run their launches independently.
Engine &engine() {
    static thread_local Engine instance;
    return instance;
}

// Fibers never move between host threads, but a compiler may keep the address of a thread-local variable across a
// switch; all switches go through functions that it cannot see into.
__attribute__((noinline)) void to_scheduler(Engine &e, [[maybe_unused]] bool done) {
#ifdef SIMT_ASAN
    Fiber &self = *e.current;
    __sanitizer_start_switch_fiber(done ? nullptr : &self.fake_stack, e.scheduler_stack, e.scheduler_stack_bytes);
#endif
#ifdef SIMT_TSAN
    __tsan_release(&e.end_token); // a launch that fails leaves fibers where they are
    __tsan_switch_to_fiber(e.tsan_scheduler, __tsan_switch_to_fiber_no_sync);
#endif
    const transfer_t from = jump_fcontext(e.scheduler, nullptr);
    e.scheduler = from.fctx;
#ifdef SIMT_ASAN
    __sanitizer_finish_switch_fiber(self.fake_stack, &e.scheduler_stack, &e.scheduler_stack_bytes);
#endif
}

void fiber_main(transfer_t from) {
    Engine &e = engine();
    e.scheduler = from.fctx;
#ifdef SIMT_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &e.scheduler_stack, &e.scheduler_stack_bytes);
#endif
#ifdef SIMT_TSAN
    __tsan_acquire(&e.start_token);
#endif
    (*e.kernel)();
    Fiber &self = *e.current;
    if (!self.copies.empty() && !e.failed) wait_async_copies(0); // the data is lost with the block: nothing to check
    self.state = State::kDone;
    to_scheduler(e, true);
}

__attribute__((noinline)) void resume(Engine &e, Fiber &fiber) {
    e.current = &fiber;
#ifdef SIMT_ASAN
    __sanitizer_start_switch_fiber(&e.scheduler_fake_stack, fiber.stack, kStackBytes);
#endif
#ifdef SIMT_TSAN
    __tsan_switch_to_fiber(fiber.tsan, __tsan_switch_to_fiber_no_sync);
#endif
    const transfer_t from = jump_fcontext(fiber.context, nullptr);
    fiber.context = from.fctx;
#ifdef SIMT_ASAN
    __sanitizer_finish_switch_fiber(e.scheduler_fake_stack, nullptr, nullptr);
#endif
    e.current = nullptr;
}

Index3 block_at(const Dim3 &grid, std::uint32_t i) {
    return {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
}

const char *base_name(const char *path) {
    const char *slash = std::strrchr(path, '/');
    return slash ? slash + 1 : path;
}

__attribute__((format(printf, 3, 4))) void note_failure(Engine &e, Where where, const char *format, ...) {
    if (e.failed) return;
    e.failed = true;
    char text[512], line[1024];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    char thread[64] = "";
    if (e.current)
        std::snprintf(thread, sizeof thread, ", thread (%u, %u, %u)", e.current->index.x, e.current->index.y,
                      e.current->index.z);
    std::snprintf(line, sizeof line, "%s:%d: %s: kernel %s, block (%u, %u, %u)%s, seed %llu", base_name(where.file),
                  where.line, text, e.info->name, e.block.x, e.block.y, e.block.z, thread,
                  static_cast<unsigned long long>(e.seed));
    e.failure = line;
}

// In a fiber: note what is wrong and leave it for good. Kernels own nothing that would have to be destroyed.
#define SIMT_FAIL(...)                                                                                                 \
    do {                                                                                                               \
        Engine &failing = engine();                                                                                    \
        note_failure(failing, __VA_ARGS__);                                                                            \
        leave(failing);                                                                                                \
    } while (false)

[[noreturn]] void leave(Engine &e) {
    for (;;) to_scheduler(e, false);
}

void wait(State state, Where where) {
    Engine &e = engine();
    e.current->state = state;
    e.current->where = where;
    to_scheduler(e, false);
    if (e.failed) leave(e);
}

float bf16_value(std::uint32_t word, int half) {
    const std::uint32_t bits = (half ? word >> 16 : word & 0xffff) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// D[16][8] += A[16][16] B[16][8], fragments as in the PTX manual: lane = 4 * group + t holds rows group and group + 8.
void complete_mma(Fiber *const *lanes) {
    const auto a = [&](int row, int k) {
        const Fiber &lane = *lanes[row % 8 * 4 + k % 8 / 2];
        return bf16_value(lane.mma_a[row / 8 + 2 * (k / 8)], k % 2);
    };
    const auto b = [&](int k, int col) { return bf16_value(lanes[col * 4 + k % 8 / 2]->mma_b[k / 8], k % 2); };
    float sums[16][8];
    for (int row = 0; row < 16; ++row)
        for (int col = 0; col < 8; ++col) {
            float sum = lanes[row % 8 * 4 + col / 2]->mma_d[row / 8 * 2 + col % 2];
            for (int k = 0; k < 16; ++k) sum += a(row, k) * b(k, col);
            sums[row][col] = sum;
        }
    for (int row = 0; row < 16; ++row)
        for (int col = 0; col < 8; ++col) lanes[row % 8 * 4 + col / 2]->mma_d[row / 8 * 2 + col % 2] = sums[row][col];
}

// Complete the warp's operation if all lanes of its mask have come. False: some have not, or it is wrong.
bool complete_warp(Engine &e, std::size_t first) {
    Fiber *lanes[kWarp] = {};
    const Fiber *asking = nullptr;
    const std::size_t n = std::min<std::size_t>(kWarp, e.n_threads - first);
    for (std::size_t i = 0; i < n; ++i) {
        lanes[i] = &e.fibers[first + i];
        if (lanes[i]->state == State::kAtWarp && !asking) asking = lanes[i];
    }
    if (!asking) return false;
    const unsigned mask = asking->mask;
    if (n < kWarp && mask >> n != 0) {
        note_failure(e, asking->where, "a mask of 0x%x names lanes that a block of %zu threads does not have", mask,
                     e.n_threads);
        return false;
    }
    for (std::size_t i = 0; i < n; ++i) {
        if (!(mask >> i & 1)) continue;
        const Fiber &lane = *lanes[i];
        if (lane.state == State::kDone) {
            note_failure(e, asking->where, "lane %zu of the mask 0x%x has ended", i, mask);
            return false;
        }
        if (lane.state == State::kAtBarrier) {
            note_failure(e, asking->where, "lane %zu of the mask 0x%x waits at the barrier in line %d", i, mask,
                         lane.where.line);
            return false;
        }
        if (lane.state != State::kAtWarp) return false; // on its way
        if (lane.op != asking->op || !(lane.where == asking->where) || lane.mask != mask) {
            note_failure(e, asking->where, "lane %zu of the mask 0x%x is at another warp operation, in line %d", i,
                         mask, lane.where.line);
            return false;
        }
    }
    std::uint64_t results[kWarp] = {};
    if (asking->op == WarpOp::kMma) complete_mma(lanes);
    std::uint64_t ballot = 0;
    for (std::size_t i = 0; i < n; ++i)
        if (mask >> i & 1 && lanes[i]->value != 0) ballot |= std::uint64_t{1} << i;
    for (std::size_t i = 0; i < n; ++i) {
        if (!(mask >> i & 1)) continue;
        const Fiber &lane = *lanes[i];
        const int self = static_cast<int>(i);
        int source = self;
        switch (lane.op) {
        case WarpOp::kShuffle:
            source = lane.argument & (kWarp - 1);
            break;
        case WarpOp::kShuffleXor:
            source = self ^ lane.argument;
            break;
        case WarpOp::kShuffleDown:
            source = self + lane.argument < kWarp ? self + lane.argument : self;
            break;
        case WarpOp::kShuffleUp:
            source = self - lane.argument >= 0 ? self - lane.argument : self;
            break;
        case WarpOp::kBallot:
            results[i] = ballot;
            continue;
        default:
            continue;
        }
        if (source < 0 || source >= kWarp || !(mask >> source & 1)) {
            note_failure(e, lane.where, "a shuffle of lane %d reads lane %d, which is not in the mask 0x%x", self,
                         source, mask);
            return false;
        }
        results[i] = lanes[source]->value;
    }
    for (std::size_t i = 0; i < n; ++i)
        if (mask >> i & 1) {
            lanes[i]->value = results[i];
            lanes[i]->state = State::kReady;
        }
#ifdef SIMT_TSAN
    if (asking->op == WarpOp::kSync) e.parity[1 + first / kWarp] ^= 1;
#endif
    return true;
}

// All threads wait at one barrier: let them go on. Otherwise say which do not.
void complete_barrier(Engine &e) {
    const Fiber *waiting = nullptr, *elsewhere = nullptr;
    for (std::size_t i = 0; i < e.n_threads; ++i)
        if (e.fibers[i].state == State::kAtBarrier && !waiting) waiting = &e.fibers[i];
    if (!waiting) {
        const auto *stuck = std::find_if(e.fibers.data(), e.fibers.data() + e.n_threads,
                                         [](const Fiber &f) { return f.state == State::kAtWarp; });
        note_failure(e, stuck->where, "lanes of the mask 0x%x wait for others that never come", stuck->mask);
        return;
    }
    for (std::size_t i = 0; i < e.n_threads; ++i) {
        const Fiber &fiber = e.fibers[i];
        if (fiber.state != State::kAtBarrier || !(fiber.where == waiting->where)) elsewhere = &fiber;
    }
    if (elsewhere) {
        if (elsewhere->state == State::kDone)
            note_failure(e, waiting->where, "thread (%u, %u, %u) ended without reaching this barrier",
                         elsewhere->index.x, elsewhere->index.y, elsewhere->index.z);
        else
            note_failure(e, waiting->where, "thread (%u, %u, %u) does not reach this barrier: it waits in line %d",
                         elsewhere->index.x, elsewhere->index.y, elsewhere->index.z, elsewhere->where.line);
        return;
    }
    for (std::size_t i = 0; i < e.n_threads; ++i) e.fibers[i].state = State::kReady;
#ifdef SIMT_TSAN
    e.parity[0] ^= 1;
#endif
}

// Not memset: ThreadSanitizer would take that for an access of its own.
#ifdef SIMT_TSAN
__attribute__((no_sanitize("thread")))
#endif
void fill(unsigned char *data, std::size_t n, unsigned char value) {
#ifdef SIMT_TSAN
    for (volatile unsigned char *p = data; n > 0; --n) *p++ = value;
#else
    if (n) std::memset(data, value, n);
#endif
}

void start_block(Engine &e, std::vector<std::uint32_t> &order) {
    const Dim3 size = e.info->block;
    e.n_threads = std::size_t{size.x} * size.y * size.z;
    e.statics.clear();
    e.static_bytes = 0;
#ifdef SIMT_TSAN
    e.old_arenas.push_back(std::move(e.arena));
    e.arena = Arena();
    e.arena.tokens.resize(2 * std::size(e.parity));
#endif
    const std::size_t n_bytes = std::max(e.arena.data.size(), e.info->shared_bytes + 16 + kMaxStatic);
    e.arena.data.resize(n_bytes);
    e.arena.written.resize(n_bytes);
    fill(e.arena.data.data(), e.info->shared_bytes, 0xff);
    fill(e.arena.written.data(), e.info->shared_bytes, 0);
    order.resize(e.n_threads);
    std::iota(order.begin(), order.end(), 0u);
#ifdef SIMT_TSAN
    e.thread_set = (e.thread_set + 1) % kThreadSets;
    const std::size_t rotation = e.random() % e.n_threads;
    __tsan_release(&e.start_token);
#endif
    for (std::size_t i = 0; i < e.n_threads; ++i) {
        Fiber &fiber = e.fibers[i];
        const auto n = static_cast<unsigned>(i);
        fiber.index = {n % size.x, n / size.x % size.y, n / size.x / size.y};
        fiber.state = State::kReady;
        fiber.copies.clear();
        fiber.n_groups = 0;
#ifdef SIMT_ASAN
        __asan_unpoison_memory_region(fiber.stack, kStackBytes);
        fiber.fake_stack = nullptr;
#endif
#ifdef SIMT_TSAN
        const std::size_t slot = e.thread_set * kMaxThreads + (i + rotation) % e.n_threads;
        if (!e.tsan_fibers[slot]) e.tsan_fibers[slot] = __tsan_create_fiber(0);
        fiber.stack = e.stacks + slot * kStackBytes;
        fiber.tsan = e.tsan_fibers[slot];
#endif
        fiber.context = make_fcontext(fiber.stack + kStackBytes, kStackBytes, fiber_main);
    }
}

void run_block(Engine &e, std::vector<std::uint32_t> &order) {
    start_block(e, order);
    std::vector<std::uint32_t> warps((e.n_threads + kWarp - 1) / kWarp);
    std::iota(warps.begin(), warps.end(), 0u);
    while (!e.failed) {
        // A warp runs until all its lanes wait at the barrier or have ended: threads of a warp share what they touch.
        std::shuffle(warps.begin(), warps.end(), e.random);
        bool all_done = true;
        for (const std::uint32_t warp : warps) {
            const std::size_t first = std::size_t{warp} * kWarp;
            const std::size_t end = std::min(first + kWarp, e.n_threads);
            std::shuffle(order.begin() + static_cast<std::ptrdiff_t>(first),
                         order.begin() + static_cast<std::ptrdiff_t>(end), e.random);
            for (bool moved = true; moved && !e.failed;) {
                for (std::size_t i = first; i < end && !e.failed; ++i)
                    if (Fiber &fiber = e.fibers[order[i]]; fiber.state == State::kReady) resume(e, fiber);
                moved = !e.failed && complete_warp(e, first);
            }
            for (std::size_t i = first; i < end; ++i) all_done = all_done && e.fibers[i].state == State::kDone;
            if (e.failed) break;
        }
        if (all_done || e.failed) break;
        complete_barrier(e);
    }
}

} // namespace

int run(const LaunchInfo &info, const std::function<void()> &kernel, MemoryObserver *observer) {
    Engine &e = engine();
    const std::uint64_t n_blocks = std::uint64_t{info.grid.x} * info.grid.y * info.grid.z;
    const std::uint64_t n_threads = std::uint64_t{info.block.x} * info.block.y * info.block.z;
    e.info = &info;
    e.failed = false;
    e.block = {};
    if (n_blocks == 0 || n_threads == 0 || n_threads > kMaxThreads || info.block.z > 64 || info.grid.y > 65535 ||
        info.grid.z > 65535 || info.grid.x > 0x7fffffffu || info.shared_bytes > kMaxShared) {
        note_failure(e, {"launch", 0},
                     "a grid of %u x %u x %u, a block of %u x %u x %u and %zu shared bytes cannot run", info.grid.x,
                     info.grid.y, info.grid.z, info.block.x, info.block.y, info.block.z, info.shared_bytes);
        return kLaunchFailure;
    }
    e.kernel = &kernel;
    e.observer = observer;
    e.running = true;
    ++e.counts.n_launches;
#ifdef SIMT_TSAN
    e.tsan_scheduler = __tsan_get_current_fiber();
#endif
    std::vector<std::uint32_t> threads;
    e.blocks.resize(n_blocks);
    std::iota(e.blocks.begin(), e.blocks.end(), 0u);
    std::shuffle(e.blocks.begin(), e.blocks.end(), e.random);
    e.conflicts.start_launch(n_blocks);
    for (std::size_t i = 0; i < n_blocks && !e.failed; ++i) {
        e.block = block_at(info.grid, e.blocks[i]);
        e.conflicts.start_block(i);
        run_block(e, threads);
    }
#ifdef SIMT_TSAN
    __tsan_acquire(&e.end_token);
    e.old_arenas.clear();
#endif
    e.running = false;
    e.observer = nullptr;
    return e.failed ? kLaunchFailure : 0;
}

int enqueue(Stream stream, const LaunchInfo &info, std::function<void()> kernel) {
    if (const EnqueueHook hook = enqueue_hook.load(); stream && hook) return hook(stream, info, std::move(kernel));
    return run(info, kernel, nullptr);
}

void set_enqueue_hook(EnqueueHook hook) {
    enqueue_hook = hook;
}

const std::string &last_failure() {
    return engine().failure;
}

void set_seed(std::uint64_t seed) {
    engine().seed = seed;
    engine().random.seed(seed);
}

std::uint64_t seed() {
    return engine().seed;
}

Counts take_counts() {
    return std::exchange(engine().counts, Counts());
}

const Index3 &thread_index() {
    return engine().current->index;
}
const Index3 &block_index() {
    return engine().block;
}
const Dim3 &block_size() {
    return engine().info->block;
}
const Dim3 &grid_size() {
    return engine().info->grid;
}

void check_global(const void *p, std::size_t n_bytes, std::size_t alignment, Access access, Where where) {
    Engine &e = engine();
    const char *what = access == Access::kRead ? "a read" : access == Access::kWrite ? "a write" : "an atomic";
    if (reinterpret_cast<std::uintptr_t>(p) % alignment != 0)
        SIMT_FAIL(where, "%s of %zu bytes at %p, which is not aligned to %zu", what, n_bytes, p, alignment);
    if (static_cast<int>(access) & static_cast<int>(Access::kRead)) e.counts.bytes_read += n_bytes;
    if (static_cast<int>(access) & static_cast<int>(Access::kWrite)) e.counts.bytes_written += n_bytes;
    bool may_change = true;
    if (e.observer)
        if (const char *wrong = e.observer->access(p, n_bytes, access, &may_change))
            SIMT_FAIL(where, "%s of %zu bytes at %p, %s", what, n_bytes, p, wrong);
    Conflicts::Earlier earlier;
    if (!may_change || e.blocks.size() == 1 || e.conflicts.note(p, n_bytes, access, &earlier)) return;
    const Index3 block = block_at(e.info->grid, e.blocks[earlier.block]);
    SIMT_FAIL(where,
              "%s of %zu bytes at %p: block (%u, %u, %u) %s byte %p, and the result depends on the order of blocks",
              what, n_bytes, p, block.x, block.y, block.z,
              earlier.access == Access::kRead    ? "has read"
              : earlier.access == Access::kWrite ? "has written"
                                                 : "has changed by an atomic",
              reinterpret_cast<const void *>(earlier.byte));
}

void check_shared_bytes(const SharedArray &array, std::int64_t offset, std::size_t n_bytes, Access access,
                        Where where) {
    const char *what = access == Access::kRead ? "read" : "write";
    if (offset < 0 || static_cast<std::uint64_t>(offset) + n_bytes > array.n_bytes)
        SIMT_FAIL(where, "a %s of %zu bytes at byte %lld of shared array %s, which has %zu", what, n_bytes,
                  static_cast<long long>(offset), array.name, array.n_bytes);
    if (static_cast<std::uint64_t>(offset) % std::min<std::size_t>(n_bytes, 16) != 0)
        SIMT_FAIL(where, "a %s of %zu bytes at byte %lld of shared array %s, which is not aligned to them", what,
                  n_bytes, static_cast<long long>(offset), array.name);
    unsigned char *written = array.written + offset;
    if (access == Access::kWrite) {
        std::memset(written, 1, n_bytes);
        return;
    }
    for (std::size_t i = 0; i < n_bytes; ++i)
        if (!written[i])
            SIMT_FAIL(where, "a read of byte %lld of shared array %s, which nobody has written",
                      static_cast<long long>(offset) + static_cast<long long>(i), array.name);
}

SharedArray static_shared(std::size_t n_bytes, const char *name, Where where) {
    Engine &e = engine();
    for (const StaticArray &known : e.statics)
        if (known.where == where && std::strcmp(known.array.name, name) == 0) return known.array;
    // Behind the dynamic part, whose size the launch knows.
    const std::size_t begin = (e.info->shared_bytes + 15) / 16 * 16 + e.static_bytes;
    const std::size_t taken = (n_bytes + 15) / 16 * 16;
    if (e.static_bytes + taken > kMaxStatic || begin + taken > kMaxShared)
        SIMT_FAIL(where, "shared array %s of %zu bytes, after %zu static and %zu dynamic ones, of %zu and %zu in all",
                  name, n_bytes, e.static_bytes, e.info->shared_bytes, kMaxStatic, kMaxShared);
    e.static_bytes += taken;
    const SharedArray array{e.arena.data.data() + begin, e.arena.written.data() + begin, n_bytes, name};
    fill(array.data, n_bytes, 0xff);
    fill(array.written, n_bytes, 0);
    e.statics.push_back({where, array});
    return array;
}

SharedArray dynamic_shared(std::size_t offset, std::size_t n_bytes, Where where) {
    Engine &e = engine();
    if (offset + n_bytes > e.info->shared_bytes)
        SIMT_FAIL(where, "a piece of %zu bytes at byte %zu of dynamic shared memory, of which the launch asked for %zu",
                  n_bytes, offset, e.info->shared_bytes);
    return {e.arena.data.data() + offset, e.arena.written.data() + offset, n_bytes, "dynamic"};
}

void sync_threads(Where where) {
#ifdef SIMT_TSAN
    char *const token = engine().token(0);
    __tsan_release(token);
#endif
    wait(State::kAtBarrier, where);
#ifdef SIMT_TSAN
    __tsan_acquire(token);
#endif
}

void sync_warp(Where where) {
#ifdef SIMT_TSAN
    Engine &e = engine();
    char *const token = e.token(1 + static_cast<std::size_t>(e.current - e.fibers.data()) / kWarp);
    __tsan_release(token);
#endif
    warp_exchange(WarpOp::kSync, 0, 0, 0, where);
#ifdef SIMT_TSAN
    __tsan_acquire(token);
#endif
}

std::uint64_t warp_exchange(WarpOp op, unsigned mask, std::uint64_t value, int argument, Where where) {
    Engine &e = engine();
    Fiber &self = *e.current;
    const auto thread = static_cast<std::size_t>(&self - e.fibers.data());
    if (op == WarpOp::kSync) {
        const std::size_t n = std::min<std::size_t>(kWarp, e.n_threads - thread / kWarp * kWarp);
        mask = n == kWarp ? kFullMask : (1u << n) - 1;
    }
    if (!(mask >> (thread % kWarp) & 1)) SIMT_FAIL(where, "lane %zu is not in its own mask 0x%x", thread % kWarp, mask);
    self.op = op;
    self.mask = mask;
    self.value = value;
    self.argument = argument;
    wait(State::kAtWarp, where);
    return self.value;
}

void warp_mma(float *d, const std::uint32_t *a, const std::uint32_t *b, Where where) {
    Fiber &self = *engine().current;
    self.mma_d = d;
    self.mma_a = a;
    self.mma_b = b;
    warp_exchange(WarpOp::kMma, kFullMask, 0, 0, where);
}

void start_async_copy(const SharedArray &array, std::int64_t offset, const void *source, Where where) {
    Engine &e = engine();
    check_shared_bytes(array, offset, 16, Access::kWrite, where);
    unsigned char *target = array.data + offset, *written = array.written + offset;
    std::memset(target, 0xff, 16); // until the wait it holds nothing
    std::memset(written, 0, 16);
    e.current->copies.push_back({target, written, source, e.current->n_groups});
}

void commit_async_copies() {
    ++engine().current->n_groups;
}

void wait_async_copies(int n_left) {
    Fiber &self = *engine().current;
    const auto is_over = [&](const AsyncCopy &copy) { return copy.group < self.n_groups - n_left; };
    for (const AsyncCopy &copy : self.copies)
        if (is_over(copy)) {
            std::memcpy(copy.target, copy.source, 16);
            std::memset(copy.written, 1, 16);
        }
    self.copies.erase(std::remove_if(self.copies.begin(), self.copies.end(), is_over), self.copies.end());
}

} // namespace simt
