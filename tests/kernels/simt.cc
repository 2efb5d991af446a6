// The simulator itself: each mistake that it promises to find is planted in a small kernel and must be found where it
// stands, and kernels without mistakes must run in any order of blocks and threads.
#include "simt.h"
#include "paged_step.h"
#include "simt/engine.h"
#include "support/compare.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>

using namespace ds41;
using namespace ds41::test;

namespace {

// Where a kernel has its mistake; atomic because all threads say so.
std::atomic<int> mistake_line{0};
#define MISTAKE(...) (mistake_line.store(__LINE__, std::memory_order_relaxed), __VA_ARGS__)

struct Buffers {
    const int *in = nullptr;
    int *out = nullptr;
    int n = 0;
};

int lane() {
    return static_cast<int>(threadIdx.x) % simt::kWarp;
}

bool has(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

// The launch failed at the line of the mistake, for the reasons that `parts` name.
void check_found(int error, const std::vector<std::string> &parts) {
    CHECK(error == simt::kLaunchFailure);
    const std::string sentence = simt::last_failure();
    CAPTURE(sentence);
    CHECK(sentence.rfind("simt.cc:" + std::to_string(mistake_line.load()) + ": ", 0) == 0);
    for (const std::string &part : parts) {
        CAPTURE(part);
        CHECK(has(sentence, part));
    }
    CHECK(has(sentence, "kernel "));
    CHECK(has(sentence, ", block ("));
    CHECK(has(sentence, ", seed " + std::to_string(simt::seed())));
}

class Seeds {
public:
    explicit Seeds(std::uint64_t n) : n_(n) {}
    ~Seeds() { simt::set_seed(before_); }
    template <typename F> void each(F f) const {
        for (std::uint64_t seed = 1; seed <= n_; ++seed) {
            CAPTURE(seed);
            simt::set_seed(seed);
            f();
        }
    }

private:
    std::uint64_t before_ = simt::seed(), n_;
};

// Launch a kernel that has a mistake, with several seeds: it is found whatever runs first. Then one without: a failure
// leaves nothing behind.
__global__ void square(const __grid_constant__ Buffers p) {
    SIMT_SHARED(int, values, 64);
    const int i = static_cast<int>(threadIdx.x);
    values[i] = simt::load(p.in + i);
    __syncthreads();
    simt::store(p.out + i, values[63 - i] * values[63 - i]);
}

template <typename K>
void check_mistake(K kernel, simt::Dim3 grid, simt::Dim3 block, std::size_t shared, const Buffers &p,
                   const std::vector<std::string> &parts) {
    Seeds(6).each([&] {
        mistake_line = 0;
        check_found(SIMT_LAUNCH(nullptr, (kernel), grid, block, shared, p), parts);
        std::vector<int> numbers(64), squares(64);
        for (int i = 0; i < 64; ++i) numbers[static_cast<std::size_t>(i)] = i;
        const Buffers fine{numbers.data(), squares.data(), 64};
        REQUIRE_LAUNCHES(SIMT_LAUNCH(nullptr, (square), simt::Dim3{1}, simt::Dim3{64}, 0, fine));
        CHECK(squares[0] == 63 * 63);
        CHECK(squares[63] == 0);
    });
}

const simt::Dim3 kOne{1};

} // namespace

TEST_SUITE_BEGIN("kernels");

// ---- Barriers.

namespace {

__global__ void barriers_in_two_lines(const __grid_constant__ Buffers) {
    if (threadIdx.x < 32)
        MISTAKE(__syncthreads());
    else
        __syncthreads();
}

__global__ void early_end(const __grid_constant__ Buffers p) {
    if (static_cast<int>(threadIdx.x) == p.n) return;
    MISTAKE(__syncthreads());
}

__global__ void early_end_of_a_warp(const __grid_constant__ Buffers) {
    if (threadIdx.x >= 64) return;
    MISTAKE(__syncthreads());
}

// In another iteration of the loop one barrier is missing.
__global__ void barrier_in_a_loop(const __grid_constant__ Buffers) {
    for (int i = 0; i < 4 + static_cast<int>(threadIdx.x) / 96; ++i) MISTAKE(__syncthreads());
}

__global__ void barrier_beside_shuffle(const __grid_constant__ Buffers) {
    if (threadIdx.x == 7) __syncthreads();
    MISTAKE(__shfl_xor_sync(simt::kFullMask, 1, 1));
    if (threadIdx.x != 7) __syncthreads();
}

} // namespace

TEST_CASE("simt: a barrier that not all threads reach") {
    check_mistake(barriers_in_two_lines, kOne, {64}, 0, {},
                  {"thread (", "does not reach this barrier: it waits in line"});
    check_mistake(early_end, {3}, {96}, 0, {nullptr, nullptr, 40},
                  {"thread (40, 0, 0) ended without reaching this barrier"});
    check_mistake(early_end, {3}, {96}, 0, {nullptr, nullptr, 0},
                  {"thread (0, 0, 0) ended without reaching this barrier"});
    check_mistake(early_end, kOne, {33}, 0, {nullptr, nullptr, 32}, {"thread (32, 0, 0) ended without reaching"});
    check_mistake(early_end_of_a_warp, kOne, {96}, 0, {}, {"ended without reaching this barrier"});
    check_mistake(barrier_in_a_loop, kOne, {128}, 0, {}, {"ended without reaching this barrier"});
    check_mistake(barrier_beside_shuffle, kOne, {32}, 0, {},
                  {"lane 7 of the mask 0xffffffff waits at the barrier in line"});
}

// ---- Warp operations.

namespace {

__global__ void ended_lane(const __grid_constant__ Buffers) {
    if (lane() == 5) return;
    MISTAKE(__shfl_sync(simt::kFullMask, 1, 0));
}
__global__ void ended_lane_at_syncwarp(const __grid_constant__ Buffers) {
    if (lane() == 5) return;
    MISTAKE(__syncwarp());
}
__global__ void masks_differ(const __grid_constant__ Buffers) {
    static_cast<void>(MISTAKE(__ballot_sync(lane() == 3 ? 0x0000ffffu : simt::kFullMask, 1)));
}
__global__ void shuffles_in_two_lines(const __grid_constant__ Buffers) {
    if (lane() < 16)
        MISTAKE(__shfl_xor_sync(simt::kFullMask, 1, 1));
    else
        __shfl_xor_sync(simt::kFullMask, 1, 1);
}
// Lane 0, which is not at the first of them, cannot ask there.
__global__ void operations_differ(const __grid_constant__ Buffers) {
    if (lane() == 0) MISTAKE(__syncwarp());
    static_cast<void>(__any_sync(simt::kFullMask, 1));
}
__global__ void not_in_own_mask(const __grid_constant__ Buffers) {
    MISTAKE(__shfl_sync(0xfffffffeu, 1, 1));
}
__global__ void source_outside_mask(const __grid_constant__ Buffers p) {
    if (lane() < 16) MISTAKE(__shfl_sync(0xffffu, 1, p.n));
}
__global__ void xor_outside_mask(const __grid_constant__ Buffers p) {
    if (lane() < 16) MISTAKE(__shfl_xor_sync(0xffffu, 1, p.n));
}
__global__ void down_outside_mask(const __grid_constant__ Buffers p) {
    if (lane() < 16) MISTAKE(__shfl_down_sync(0xffffu, 1, p.n));
}
__global__ void up_outside_mask(const __grid_constant__ Buffers p) {
    if (lane() >= 16) MISTAKE(__shfl_up_sync(0xffff0000u, 1, p.n));
}
__global__ void mask_of_a_whole_warp(const __grid_constant__ Buffers) {
    MISTAKE(__shfl_xor_sync(simt::kFullMask, 1, 1));
}
__global__ void mma_without_a_lane(const __grid_constant__ Buffers) {
    float d[4] = {};
    const std::uint32_t a[4] = {}, b[2] = {};
    if (lane() == 31) return;
    MISTAKE(simt::mma_m16n8k16_bf16(d, a, b));
}

} // namespace

TEST_CASE("simt: warp operations whose mask is wrong") {
    check_mistake(ended_lane, kOne, {32}, 0, {}, {"lane 5 of the mask 0xffffffff has ended"});
    check_mistake(ended_lane_at_syncwarp, kOne, {64}, 0, {}, {"lane 5 of the mask 0xffffffff has ended"});
    check_mistake(masks_differ, kOne, {32}, 0, {}, {"lane 3 of the mask 0xffffffff is at another warp operation"});
    check_mistake(shuffles_in_two_lines, kOne, {32}, 0, {}, {"is at another warp operation, in line"});
    check_mistake(operations_differ, kOne, {32}, 0, {}, {"is at another warp operation, in line"});
    check_mistake(not_in_own_mask, kOne, {32}, 0, {}, {"lane 0 is not in its own mask 0xfffffffe"});
    check_mistake(source_outside_mask, kOne, {32}, 0, {nullptr, nullptr, 20},
                  {"reads lane 20, which is not in the mask 0xffff"});
    check_mistake(xor_outside_mask, kOne, {32}, 0, {nullptr, nullptr, 16}, {"a shuffle of lane 0 reads lane 16"});
    check_mistake(down_outside_mask, kOne, {32}, 0, {nullptr, nullptr, 1}, {"a shuffle of lane 15 reads lane 16"});
    check_mistake(up_outside_mask, kOne, {32}, 0, {nullptr, nullptr, 1}, {"a shuffle of lane 16 reads lane 15"});
    check_mistake(mask_of_a_whole_warp, kOne, {40}, 0, {},
                  {"a mask of 0xffffffff names lanes that a block of 40 threads does not have"});
    check_mistake(mma_without_a_lane, kOne, {32}, 0, {}, {"lane 31 of the mask 0xffffffff has ended"});
}

// ---- Shared memory.

namespace {

__global__ void unwritten_static(const __grid_constant__ Buffers p) {
    SIMT_SHARED(int, words, 64);
    if (threadIdx.x != 3) words[threadIdx.x] = 1;
    __syncthreads();
    simt::store(p.out + threadIdx.x, MISTAKE(static_cast<int>(words[threadIdx.x])));
}
__global__ void unwritten_dynamic(const __grid_constant__ Buffers p) {
    SIMT_DYNAMIC_SHARED(pool);
    const auto first = pool.take<int>(5);
    const auto second = pool.take<float>(64);
    if (threadIdx.x < 5) first[threadIdx.x] = 1;
    __syncthreads();
    simt::store(p.out + threadIdx.x, MISTAKE(static_cast<int>(second[threadIdx.x])));
}
__global__ void partly_written(const __grid_constant__ Buffers p) {
    SIMT_SHARED(int, words, 8);
    if (threadIdx.x < 7) words[threadIdx.x] = 1;
    __syncthreads();
    if (threadIdx.x == 0) simt::store(p.out, static_cast<int>(MISTAKE(words.load<uint4>(4).x)));
}
__global__ void added_to_nothing(const __grid_constant__ Buffers) {
    SIMT_SHARED(unsigned, counters, 2);
    if (threadIdx.x == 0) counters[0] = 0;
    __syncthreads();
    simt::atomic_add(counters, 0, 1u);
    MISTAKE(simt::atomic_add(counters, 1, 1u));
}
// A block finds nothing of what another one left.
template <bool kDynamic> __global__ void left_by_another_block(const __grid_constant__ Buffers p) {
    SIMT_SHARED(int, fixed, 32);
    SIMT_DYNAMIC_SHARED(pool);
    const auto words = kDynamic ? pool.take<int>(32) : fixed;
    if (static_cast<int>(blockIdx.x) != p.n) words[threadIdx.x] = 1;
    __syncthreads();
    simt::store(p.out + blockIdx.x * 32 + threadIdx.x, MISTAKE(static_cast<int>(words[threadIdx.x])));
}

} // namespace

TEST_CASE("simt: reads of shared memory that nobody wrote") {
    std::vector<int> out(128);
    const Buffers p{nullptr, out.data(), 1};
    check_mistake(unwritten_static, kOne, {64}, 0, p,
                  {"a read of byte 12 of shared array words, which nobody has written", "thread (3, 0, 0)"});
    check_mistake(unwritten_dynamic, kOne, {64}, 1024, p, {"shared array dynamic, which nobody has written"});
    check_mistake(partly_written, kOne, {32}, 0, p,
                  {"a read of byte 28 of shared array words, which nobody has written"});
    check_mistake(added_to_nothing, kOne, {32}, 0, p, {"a read of byte 4 of shared array counters"});
    for (const int block : {0, 1, 3})
        for (const auto kernel : {left_by_another_block<false>, left_by_another_block<true>})
            check_mistake(kernel, {4}, {32}, 128, {nullptr, out.data(), block},
                          {"which nobody has written", "block (" + std::to_string(block) + ", 0, 0)"});
}

namespace {

__global__ void index_behind(const __grid_constant__ Buffers p) {
    SIMT_SHARED(int, words, 32);
    MISTAKE(words[p.n] = 1);
}
__global__ void wide_store_behind(const __grid_constant__ Buffers) {
    SIMT_SHARED(float, words, 6);
    MISTAKE(words.store<float4>(4, float4{0, 0, 0, 0}));
}
__global__ void wide_load_out_of_line(const __grid_constant__ Buffers) {
    SIMT_SHARED(int, words, 16);
    if (threadIdx.x < 16) words[threadIdx.x] = 1;
    __syncthreads();
    MISTAKE(words.load<uint4>(2));
}
__global__ void piece_behind(const __grid_constant__ Buffers) {
    SIMT_DYNAMIC_SHARED(pool);
    const auto first = pool.take<int>(8);
    const auto second = pool.take<int>(8);
    second[0] = 1;
    MISTAKE(first[8] = 1);
}
__global__ void piece_too_large(const __grid_constant__ Buffers) {
    mistake_line = __LINE__ + 1; // a pool is known by where it stands
    SIMT_DYNAMIC_SHARED(pool);
    pool.take<int>(8);
    pool.take<int>(9);
}
__global__ void too_many_static(const __grid_constant__ Buffers) {
    SIMT_SHARED(int, first, 8192);
    first[0] = 1;
    mistake_line = __LINE__ + 1;
    SIMT_SHARED(int, second, 4097);
    second[0] = 1;
}
__global__ void static_and_dynamic(const __grid_constant__ Buffers) {
    mistake_line = __LINE__ + 1;
    SIMT_SHARED(int, words, 8192);
    words[0] = 1;
}

} // namespace

TEST_CASE("simt: shared memory beyond what there is") {
    check_mistake(index_behind, kOne, kOne, 0, {nullptr, nullptr, 32},
                  {"a write of 4 bytes at byte 128 of shared array words, which has 128"});
    check_mistake(index_behind, kOne, kOne, 0, {nullptr, nullptr, -1},
                  {"a write of 4 bytes at byte -4 of shared array words"});
    check_mistake(wide_store_behind, kOne, kOne, 0, {},
                  {"a write of 16 bytes at byte 16 of shared array words, which has 24"});
    check_mistake(wide_load_out_of_line, kOne, {16}, 0, {},
                  {"a read of 16 bytes at byte 8 of shared array words, which is not aligned"});
    check_mistake(piece_behind, kOne, kOne, 64, {},
                  {"a write of 4 bytes at byte 32 of shared array dynamic, which has 32"});
    check_mistake(piece_too_large, kOne, kOne, 64, {},
                  {"a piece of 36 bytes at byte 32 of dynamic shared memory, of which the launch asked for 64"});
    check_mistake(too_many_static, kOne, kOne, 0, {}, {"shared array second of 16388 bytes"});
    check_mistake(static_and_dynamic, kOne, kOne, 200 * 1024, {}, {"shared array words of 32768 bytes"});
}

// ---- Asynchronous copies.

namespace {

__global__ void copy_without_wait(const __grid_constant__ Buffers p) {
    SIMT_SHARED(int, words, 128);
    const int i = 4 * static_cast<int>(threadIdx.x);
    simt::copy_async16(words, i, p.in + i);
    simt::copy_async_commit();
    __syncthreads();
    simt::store(p.out + i, MISTAKE(static_cast<int>(words[i])));
}
// The wait leaves the group that is read.
__global__ void copy_with_short_wait(const __grid_constant__ Buffers p) {
    SIMT_SHARED(int, words, 8);
    simt::copy_async16(words, 0, p.in);
    simt::copy_async_commit();
    simt::copy_async16(words, 4, p.in + 4);
    simt::copy_async_commit();
    simt::copy_async_wait<1>();
    simt::store(p.out, static_cast<int>(words[3]));
    simt::store(p.out, MISTAKE(static_cast<int>(words[4])));
}
__global__ void copy_without_commit(const __grid_constant__ Buffers p) {
    SIMT_SHARED(int, words, 4);
    simt::copy_async16(words, 0, p.in);
    simt::copy_async_wait<0>();
    simt::store(p.out, MISTAKE(static_cast<int>(words[0])));
}
// What was there before is gone as well.
__global__ void copy_over_values(const __grid_constant__ Buffers p) {
    SIMT_SHARED(int, words, 4);
    for (int i = 0; i < 4; ++i) words[i] = 1;
    simt::copy_async16(words, 0, p.in);
    simt::store(p.out, MISTAKE(static_cast<int>(words[0])));
}
__global__ void copy_from_out_of_line(const __grid_constant__ Buffers p) {
    SIMT_SHARED(int, words, 4);
    MISTAKE(simt::copy_async16(words, 0, p.in + 1));
}
__global__ void copy_to_out_of_line(const __grid_constant__ Buffers p) {
    SIMT_SHARED(int, words, 8);
    MISTAKE(simt::copy_async16(words, 1, p.in));
}
__global__ void copy_behind(const __grid_constant__ Buffers p) {
    SIMT_SHARED(int, words, 6);
    MISTAKE(simt::copy_async16(words, 4, p.in));
}

} // namespace

TEST_CASE("simt: asynchronous copies that are read too early or stand in the wrong place") {
    const Array<int> in(std::vector<int>(256, 7)), out(std::vector<int>(256, 0));
    const Buffers p{in.data(), out.data(), 0};
    check_mistake(copy_without_wait, kOne, {32}, 0, p, {"shared array words, which nobody has written"});
    check_mistake(copy_with_short_wait, kOne, kOne, 0, p, {"a read of byte 16 of shared array words, which nobody"});
    check_mistake(copy_without_commit, kOne, kOne, 0, p, {"a read of byte 0 of shared array words, which nobody"});
    check_mistake(copy_over_values, kOne, kOne, 0, p, {"a read of byte 0 of shared array words, which nobody"});
    check_mistake(copy_from_out_of_line, kOne, kOne, 0, p, {"a read of 16 bytes at", "which is not aligned to 16"});
    check_mistake(copy_to_out_of_line, kOne, kOne, 0, p,
                  {"a write of 16 bytes at byte 4 of shared array words, which is not aligned"});
    check_mistake(copy_behind, kOne, kOne, 0, p,
                  {"a write of 16 bytes at byte 16 of shared array words, which has 24"});
}

// ---- Global memory and the launch.

namespace {

template <typename V> __global__ void load_at(const __grid_constant__ Buffers p) {
    MISTAKE(simt::load(reinterpret_cast<const V *>(reinterpret_cast<const char *>(p.in) + p.n)));
}
template <typename V> __global__ void store_at(const __grid_constant__ Buffers p) {
    MISTAKE(simt::store(reinterpret_cast<V *>(reinterpret_cast<char *>(p.out) + p.n), V{}));
}
__global__ void nothing(const __grid_constant__ Buffers) {}

struct Named {
    const char *name;
    simt::Dim3 grid, block;
    std::size_t shared;
};

} // namespace

TEST_CASE("simt: accesses that are not aligned") {
    const Array<int> memory(std::vector<int>(16, 0));
    const auto p = [&](int offset) { return Buffers{memory.data(), memory.data(), offset}; };
    check_mistake(load_at<int>, kOne, kOne, 0, p(2), {"a read of 4 bytes at", "which is not aligned to 4"});
    check_mistake(load_at<uint4>, kOne, kOne, 0, p(8), {"a read of 16 bytes at", "which is not aligned to 16"});
    check_mistake(load_at<float2>, kOne, kOne, 0, p(4), {"a read of 8 bytes at", "which is not aligned to 8"});
    check_mistake(store_at<std::uint16_t>, kOne, kOne, 0, p(1), {"a write of 2 bytes at", "which is not aligned to 2"});
    check_mistake(store_at<uint4>, kOne, kOne, 0, p(4), {"a write of 16 bytes at", "which is not aligned to 16"});
    REQUIRE_LAUNCHES(SIMT_LAUNCH(nullptr, (load_at<uint4>), kOne, kOne, 0, p(16)));
    REQUIRE_LAUNCHES(SIMT_LAUNCH(nullptr, (store_at<float2>), kOne, kOne, 0, p(24)));
}

TEST_CASE("simt: launches that no device can run") {
    const Named kCases[] = {
        {"no blocks", {0}, {32}, 0},
        {"no blocks in y", {1, 0}, {32}, 0},
        {"no threads", {1}, {0}, 0},
        {"too many threads", {1}, {1025}, 0},
        {"too many threads in all", {1}, {33, 32}, 0},
        {"y too large", {1, 65536}, {32}, 0},
        {"z too large", {1, 1, 65536}, {32}, 0},
        {"x too large", {0x80000000u}, {32}, 0},
        {"too much shared memory", {1}, {32}, 227 * 1024 + 1},
    };
    for (const Named &c : kCases) {
        CAPTURE(std::string(c.name));
        CHECK(SIMT_LAUNCH(nullptr, (nothing), c.grid, c.block, c.shared, Buffers{}) == simt::kLaunchFailure);
        const std::string sentence = simt::last_failure();
        CAPTURE(sentence);
        CHECK(has(sentence, "a grid of " + std::to_string(c.grid.x) + " x " + std::to_string(c.grid.y) + " x " +
                                std::to_string(c.grid.z)));
        CHECK(has(sentence, "a block of " + std::to_string(c.block.x)));
        CHECK(has(sentence, std::to_string(c.shared) + " shared bytes cannot run"));
        CHECK(has(sentence, "nothing"));
    }
    REQUIRE_LAUNCHES(
        SIMT_LAUNCH(nullptr, (nothing), (simt::Dim3{1, 9, 7}), (simt::Dim3{32, 32}), 227 * 1024, Buffers{}));
}

// ---- Blocks in each other's way.

namespace {

int block() {
    return static_cast<int>(blockIdx.x);
}
std::uint8_t *bytes_of(int *p) {
    return reinterpret_cast<std::uint8_t *>(p);
}

// Rows of p.n bytes, one a block, side by side.
__global__ void writes_rows(const __grid_constant__ Buffers p) {
    for (int i = lane(); i < p.n; i += simt::kWarp)
        simt::store(bytes_of(p.out) + block() * p.n + i, static_cast<std::uint8_t>(block()));
}
// One byte too many: the next row's first, or what that row has left.
__global__ void writes_into_the_next_row(const __grid_constant__ Buffers p) {
    for (int i = lane(); i < p.n + (block() == 1 ? 1 : 0); i += simt::kWarp)
        MISTAKE(simt::store(bytes_of(p.out) + block() * p.n + i, std::uint8_t{1}));
}
__global__ void reads_the_next_row(const __grid_constant__ Buffers p) {
    for (int i = lane(); i < p.n; i += simt::kWarp)
        MISTAKE(simt::store(bytes_of(p.out) + block() * p.n + i, std::uint8_t{1}),
                simt::load(bytes_of(p.out) + std::min(block() + 1, 3) * p.n + p.n - 1));
}
// A word that a block writes and a wider read of another touch in their last bytes alone.
__global__ void reads_too_wide(const __grid_constant__ Buffers p) {
    if (block() == 0)
        MISTAKE(simt::store(p.out + 3, 1));
    else
        MISTAKE(simt::load(reinterpret_cast<const uint4 *>(p.out)));
}
// Of three readers, none of which is in another's way, any may be the first.
__global__ void writes_what_others_read(const __grid_constant__ Buffers p) {
    MISTAKE(simt::load(p.out), block() == 2 ? simt::store(p.out, 1) : void());
}
__global__ void adds(const __grid_constant__ Buffers p) {
    simt::atomic_add(p.out + lane() % 2, 1);
}
__global__ void adds_to_what_is_read(const __grid_constant__ Buffers p) {
    MISTAKE(block() == 1 ? simt::load(p.out) : simt::atomic_add(p.out, 1));
}
__global__ void adds_to_what_is_written(const __grid_constant__ Buffers p) {
    MISTAKE(block() == 1 ? simt::store(p.out, 0) : static_cast<void>(simt::atomic_add(p.out, 1)));
}
// Two blocks add, and one of them writes as well.
__global__ void adds_then_writes(const __grid_constant__ Buffers p) {
    MISTAKE(simt::atomic_add(p.out, 1), block() == 1 ? simt::store(p.out, 0) : void());
}
__global__ void writes_then_adds(const __grid_constant__ Buffers p) {
    MISTAKE(block() == 1 ? simt::store(p.out, 0) : void(), simt::atomic_add(p.out, 1));
}
// Four blocks read bytes of one word, each its own, and one writes the byte of another.
__global__ void writes_a_byte_that_another_reads(const __grid_constant__ Buffers p) {
    std::uint8_t *const bytes = bytes_of(p.out);
    MISTAKE(simt::load(bytes + block()),
            block() == p.n ? simt::store(bytes + (block() + 1) % 4, std::uint8_t{1}) : void());
}
// All read one byte, and a second one each; one writes the first.
template <bool kReads> __global__ void writes_a_byte_that_all_read(const __grid_constant__ Buffers p) {
    std::uint8_t *const bytes = bytes_of(p.out);
    MISTAKE(kReads || block() != p.n ? (simt::load(bytes), simt::load(bytes + block())) : std::uint8_t{},
            block() == p.n ? simt::store(bytes, std::uint8_t{1}) : void());
}
// Each block its own words, in any way; and all of them what nobody changes.
__global__ void keeps_to_itself(const __grid_constant__ Buffers p) {
    int *const own = p.out + block() * 4;
    int sum = 0;
    for (int i = 0; i < p.n; ++i) sum += simt::load(bytes_of(const_cast<int *>(p.in)) + i);
    simt::store(own, sum);
    simt::store(own + 1, simt::load(own) + simt::load(p.in));
    simt::store(own + 2, 0);
    simt::atomic_add(own + 2, 5);
    simt::store(own + 3, simt::load(own + 2));
    simt::store(bytes_of(own + 3) + 1, std::uint8_t{1});
}

} // namespace

TEST_CASE("simt: blocks that touch the same byte, one of them changing it") {
    std::vector<int> memory(64);
    const auto p = [&](int n) { return Buffers{memory.data(), memory.data(), n}; };
    const std::string order = "and the result depends on the order of blocks";
    for (const int n : {1, 2, 3, 4, 16, 17, 33}) {
        CAPTURE(n);
        const auto *const byte = reinterpret_cast<const std::uint8_t *>(memory.data()) + 2 * n;
        char text[64];
        std::snprintf(text, sizeof text, " has written byte %p", static_cast<const void *>(byte));
        check_mistake(writes_into_the_next_row, {4}, {32}, 0, p(n), {"a write of 1 bytes at", text, order});
    }
    check_mistake(reads_the_next_row, {4}, {32}, 0, p(17), {" of 1 bytes at", order});
    check_mistake(reads_too_wide, {2}, kOne, 0, p(0), {" bytes at", ": block (", order});
    check_mistake(writes_what_others_read, {3}, kOne, 0, p(0), {" of 4 bytes at", order});
    check_mistake(adds_to_what_is_read, {2}, kOne, 0, p(0), {order});
    check_mistake(adds_to_what_is_written, {2}, kOne, 0, p(0), {order});
    check_mistake(adds_then_writes, {2}, kOne, 0, p(0), {order});
    check_mistake(writes_then_adds, {2}, kOne, 0, p(0), {order});
    check_mistake(writes_a_byte_that_all_read<false>, {2}, kOne, 0, p(0), {" of 1 bytes at", order});
    for (const int writer : {0, 1, 2, 3}) {
        check_mistake(writes_a_byte_that_another_reads, {4}, kOne, 0, p(writer), {" of 1 bytes at", order});
        check_mistake(writes_a_byte_that_all_read<false>, {4}, kOne, 0, p(writer), {" of 1 bytes at", order});
        check_mistake(writes_a_byte_that_all_read<true>, {4}, kOne, 0, p(writer), {" of 1 bytes at", order});
    }
}

TEST_CASE("simt: of two blocks in each other's way, both are named, with what they did") {
    std::vector<int> memory(4);
    const Buffers p{nullptr, memory.data(), 0};
    // By the seed one block or the other is second.
    const auto check_both = [&](auto kernel, simt::Dim3 grid, std::set<std::string> expected) {
        std::set<std::string> found;
        Seeds(20).each([&] {
            CHECK(SIMT_LAUNCH(nullptr, (kernel), grid, kOne, 0, p) == simt::kLaunchFailure);
            std::string sentence = simt::last_failure();
            char address[32];
            std::snprintf(address, sizeof address, "%p", static_cast<const void *>(memory.data()));
            for (std::size_t at; (at = sentence.find(address)) != std::string::npos;)
                sentence.replace(at, std::strlen(address), "P");
            const std::size_t begin = sentence.find(": ") + 2, end = sentence.find(", thread");
            REQUIRE(end != std::string::npos);
            found.insert(sentence.substr(begin, end - begin));
        });
        for (const std::string &sentence : found) CHECK(expected.erase(sentence) == 1);
        CHECK(expected.empty());
    };
    const std::string between = " byte P, and the result depends on the order of blocks: kernel (kernel), block (";
    check_both(adds_to_what_is_read, {2},
               {"an atomic of 4 bytes at P: block (1, 0, 0) has read" + between + "0, 0, 0)",
                "a read of 4 bytes at P: block (0, 0, 0) has changed by an atomic" + between + "1, 0, 0)"});
    check_both(adds_to_what_is_written, {2},
               {"an atomic of 4 bytes at P: block (1, 0, 0) has written" + between + "0, 0, 0)",
                "a write of 4 bytes at P: block (0, 0, 0) has changed by an atomic" + between + "1, 0, 0)"});
    check_both(writes_what_others_read, {3},
               {"a write of 4 bytes at P: block (0, 0, 0) has read" + between + "2, 0, 0)",
                "a write of 4 bytes at P: block (1, 0, 0) has read" + between + "2, 0, 0)",
                "a read of 4 bytes at P: block (2, 0, 0) has written" + between + "0, 0, 0)",
                "a read of 4 bytes at P: block (2, 0, 0) has written" + between + "1, 0, 0)"});
}

TEST_CASE("simt: blocks that are not in each other's way") {
    std::vector<int> in(32, 3), out(64);
    Seeds(6).each([&] {
        for (const int n : {1, 2, 3, 4, 16, 17, 33}) {
            CAPTURE(n);
            // What one launch has touched, the next one may.
            for (const simt::Dim3 grid : {simt::Dim3{4}, simt::Dim3{4}, simt::Dim3{3}}) {
                REQUIRE_LAUNCHES(
                    SIMT_LAUNCH(nullptr, (writes_rows), grid, simt::Dim3{32}, 0, (Buffers{nullptr, out.data(), n})));
                for (int i = 0; i < static_cast<int>(grid.x) * n; ++i) CHECK(bytes_of(out.data())[i] == i / n);
            }
        }
        out[0] = out[1] = 0;
        REQUIRE_LAUNCHES(
            SIMT_LAUNCH(nullptr, (adds), simt::Dim3{9}, simt::Dim3{32}, 0, (Buffers{nullptr, out.data()})));
        CHECK(out[0] == 9 * 16);
        CHECK(out[1] == 9 * 16);
        REQUIRE_LAUNCHES(
            SIMT_LAUNCH(nullptr, (keeps_to_itself), simt::Dim3{12}, kOne, 0, (Buffers{in.data(), out.data(), 30})));
        CHECK(out[4 * 11 + 1] == 8 * 3 + 3);
        // One block does as it likes.
        REQUIRE_LAUNCHES(SIMT_LAUNCH(nullptr, (adds_then_writes), kOne, kOne, 0, (Buffers{nullptr, out.data()})));
    });
}

TEST_CASE("simt: blocks in each other's way are found over much memory, of which not all is kept in mind") {
    constexpr int kBlocks = 64, kBytes = 1 << 18, kLaunches = 6;
    std::vector<int> out(kLaunches * kBlocks * kBytes / 4 + 1);
    for (int i = 0; i < kLaunches; ++i) {
        const Buffers p{nullptr, out.data() + i * kBlocks * kBytes / 4, kBytes};
        REQUIRE_LAUNCHES(SIMT_LAUNCH(nullptr, (writes_rows), simt::Dim3{kBlocks}, kOne, 0, p));
        check_found(SIMT_LAUNCH(nullptr, (writes_into_the_next_row), simt::Dim3{kBlocks}, kOne, 0, p),
                    {"depends on the order of blocks"});
    }
}

// ---- Orders.

namespace {

// Who comes first gets the first place: nothing that CUDA promises.
__global__ void takes_tickets(const __grid_constant__ Buffers p) {
    simt::store(p.out + simt::atomic_add(p.out + p.n, 1), static_cast<int>(blockIdx.x));
}
__global__ void takes_tickets_of_block(const __grid_constant__ Buffers p) {
    SIMT_SHARED(int, ticket, 1);
    if (threadIdx.x == 0) ticket[0] = 0;
    __syncthreads();
    simt::store(p.out + simt::atomic_add(ticket, 0, 1), static_cast<int>(threadIdx.x));
}

} // namespace

TEST_CASE("simt: what depends on the order of blocks or threads differs between seeds, and repeats with one") {
    constexpr int kBlocks = 12, kThreads = 96;
    const auto tickets = [&](std::uint64_t seed) {
        simt::set_seed(seed);
        std::vector<int> out(kBlocks + 1, 0);
        REQUIRE_LAUNCHES(SIMT_LAUNCH(nullptr, (takes_tickets), simt::Dim3{kBlocks}, kOne, 0,
                                     (Buffers{nullptr, out.data(), kBlocks})));
        CHECK(out.back() == kBlocks);
        out.pop_back();
        std::vector<int> of_block(kThreads);
        REQUIRE_LAUNCHES(SIMT_LAUNCH(nullptr, (takes_tickets_of_block), kOne, simt::Dim3{kThreads}, 0,
                                     (Buffers{nullptr, of_block.data(), 0})));
        for (auto *const order : {&out, &of_block}) {
            std::vector<int> sorted = *order;
            std::sort(sorted.begin(), sorted.end());
            for (std::size_t i = 0; i < sorted.size(); ++i) CHECK(sorted[i] == static_cast<int>(i));
        }
        return std::pair(out, of_block);
    };
    const std::uint64_t before = simt::seed();
    std::set<std::vector<int>> orders_of_blocks, orders_of_threads;
    std::set<int> first_warps;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        const auto once = tickets(seed);
        CHECK(once == tickets(seed));
        CHECK(simt::seed() == seed);
        orders_of_blocks.insert(once.first);
        orders_of_threads.insert(once.second);
        first_warps.insert(once.second[0] / simt::kWarp);
    }
    simt::set_seed(before);
    CHECK(orders_of_blocks.size() == 20);
    CHECK(orders_of_threads.size() == 20);
    CHECK(first_warps.size() == kThreads / simt::kWarp);
}

