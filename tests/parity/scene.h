// What stage tests stand on: guarded buffers in a backend's memory that start as NaN, caches in scattered pages, a
// layer with weights of any format, and steps of several spans. All of it is uploaded, so a backend on a device is
// tested by the same code.
#pragma once

#include "backend/backend.h"
#include "backend/cpu/targets.h"
#include "oracle.h"

#include <cstring>
#include <doctest/doctest.h>
#include <memory>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define DS41_TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DS41_TEST_ASAN 1
#endif
#endif

namespace ds41::test {

#ifdef DS41_TEST_ASAN
constexpr std::size_t kGuardBytes = 0; // the sanitizer's own red zones stand there
#else
constexpr std::size_t kGuardBytes = 256;
#endif

// Nobody expects -1, which means "none" among indices, in an int buffer that was not written.
template <class T> constexpr std::uint8_t kPoison = std::is_same_v<T, std::int32_t> ? 0x5a : 0xff;

template <class T> class Buffer {
public:
    Buffer(const Memory &memory, std::size_t n)
        : memory_(&memory), n_(n), block_(memory, n * sizeof(T) + 2 * kGuardBytes) {
        poison();
    }
    Buffer(const Memory &memory, const std::vector<T> &values) : Buffer(memory, values.size()) { set(values); }
    Buffer(Buffer &&) noexcept = default;
    ~Buffer() {
        if (block_.data()) CHECK_MESSAGE(guards_are_intact(), "a stage wrote outside a buffer of ", n_, " elements");
    }

    T *data() const { return block_.data() ? reinterpret_cast<T *>(block_.as<std::uint8_t>() + kGuardBytes) : nullptr; }
    std::size_t size() const { return n_; }
    void poison() { fill(kPoison<T>); }
    void fill(std::uint8_t byte) {
        const std::vector<std::uint8_t> bytes(block_.n_bytes(), byte);
        memory_->upload(block_.data(), bytes.data(), bytes.size());
        guard_ = byte;
    }
    void set(const std::vector<T> &values, std::size_t at = 0) {
        REQUIRE(at + values.size() <= n_);
        memory_->upload(data() + at, values.data(), values.size() * sizeof(T));
    }
    std::vector<T> get(std::size_t at, std::size_t n) const {
        REQUIRE(at + n <= n_);
        std::vector<T> values(n);
        memory_->download(values.data(), data() + at, n * sizeof(T));
        return values;
    }
    std::vector<T> get() const { return get(0, n_); }

private:
    bool guards_are_intact() const {
        std::vector<std::uint8_t> bytes(block_.n_bytes());
        memory_->download(bytes.data(), block_.data(), bytes.size());
        for (std::size_t i = 0; i < kGuardBytes; ++i)
            if (bytes[i] != guard_ || bytes[bytes.size() - 1 - i] != guard_) return false;
        return true;
    }

    const Memory *memory_;
    std::size_t n_;
    Block block_;
    std::uint8_t guard_ = 0;
};

template <class T> bool equal_bits(const std::vector<T> &a, const std::vector<T> &b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class T> std::vector<T> slice(const std::vector<T> &values, std::size_t at, std::size_t n) {
    REQUIRE(at + n <= values.size());
    return {values.begin() + static_cast<std::ptrdiff_t>(at), values.begin() + static_cast<std::ptrdiff_t>(at + n)};
}

template <class T> void append(std::vector<T> &values, const std::vector<T> &more) {
    values.insert(values.end(), more.begin(), more.end());
}

// Packed rows [first, first + n): pages around them, none elsewhere, every byte poisoned until set.
class Cache {
public:
    Cache(const Memory &memory, std::size_t row_bytes, std::int64_t first, std::int64_t n);

    RowsView view() const { return {table_.data(), row_bytes_}; }
    void set(std::int64_t row, const std::vector<std::uint8_t> &bytes);
    std::vector<std::uint8_t> get(std::int64_t row) const;
    // Rows of the pages that are there and have been written since they were poisoned.
    std::vector<std::int64_t> written() const;
    std::vector<std::uint8_t> bytes() const;

private:
    // Allocated in order and used backwards: neighbouring rows of two pages do not touch.
    const Buffer<std::uint8_t> &page(std::size_t i) const { return pages_[pages_.size() - 1 - i]; }
    Buffer<std::uint8_t> &page(std::size_t i) { return pages_[pages_.size() - 1 - i]; }

    std::size_t row_bytes_;
    std::int64_t first_page_;
    std::vector<Buffer<std::uint8_t>> pages_;
    Buffer<std::uint8_t *> table_;
};

struct Geometry {
    const char *name;
    int dim, n_heads, head_dim, rope_dim, q_rank, o_groups, o_rank, window, index_heads, index_dim;
};

constexpr Geometry kTiny = {"tiny", 32, 1, 32, 2, 32, 1, 8, 1, 1, 32};
constexpr Geometry kOdd = {"odd", 96, 6, 96, 34, 160, 3, 48, 5, 3, 64};
constexpr Geometry kWholeHead = {"whole head rotated", 64, 4, 32, 32, 64, 2, 16, 8, 4, 32};
constexpr Geometry kSuperBlocks = {"multiples of 256", 256, 4, 256, 16, 512, 2, 128, 6, 5, 64};
constexpr Geometry kProduction = {"production heads", 256, 64, 512, 64, 256, 8, 32, 128, 32, 128};

// Layers of every test configuration.
enum LayerKind { kWindowLayer, kSourceLayer, kLaterIndexLayer, kConsumerLayer };

// A source layer that is a candidate source when n_blocks > 0; the later index layer then uses its candidates.
ds41_config make_config(const Geometry &geometry, int ratio, int topk = 8, int n_blocks = 0, int block_size = 4);

struct SpanSpec {
    std::int64_t start_pos;
    int n_tokens;

    std::int64_t end_pos() const { return start_pos + n_tokens; }
};
using Spans = std::vector<SpanSpec>;

int token_count(const Spans &spans);

// Lengths of the tiles that a step is cut into: all at once, one by one, and unevenly.
std::vector<std::vector<int>> tilings(int n_tokens);

// One layer of a model on a backend.
struct TestLayer {
    TestLayer(const Backend &on, const ds41_config &raw, int layer);

    const Memory &memory() const { return backend.memory(); }
    Matrix hold(const TestMatrix &matrix);
    const float *hold(const std::vector<float> &values);
    std::unique_ptr<Stages> create_stages(const Spans &spans) const;
    int ratio() const { return role.ratio; }

    const Backend &backend;
    Config config;
    LayerRole role;
    RopeTable rope;
    LayerWeights weights;

private:
    std::vector<Buffer<std::uint8_t>> bytes_;
    std::vector<Buffer<float>> floats_;
};

// A step's spans with caches of their own, in the state before the step: nothing but poison until a test fills it.
class TestStep {
public:
    struct Sequence {
        Cache window, compressed, index_keys;
        Buffer<float> group_state;
    };

    TestStep(const TestLayer &layer, const Spans &spans);

    LayerView view();
    Sequence &sequence(std::size_t span) { return sequences_[span]; }
    const std::vector<TokenView> &tokens() const { return tokens_; }
    int n_tokens() const { return static_cast<int>(tokens_.size()); }

    // Group columns of a selection, and blocks, as wide as the longest sequence needs.
    int n_group_slots() const;
    int n_block_slots() const;
    std::int64_t n_groups(std::size_t span) const { return groups_among(spans_[span].end_pos(), layer_.ratio()); }

private:
    const TestLayer &layer_;
    Spans spans_;
    std::vector<Sequence> sequences_;
    std::vector<TokenView> tokens_;
    std::vector<SpanView> views_;
    Buffer<TokenView> token_buffer_;
    Buffer<SpanView> view_buffer_;
};

// `run(stages, poisoned)` three times: fresh; on inputs that are all NaN, whatever comes out; and again. The last must
// be the first bit for bit: nothing may be left of the second in a workspace.
template <class Run> auto repeated(const TestLayer &layer, const Spans &spans, Run run) {
    const auto stages = layer.create_stages(spans);
    auto first = run(*stages, false);
    run(*stages, true);
    CHECK_MESSAGE(first == run(*stages, false), "a second run gave other bits");
    return first;
}

inline std::vector<Bf16> poisoned(std::size_t n) {
    return std::vector<Bf16>(n, Bf16{0xffff});
}

// How each_backend has stages made.
inline StageOptions stage_options;

// f(backend) for each that can run here; the cpu backend once for each instruction set of this machine, and with
// threads.
template <class F> void each_backend(F f) {
    for (int i = 0; const Backend *backend = backend_at(i); ++i) {
        if (backend->why_not() || !backend->memory().is_host()) continue; // stages of devices have tests of their own
        CAPTURE(std::string(backend->name));
        stage_options = {};
        if (std::strcmp(backend->name, "cpu") != 0) {
            f(*backend);
            continue;
        }
        for (int t = 0; const cpu::Target *target = cpu::target_at(t); ++t) {
            if (!target->runs_here()) continue;
            CAPTURE(std::string(target->name));
            stage_options.cpu_target = target->name;
            f(*backend);
        }
        stage_options.cpu_target = nullptr;
        stage_options.n_threads = 3;
        stage_options.share_all = true;
        CAPTURE(stage_options.n_threads);
        f(*backend);
        stage_options = {};
    }
}

} // namespace ds41::test