// ---- What is right, is right for every seed.

namespace {

constexpr int kStages = 3;

// Everything at once: blocks whose last warp is not whole, static and dynamic arrays, pipelined copies, masks, barriers
// in loops, counters.
__global__ void everything(const __grid_constant__ Buffers p) {
    SIMT_SHARED(int, totals, 1);
    SIMT_SHARED(unsigned, masks, 4);
    SIMT_DYNAMIC_SHARED(pool);
    const int n_threads = static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
    const int thread = static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
    const int block = static_cast<int>(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
    const int warp = thread / simt::kWarp, in_warp = thread % simt::kWarp;
    const auto staged = pool.take<int>(static_cast<std::size_t>(2 * 4 * n_threads));
    const auto sums = pool.take<long long>(static_cast<std::size_t>(n_threads));
    const int n_in_warp = n_threads - warp * simt::kWarp < simt::kWarp ? n_threads - warp * simt::kWarp : simt::kWarp;
    const unsigned mask = n_in_warp == simt::kWarp ? simt::kFullMask : (1u << n_in_warp) - 1;
    const int *const in = p.in + block * kStages * 4 * n_threads;
    if (thread == 0) totals[0] = 0;
    if (thread < 4) masks[thread] = 0;

    const auto fetch = [&](int stage) {
        simt::copy_async16(staged, (stage % 2 * n_threads + thread) * 4, in + (stage * n_threads + thread) * 4);
        simt::copy_async_commit();
    };
    fetch(0);
    long long sum = 0;
    for (int stage = 0; stage < kStages; ++stage) {
        if (stage + 1 < kStages) {
            fetch(stage + 1);
            simt::copy_async_wait<1>();
        } else {
            simt::copy_async_wait<0>();
        }
        __syncthreads();
        // A neighbour's values.
        const auto values = staged.template load<int4>((stage % 2 * n_threads + (thread + 1) % n_threads) * 4);
        sum += values.x + 3 * values.y + 5 * values.z + 7 * values.w;
        __syncthreads();
    }
    sums[thread] = sum;
    __syncwarp();
    sum += sums[warp * simt::kWarp + (in_warp + 1) % n_in_warp];
    const long long first = __shfl_sync(mask, sum, 0);
    const int below = __shfl_up_sync(mask, thread, 1);
    const unsigned odd = __ballot_sync(mask, sum & 1);
    const bool any = __any_sync(mask, thread == 5), all = __all_sync(mask, thread < 64);
    // The whole lower half of a warp alone.
    int pairs = 0;
    if (n_in_warp >= 16 && in_warp < 16) pairs = __shfl_xor_sync(0xffffu, thread, 8);
    simt::atomic_add(totals, 0, static_cast<int>(odd >> in_warp & 1));
    if (in_warp == 0) masks[warp] = odd;
    __syncthreads();
    int bits = 0;
    for (int w = 0; w < (n_threads + simt::kWarp - 1) / simt::kWarp; ++w) bits += __popc(masks[w]);
    int *const out = p.out + (block * n_threads + thread) * 6;
    simt::store(out, static_cast<int>(sum));
    simt::store(out + 1, static_cast<int>(first));
    simt::store(out + 2, below);
    simt::store(out + 3, (any ? 1 : 0) + (all ? 2 : 0));
    simt::store(out + 4, pairs);
    simt::store(out + 5, bits == totals[0] ? bits : -1);
    if (thread == 0) simt::atomic_add(p.out + p.n, 1);
}

std::vector<int> everything_on_host(const std::vector<int> &in, int n_blocks, int n_threads) {
    std::vector<int> out;
    for (int block = 0; block < n_blocks; ++block) {
        std::vector<long long> sums(static_cast<std::size_t>(n_threads), 0), with_next = sums;
        for (int thread = 0; thread < n_threads; ++thread)
            for (int stage = 0; stage < kStages; ++stage)
                for (int i = 0; i < 4; ++i)
                    sums[static_cast<std::size_t>(thread)] +=
                        (2 * i + 1) * in[static_cast<std::size_t>(
                                          ((block * kStages + stage) * n_threads + (thread + 1) % n_threads) * 4 + i)];
        int n_odd = 0;
        for (int thread = 0; thread < n_threads; ++thread) {
            const int begin = thread / 32 * 32, size = std::min(n_threads - begin, 32);
            with_next[static_cast<std::size_t>(thread)] =
                sums[static_cast<std::size_t>(thread)] +
                sums[static_cast<std::size_t>(begin + (thread - begin + 1) % size)];
            n_odd += static_cast<int>(with_next[static_cast<std::size_t>(thread)] & 1);
        }
        for (int thread = 0; thread < n_threads; ++thread) {
            const int begin = thread / 32 * 32, size = std::min(n_threads - begin, 32), in_warp = thread - begin;
            out.push_back(static_cast<int>(with_next[static_cast<std::size_t>(thread)]));
            out.push_back(static_cast<int>(with_next[static_cast<std::size_t>(begin)]));
            out.push_back(in_warp == 0 ? thread : thread - 1);
            out.push_back((begin == 0 && size > 5 ? 1 : 0) + (begin + size <= 64 ? 2 : 0));
            out.push_back(size >= 16 && in_warp < 16 ? begin + (in_warp ^ 8) : 0);
            out.push_back(n_odd);
        }
    }
    out.push_back(n_blocks);
    return out;
}

} // namespace

TEST_CASE("simt: a kernel without mistakes gives the same for every seed and size of block") {
    Random random(741);
    const simt::Dim3 kGrids[] = {{1}, {5}, {3, 2, 2}};
    const simt::Dim3 kSizes[] = {{1}, {7}, {32}, {33}, {24, 3}, {8, 2, 3}, {96}, {100}, {128}};
    for (const simt::Dim3 grid : kGrids)
        for (const simt::Dim3 size : kSizes) {
            const int n_blocks = static_cast<int>(grid.x * grid.y * grid.z);
            const int n_threads = static_cast<int>(size.x * size.y * size.z);
            CAPTURE(n_blocks);
            CAPTURE(n_threads);
            std::vector<int> values(static_cast<std::size_t>(n_blocks * kStages * 4 * n_threads));
            for (int &value : values) value = random.between(-1000, 1000);
            const Array<int> in(values);
            const std::vector<int> expected = everything_on_host(values, n_blocks, n_threads);
            const auto n = static_cast<std::size_t>(n_threads);
            const std::size_t shared = simt::shared_bytes<int>(8 * n) + simt::shared_bytes<long long>(n);
            Seeds(12).each([&] {
                Array<int> out(expected.size());
                const int last = static_cast<int>(expected.size()) - 1;
                out[expected.size() - 1] = 0;
                REQUIRE_LAUNCHES(
                    SIMT_LAUNCH(nullptr, (everything), grid, size, shared, (Buffers{in.data(), out.data(), last})));
                CHECK(out.get() == expected);
            });
        }
}

namespace {

// Each thread writes where it stands.
__global__ void places(const __grid_constant__ Buffers p) {
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned at = block * blockDim.x * blockDim.y * blockDim.z + thread;
    simt::store(p.out + at, simt::load(p.out + at) + static_cast<int>(at));
}

} // namespace

TEST_CASE("simt: every thread of every block runs once, with its own indices; launches and bytes are counted") {
    const simt::Dim3 grid{3, 4, 5}, size{7, 3, 2};
    std::vector<int> out(3 * 4 * 5 * 7 * 3 * 2, 1);
    simt::take_counts();
    for (int i = 0; i < 2; ++i)
        REQUIRE_LAUNCHES(SIMT_LAUNCH(nullptr, (places), grid, size, 0, (Buffers{nullptr, out.data(), 0})));
    for (std::size_t i = 0; i < out.size(); ++i) CHECK(out[i] == 2 * static_cast<int>(i) + 1);
    const simt::Counts counts = simt::take_counts();
    CHECK(counts.n_launches == 2);
    CHECK(counts.bytes_read == 2 * 4 * out.size());
    CHECK(counts.bytes_written == 2 * 4 * out.size());
    CHECK(simt::take_counts().n_launches == 0);
}

// ---- Tensor cores and integer helpers.

namespace {

struct Tiles {
    const Bf16 *a; // [16, 16]
    const Bf16 *b; // [8, 16]: B's columns
    const float *c;
    float *d; // [16, 8]
};

std::uint32_t two(const Bf16 *p) {
    return simt::load(reinterpret_cast<const std::uint32_t *>(p));
}

// Fragments by the table of the PTX manual.
__global__ void multiply(const __grid_constant__ Tiles p) {
    const int group = lane() / 4, t = lane() % 4;
    const std::uint32_t a[4] = {two(p.a + group * 16 + 2 * t), two(p.a + (group + 8) * 16 + 2 * t),
                                two(p.a + group * 16 + 2 * t + 8), two(p.a + (group + 8) * 16 + 2 * t + 8)};
    const std::uint32_t b[2] = {two(p.b + group * 16 + 2 * t), two(p.b + group * 16 + 2 * t + 8)};
    float d[4];
    for (int i = 0; i < 4; ++i) d[i] = simt::load(p.c + (group + i / 2 * 8) * 8 + 2 * t + i % 2);
    simt::mma_m16n8k16_bf16(d, a, b);
    for (int i = 0; i < 4; ++i) simt::store(p.d + (group + i / 2 * 8) * 8 + 2 * t + i % 2, d[i]);
}

} // namespace

TEST_CASE("simt: the tensor cores' product is the scalar one, in ascending order") {
    Random random(742);
    for (int kind = 0; kind < 3; ++kind) {
        CAPTURE(kind);
        const auto values = [&](int n) {
            std::vector<Bf16> v = random.bf16_row(n, 1.0);
            if (kind == 1)
                for (Bf16 &value : v) value = to_bf16(static_cast<float>(random.between(-8, 8)));
            return v;
        };
        const Array<Bf16> a(values(256)), b(values(128));
        if (kind == 2) a[5 * 16 + 3] = Bf16{0x7fc0};
        const Array<float> c(128), d(128);
        for (std::size_t i = 0; i < 128; ++i) c[i] = static_cast<float>(random.between(-9, 9)) / (kind ? 1.0f : 7.0f);
        REQUIRE_LAUNCHES(
            SIMT_LAUNCH(nullptr, (multiply), kOne, simt::Dim3{32}, 0, (Tiles{a.data(), b.data(), c.data(), d.data()})));
        std::vector<float> expected;
        for (std::size_t row = 0; row < 16; ++row)
            for (std::size_t col = 0; col < 8; ++col) {
                float sum = c[row * 8 + col];
                for (std::size_t k = 0; k < 16; ++k) sum += to_f32(a[row * 16 + k]) * to_f32(b[col * 16 + k]);
                expected.push_back(sum);
            }
        CHECK(same_bits(d.get(), expected, {16, 8}));
        CHECK(is_nan(d[5 * 8]) == (kind == 2));
    }
}

TEST_CASE("simt: sums of four signed bytes, and permuted bytes") {
    Random random(743);
    CHECK(simt::dot4(static_cast<int>(0x80808080u), static_cast<int>(0x80808080u), 5) == 4 * 16384 + 5);
    CHECK(simt::dot4(static_cast<int>(0x7f7f7f7fu), static_cast<int>(0x80808080u), 0) == -4 * 127 * 128);
    CHECK(simt::dot4(0x04030201, 0x01010101, -10) == 0);
    CHECK(simt::dot4(0x00ff0002, 0x00ff0003, 0) == 7);
    CHECK(simt::byte_perm(0x33221100, 0x77665544, 0x7531) == 0x77553311);
    CHECK(simt::byte_perm(0x33221100, 0x77665544, 0x0123) == 0x00112233);
    CHECK(simt::byte_perm(0x80221100, 0x7f665544, 0xfb98) == 0x00ff0000); // signs of bytes 7, 3, 1 and 0
    Tally tally;
    for (int i = 0; i < 20000; ++i) {
        const auto a = static_cast<std::uint32_t>(random.bits()), b = static_cast<std::uint32_t>(random.bits());
        const auto s = static_cast<std::uint32_t>(random.bits());
        std::int8_t bytes[8], others[4];
        std::memcpy(bytes, &a, 4);
        std::memcpy(bytes + 4, &b, 4);
        std::memcpy(others, &b, 4);
        int dot = 1;
        for (int k = 0; k < 4; ++k) dot += bytes[k] * others[k];
        tally.expect(simt::dot4(static_cast<int>(a), static_cast<int>(b), 1) == dot, "dot4(0x%x, 0x%x)", a, b);
        std::uint8_t permuted[4];
        for (int k = 0; k < 4; ++k) {
            const std::uint32_t selector = s >> (4 * k) & 15;
            const std::int8_t byte = bytes[selector % 8];
            permuted[k] = static_cast<std::uint8_t>(selector < 8 ? byte : byte < 0 ? -1 : 0);
        }
        std::uint32_t word;
        std::memcpy(&word, permuted, 4);
        tally.expect(simt::byte_perm(a, b, s) == word, "byte_perm(0x%x, 0x%x, 0x%x)", a, b, s);
    }
    CHECK(tally);
}

TEST_SUITE_END();
