// The simulated device through its table of functions: what is right runs as on a device, and each mistake is told. A
// mistake is kept for the rest of the process, so each is made in a child.
#include "backend/cuda/device.h"
#include "linear/params.h"
#include "numeric/q8.h"
#include "rows/params.h"
#include "simt/engine.h"
#include "support/compare.h"
#include "support/random.h"

#include <cerrno>
#include <cstdlib>
#include <doctest/doctest.h>
#include <functional>
#include <map>
#include <sys/wait.h>
#include <unistd.h>

extern "C" const ds41::DeviceFunctions *ds41_device_plugin(std::uint32_t version);

using namespace ds41;
using namespace ds41::test;

namespace {

const DeviceFunctions &device() {
    static const DeviceFunctions *const functions = ds41_device_plugin(kDeviceVersion);
    // Each time: another test may have taken the launches over.
    if (!functions || functions->open() != 0) std::abort();
    return *functions;
}

// For children too, where a failure cannot be reported through doctest.
void must(int error) {
    if (error == 0) return;
    std::fprintf(stderr, "the device refuses what is right: %s\n", device().describe(error));
    std::abort();
}

bool has(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}

// ---- What both use.

constexpr int kRows = 2, kWidth = 64;
constexpr std::size_t kInBytes = kRows * kWidth * sizeof(Bf16), kCodeBytes = kRows * kWidth;
constexpr std::size_t kScaleBytes = kRows * kWidth / kQ8Block * sizeof(float);

// A launch of one small operation, with its memory.
struct Quantiser {
    void *x = nullptr, *codes = nullptr, *scales = nullptr;
    kernels::QuantiseParams params{};
    std::vector<DeviceReference> references;

    explicit Quantiser(std::uint64_t stream_of_numbers = 1) {
        must(device().allocate(&x, kInBytes));
        must(device().allocate(&codes, kCodeBytes));
        must(device().allocate(&scales, kScaleBytes));
        Random random(stream_of_numbers);
        values = random.bf16_row(kRows * kWidth, 1.0);
        must(device().upload_now(x, values.data(), kInBytes));
        params.x = static_cast<const Bf16 *>(x);
        params.stride_x = kWidth;
        params.n = kRows;
        params.out.form = kernels::QuantisedForm::kQ8;
        params.out.width = kWidth;
        params.out.codes = static_cast<std::int8_t *>(codes);
        params.out.scales = static_cast<float *>(scales);
        references = {{x, kInBytes, DeviceAccess::kRead},
                      {codes, kCodeBytes, DeviceAccess::kWrite},
                      {scales, kScaleBytes, DeviceAccess::kWrite}};
    }
    void release() const {
        for (void *data : {x, codes, scales}) device().release(data);
    }
    int launch(DeviceStream stream) const {
        return device().launch(stream, DeviceOp::kQuantise, &params, references.data(), references.size());
    }
    std::vector<std::int8_t> downloaded() const {
        std::vector<std::int8_t> result(kCodeBytes);
        must(device().download_now(result.data(), codes, kCodeBytes));
        return result;
    }
    std::vector<std::int8_t> expected() const {
        std::vector<Q8Block> blocks(kRows * kWidth / kQ8Block);
        quantise_q8(values.data(), kRows * kWidth, blocks.data());
        std::vector<std::int8_t> result;
        for (const Q8Block &block : blocks) result.insert(result.end(), block.codes, block.codes + kQ8Block);
        return result;
    }

    std::vector<Bf16> values;
};

DeviceStream new_stream() {
    DeviceStream stream = nullptr;
    must(device().create_stream(&stream));
    return stream;
}
DeviceEvent new_event() {
    DeviceEvent event = nullptr;
    must(device().create_event(&event));
    return event;
}
void *new_memory(std::size_t n_bytes) {
    void *data = nullptr;
    must(device().allocate(&data, n_bytes));
    return data;
}

// ---- Mistakes.

struct Mistake {
    int error = 0;
    std::string sentence;
    bool is_kept = false; // a later call returns it
};

// What the device says of a function that returns its last call's error.
Mistake mistake_in(const std::function<int()> &f) {
    device();
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    std::fflush(nullptr);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        close(ends[0]);
        const int error = f();
        std::string text = std::to_string(error) + '\n';
        void *data = nullptr;
        text += device().allocate(&data, 16) == error && error != 0 ? "kept\n" : "\n";
        if (error != 0) text += device().describe(error);
        const char *p = text.data();
        for (std::size_t n = text.size(); n > 0;) {
            const ssize_t written = write(ends[1], p, n);
            if (written < 0) _exit(9);
            p += written;
            n -= static_cast<std::size_t>(written);
        }
        _exit(0);
    }
    close(ends[1]);
    std::string text;
    char buffer[256];
    for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0 || (n < 0 && errno == EINTR);)
        if (n > 0) text.append(buffer, static_cast<std::size_t>(n));
    close(ends[0]);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
    Mistake result;
    const std::size_t first = text.find('\n'), second = text.find('\n', first + 1);
    REQUIRE(second != std::string::npos);
    result.error = std::atoi(text.c_str());
    result.is_kept = text.substr(first + 1, second - first - 1) == "kept";
    result.sentence = text.substr(second + 1);
    return result;
}

void check_mistake(const std::function<int()> &f, const std::vector<std::string> &parts) {
    const Mistake mistake = mistake_in(f);
    CAPTURE(mistake.sentence);
    CHECK(mistake.error != 0);
    CHECK(mistake.is_kept);
    for (const std::string &part : parts) {
        CAPTURE(part);
        CHECK(has(mistake.sentence, part));
    }
}

void check_fine(const std::function<int()> &f) {
    const Mistake mistake = mistake_in(f);
    CAPTURE(mistake.sentence);
    CHECK(mistake.error == 0);
}

} // namespace

TEST_SUITE_BEGIN("kernels");

TEST_CASE("simulated device: the table") {
    CHECK(ds41_device_plugin(kDeviceVersion + 1) == nullptr);
    CHECK(std::string(device().name) == "sim");
    CHECK(device().version == kDeviceVersion);
    CHECK(device().wants_references == 1);
    CHECK(device().is_out_of_memory(2));
    CHECK(!device().is_out_of_memory(1));
}

TEST_CASE("simulated device: memory is aligned, apart, owned to its end, and NaN until it is written") {
    std::vector<void *> blocks;
    for (const std::size_t n_bytes : {1u, 255u, 256u, 257u, 4096u, 100000u}) {
        CAPTURE(n_bytes);
        blocks.push_back(new_memory(n_bytes));
        auto *const bytes = static_cast<std::uint8_t *>(blocks.back());
        CHECK(reinterpret_cast<std::uintptr_t>(bytes) % 256 == 0);
        CHECK(device().owns(bytes, n_bytes) == 1);
        CHECK(device().owns(bytes + n_bytes - 1, 1) == 1);
        CHECK(device().owns(bytes, n_bytes + 1) == 0);
        CHECK(device().owns(bytes - 1, 1) == 0);
        std::vector<std::uint8_t> host(n_bytes, 1);
        must(device().download_now(host.data(), bytes, n_bytes));
        CHECK(host == std::vector<std::uint8_t>(n_bytes, 0xff));
        for (std::size_t i = 0; i < n_bytes; ++i) host[i] = static_cast<std::uint8_t>(i * 7 + n_bytes);
        must(device().upload_now(bytes, host.data(), n_bytes));
        std::vector<std::uint8_t> again(n_bytes);
        must(device().download_now(again.data(), bytes, n_bytes));
        CHECK(again == host);
        CHECK(device().owns(host.data(), 1) == 0);
    }
    for (void *block : blocks) {
        device().release(block);
        CHECK(device().owns(block, 1) == 0);
    }
    device().release(nullptr);
}

TEST_CASE("simulated device: more memory than there is, is an error of this call only") {
    void *data = nullptr;
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const int error = device().allocate(&data, std::size_t{1} << 62);
    CHECK(error != 0);
    CHECK(device().is_out_of_memory(error));
#endif
    must(device().allocate(&data, 16));
    device().release(data);
}

TEST_CASE("simulated device: launches, copies, fills and products run in order") {
    const DeviceStream stream = new_stream();
    const Quantiser q;
    must(q.launch(stream));
    must(device().synchronize(stream));
    CHECK(q.downloaded() == q.expected());

    void *const copied = new_memory(kCodeBytes);
    must(device().fill(stream, q.codes, 0x11, kCodeBytes));
    must(device().copy(stream, copied, q.codes, kCodeBytes));
    must(device().fill(stream, q.codes, 0x22, kCodeBytes));
    must(device().synchronize(stream));
    std::vector<std::int8_t> bytes(kCodeBytes);
    must(device().download_now(bytes.data(), copied, kCodeBytes));
    CHECK(bytes == std::vector<std::int8_t>(kCodeBytes, 0x11));
    CHECK(q.downloaded() == std::vector<std::int8_t>(kCodeBytes, 0x22));

    void *pinned = nullptr;
    must(device().allocate_pinned(&pinned, kInBytes));
    std::memcpy(pinned, q.values.data() + 1, kInBytes - sizeof(Bf16));
    std::memset(static_cast<char *>(pinned) + kInBytes - sizeof(Bf16), 0, sizeof(Bf16));
    must(device().upload(stream, q.x, pinned, kInBytes));
    must(device().synchronize(stream));
    std::memset(pinned, 0, kInBytes); // after the copy it is the caller's again
    std::vector<Bf16> x(kRows * kWidth);
    must(device().download_now(x.data(), q.x, kInBytes));
    CHECK(std::equal(x.begin(), x.end() - 1, q.values.begin() + 1, [](Bf16 a, Bf16 b) { return a.bits == b.bits; }));

    device().release_pinned(pinned);
    device().release(copied);
    q.release();
    device().destroy_stream(stream);
}

TEST_CASE("simulated device: gemm is the scalar product of each slice") {
    Random random(751);
    constexpr int n = 3, rows = 5, k = 7, n_slices = 2, stride_x = n_slices * k + 3, stride_out = n_slices * rows + 1;
    const auto x = random.bf16_row((n - 1) * stride_x + n_slices * k, 1.0);
    const auto w = random.bf16_row(n_slices * rows * k, 1.0);
    const std::size_t n_out = (n - 1) * stride_out + n_slices * rows;
    void *const device_x = new_memory(x.size() * sizeof(Bf16)), *const device_w = new_memory(w.size() * sizeof(Bf16));
    void *const device_out = new_memory(n_out * sizeof(Bf16));
    must(device().upload_now(device_x, x.data(), x.size() * sizeof(Bf16)));
    must(device().upload_now(device_w, w.data(), w.size() * sizeof(Bf16)));
    const DeviceStream stream = new_stream();
    const DeviceGemm gemm{static_cast<const Bf16 *>(device_x),
                          static_cast<const Bf16 *>(device_w),
                          static_cast<Bf16 *>(device_out),
                          stride_x,
                          stride_out,
                          n,
                          rows,
                          k,
                          n_slices};
    must(device().gemm(stream, &gemm));
    must(device().synchronize(stream));
    std::vector<Bf16> out(n_out), expected(n_out, Bf16{0xffff});
    must(device().download_now(out.data(), device_out, n_out * sizeof(Bf16)));
    for (std::size_t t = 0; t < n; ++t)
        for (std::size_t row = 0; row < n_slices * rows; ++row) {
            float sum = 0.0f;
            for (std::size_t i = 0; i < k; ++i)
                sum += to_f32(x[t * stride_x + row / rows * k + i]) * to_f32(w[row * k + i]);
            expected[t * stride_out + row] = to_bf16(sum);
        }
    CHECK(same_bits(out, expected));
    for (void *data : {device_x, device_w, device_out}) device().release(data);
    device().destroy_stream(stream);
}

TEST_CASE("simulated device: the host waits for what it reads and overwrites") {
    check_mistake(
        [] {
            const Quantiser q;
            must(q.launch(new_stream()));
            std::vector<std::int8_t> codes(kCodeBytes);
            return device().download_now(codes.data(), q.codes, kCodeBytes);
        },
        {"a download", "quantise on stream", "has not been waited for to write"});
    check_mistake(
        [] {
            const Quantiser q;
            must(q.launch(new_stream()));
            return device().upload_now(q.x, q.values.data(), kInBytes);
        },
        {"an upload", "has not been waited for to read"});
    // Another stream's end says nothing of this one's.
    check_mistake(
        [] {
            const Quantiser q;
            must(q.launch(new_stream()));
            must(device().synchronize(new_stream()));
            std::int8_t code;
            return device().download_now(&code, static_cast<std::int8_t *>(q.codes) + kCodeBytes - 1, 1);
        },
        {"has not been waited for to write"});
    // An event of an earlier moment.
    check_mistake(
        [] {
            const Quantiser q;
            const DeviceStream stream = new_stream();
            const DeviceEvent event = new_event();
            must(device().record_event(event, stream));
            must(q.launch(stream));
            must(device().synchronize_event(event));
            std::int8_t code;
            return device().download_now(&code, q.codes, 1);
        },
        {"has not been waited for to write"});
    check_fine([] {
        const Quantiser q;
        const DeviceStream stream = new_stream();
        const DeviceEvent event = new_event();
        must(q.launch(stream));
        must(device().record_event(event, stream));
        must(device().synchronize_event(event));
        return q.downloaded() == q.expected() ? 0 : 77;
    });
    // What is only read may be read, and what lies beside may be written.
    check_fine([] {
        const Quantiser q;
        must(q.launch(new_stream()));
        Bf16 value;
        must(device().download_now(&value, q.x, sizeof value));
        void *const other = new_memory(64);
        return device().upload_now(other, q.values.data(), 64);
    });
}

TEST_CASE("simulated device: streams that touch the same memory have an event between them") {
    check_mistake(
        [] {
            const Quantiser q;
            must(q.launch(new_stream()));
            return device().fill(new_stream(), q.codes, 0, 1);
        },
        {"a fill on stream", "and quantise on stream", "touch the same memory without an event between them"});
    check_mistake(
        [] {
            const Quantiser q;
            void *const copied = new_memory(kCodeBytes);
            must(q.launch(new_stream()));
            return device().copy(new_stream(), copied, q.codes, kCodeBytes);
        },
        {"a copy on stream", "without an event between them"});
    // Of a read, a later write has to wait as well.
    check_mistake(
        [] {
            const Quantiser q;
            must(q.launch(new_stream()));
            return device().fill(new_stream(), q.x, 0, 2);
        },
        {"without an event between them"});
    // An event recorded before the work orders nothing.
    check_mistake(
        [] {
            const Quantiser q;
            const DeviceStream first = new_stream(), second = new_stream();
            const DeviceEvent event = new_event();
            must(device().record_event(event, first));
            must(q.launch(first));
            must(device().wait_event(second, event));
            return device().fill(second, q.codes, 0, 1);
        },
        {"without an event between them"});
    check_fine([] {
        const Quantiser q;
        const DeviceStream first = new_stream(), second = new_stream(), third = new_stream();
        const DeviceEvent event = new_event(), next = new_event();
        must(q.launch(first));
        must(device().record_event(event, first));
        must(device().wait_event(second, event));
        must(device().fill(second, q.codes, 3, kCodeBytes));
        // Order is handed on.
        must(device().record_event(next, second));
        must(device().wait_event(third, next));
        must(device().fill(third, q.codes, 4, kCodeBytes));
        must(device().synchronize(third));
        return q.downloaded() == std::vector<std::int8_t>(kCodeBytes, 4) ? 0 : 77;
    });
    // Two readers, two halves, and what the host has waited for.
    check_fine([] {
        const Quantiser q;
        void *const copied = new_memory(2 * kInBytes);
        const DeviceStream first = new_stream(), second = new_stream();
        must(device().copy(first, copied, q.x, kInBytes));
        must(device().copy(second, static_cast<char *>(copied) + kInBytes, q.x, kInBytes));
        must(q.launch(first));
        must(device().synchronize(first));
        must(device().fill(second, q.codes, 0, kCodeBytes));
        return device().synchronize(second);
    });
}

TEST_CASE("simulated device: an operation touches what it declared, as it declared it") {
    for (std::size_t missing = 0; missing < 3; ++missing) {
        CAPTURE(missing);
        check_mistake(
            [&] {
                Quantiser q;
                const DeviceStream stream = new_stream();
                q.references.erase(q.references.begin() + static_cast<std::ptrdiff_t>(missing));
                must(q.launch(stream));
                return device().synchronize(stream);
            },
            {"quantise: quantise", missing ? "a write of" : "a read of", "which the launch has not declared so"});
        check_mistake(
            [&] {
                Quantiser q;
                const DeviceStream stream = new_stream();
                q.references[missing].access = missing ? DeviceAccess::kRead : DeviceAccess::kWrite;
                must(q.launch(stream));
                return device().synchronize(stream);
            },
            {"quantise: quantise", "which the launch has not declared so"});
        check_mistake(
            [&] {
                Quantiser q;
                const DeviceStream stream = new_stream();
                --q.references[missing].n_bytes;
                must(q.launch(stream));
                return device().synchronize(stream);
            },
            {"which the launch has not declared so"});
        check_mistake(
            [&] {
                Quantiser q;
                ++q.references[missing].n_bytes;
                return q.launch(new_stream());
            },
            {"quantise declares", "which are not the device's"});
    }
    check_mistake(
        [] {
            Quantiser q;
            q.references[0].data = q.values.data(); // the host's
            return q.launch(new_stream());
        },
        {"quantise declares", "which are not the device's"});
    check_mistake(
        [] {
            Quantiser q;
            return device().fill(new_stream(), static_cast<char *>(q.x) - 1, 0, 2);
        },
        {"a fill declares 2 bytes", "which are not the device's"});
    check_mistake(
        [] {
            Quantiser q;
            std::vector<char> host(16);
            return device().copy(new_stream(), q.x, host.data(), host.size());
        },
        {"a copy declares 16 bytes", "which are not the device's"});
    check_mistake(
        [] {
            const Quantiser q;
            std::vector<char> host(kInBytes + 1);
            return device().download_now(host.data(), q.x, host.size());
        },
        {"a download: 257 bytes", "are not the device's"});
    // An empty one, a null one and one of both kinds are fine.
    check_fine([] {
        Quantiser q;
        const DeviceStream stream = new_stream();
        q.references.push_back({nullptr, 16, DeviceAccess::kRead});
        q.references.push_back({&q, 0, DeviceAccess::kRead});
        q.references[1].access = DeviceAccess::kReadWrite;
        must(q.launch(stream));
        return device().synchronize(stream);
    });
}

TEST_CASE("simulated device: blocks of a launch keep out of each other's way") {
    // The first row's scale goes where the second row's block reads the last of its 32 values, the second row's behind.
    const auto scales_in_x = [](Quantiser &q) {
        q.params.out.width = 32;
        void *const scales = static_cast<char *>(q.x) + kWidth * sizeof(Bf16) + 60;
        q.params.out.scales = static_cast<float *>(scales);
        return scales;
    };
    // The memory is declared as one range, or as two that overlap.
    for (const bool overlap : {false, true})
        check_mistake(
            [&] {
                Quantiser q;
                const DeviceStream stream = new_stream();
                void *const scales = scales_in_x(q);
                if (overlap)
                    q.references.push_back({scales, 2 * sizeof(float), DeviceAccess::kWrite});
                else
                    q.references[0].access = DeviceAccess::kReadWrite;
                must(q.launch(stream));
                return device().synchronize(stream);
            },
            {"quantise: ", "block (", "the result depends on the order of blocks"});
    // What launches do one after another is in order.
    Quantiser q;
    const DeviceStream stream = new_stream();
    scales_in_x(q);
    q.references[0].access = DeviceAccess::kReadWrite;
    q.params.n = 1;
    must(q.launch(stream));
    q.params.x += kWidth;
    q.params.out.scales = static_cast<float *>(q.scales);
    must(q.launch(stream));
    must(device().synchronize(stream));
    q.release();
    device().destroy_stream(stream);
}

namespace {

// Window rows into a ring of two pages, with what the launch declares of it.
struct Ring {
    std::int32_t n_rows = 100;
    std::size_t row_bytes = 33;
    DeviceAccess access = DeviceAccess::kWrite;
    bool is_declared = true, has_second_page = true;
};
int commit_window(const Ring &ring) {
    constexpr int kWindow = 100, kTokens = 3, kRowBytes = 33;
    const DeviceStream stream = new_stream();
    std::vector<std::uint8_t *> pages;
    for (int i = 0; i < 2; ++i) pages.push_back(static_cast<std::uint8_t *>(new_memory(64 * kRowBytes)));
    void *const table = new_memory(2 * sizeof(std::uint8_t *));
    must(device().upload_now(table, pages.data(), 2 * sizeof(std::uint8_t *)));
    kernels::SpanRows span{};
    span.n_tokens = kTokens;
    span.start_pos = 62;
    span.window = static_cast<std::uint8_t *const *>(table);
    std::vector<kernels::Token> tokens;
    for (int i = 0; i < kTokens; ++i) tokens.push_back({0, 0, 62 + i});
    std::vector<std::uint8_t> rows(kTokens * kRowBytes);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::uint8_t>(i);
    void *const device_span = new_memory(sizeof span), *const device_tokens =
                                                           new_memory(sizeof(kernels::Token) * kTokens);
    void *const device_rows = new_memory(rows.size());
    must(device().upload_now(device_span, &span, sizeof span));
    must(device().upload_now(device_tokens, tokens.data(), sizeof(kernels::Token) * kTokens));
    must(device().upload_now(device_rows, rows.data(), rows.size()));
    kernels::CommitWindowParams p{};
    p.window_new = static_cast<const std::uint8_t *>(device_rows);
    p.tokens = static_cast<const kernels::Token *>(device_tokens);
    p.spans = static_cast<const kernels::SpanRows *>(device_span);
    p.n_tokens = kTokens;
    p.window_size = kWindow;
    p.row_bytes = kRowBytes;
    std::vector<DeviceReference> references = {
        {device_rows, rows.size(), DeviceAccess::kRead},
        {device_span, sizeof span, DeviceAccess::kRead},
        {device_tokens, sizeof(kernels::Token) * kTokens, DeviceAccess::kRead},
    };
    if (ring.is_declared)
        references.push_back({device_span, ring.row_bytes, ring.access, DeviceRows::kWindow, 1, ring.n_rows});
    if (!ring.has_second_page) device().release(pages[1]);
    if (const int error = device().launch(stream, DeviceOp::kCommitWindow, &p, references.data(), references.size()))
        return error;
    if (const int error = device().synchronize(stream)) return error;
    std::vector<std::uint8_t> row(kRowBytes);
    must(device().download_now(row.data(), span.window[1], kRowBytes)); // the third token's slot
    return std::equal(row.begin(), row.end(), rows.begin() + 2 * kRowBytes) ? 0 : 77;
}

} // namespace

TEST_CASE("simulated device: rows are declared by the spans that point to them") {
    check_fine([] { return commit_window({}); });
    check_mistake([] { return commit_window({.n_rows = 64}); },
                  {"commit_window: ", "a read of 8 bytes", "which the launch has not declared so"}); // of the table
    check_mistake([] { return commit_window({.row_bytes = 32}); },
                  {"a write of", "which the launch has not declared so"});
    check_mistake([] { return commit_window({.access = DeviceAccess::kRead}); },
                  {"a write of", "which the launch has not declared so"});
    check_mistake([] { return commit_window({.is_declared = false}); },
                  {"a read of 8 bytes", "which the launch has not declared so"});
    check_mistake([] { return commit_window({.row_bytes = 34}); },
                  {"commit_window: a span of the step points to 2176 bytes", "which are not the device's"});
    check_mistake([] { return commit_window({.has_second_page = false}); },
                  {"commit_window: a span of the step points to", "which are not the device's"});
}

TEST_CASE("simulated device: memory that is freed") {
    check_mistake(
        [] {
            const Quantiser q;
            device().release(q.x);
            return q.launch(new_stream());
        },
        {"quantise declares 256 bytes", "which are not the device's"});
    check_mistake(
        [] {
            const Quantiser q;
            device().release(q.codes);
            std::int8_t code;
            return device().download_now(&code, q.codes, 1);
        },
        {"a download: 1 bytes", "are not the device's"});
    check_mistake(
        [] {
            const Quantiser q;
            device().release(q.codes);
            device().release(q.codes);
            return q.launch(new_stream());
        },
        {"is freed, which is no allocation of the device"});
    check_mistake(
        [] {
            const Quantiser q;
            device().release(static_cast<char *>(q.codes) + 16);
            return q.launch(new_stream());
        },
        {"is freed, which is no allocation of the device"});
    // Work that is under way is finished first, as cudaFree does.
    check_fine([] {
        const Quantiser q;
        const DeviceStream stream = new_stream();
        must(q.launch(stream));
        device().release(q.x);
        must(device().synchronize(stream));
        return q.downloaded() == q.expected() ? 0 : 77;
    });
}

TEST_CASE("simulated device: pinned memory stays as it is until it is copied") {
    const auto uploads = [](bool changes) {
        const Quantiser q;
        const DeviceStream stream = new_stream();
        void *pinned = nullptr;
        must(device().allocate_pinned(&pinned, kInBytes));
        std::memset(pinned, 1, kInBytes);
        must(device().upload(stream, q.x, pinned, kInBytes));
        if (changes) static_cast<char *>(pinned)[kInBytes - 1] = 2;
        const int error = device().synchronize(stream);
        if (!changes) static_cast<char *>(pinned)[0] = 2;
        return error ? error : device().synchronize(stream);
    };
    check_mistake([&] { return uploads(true); }, {"pinned memory at", "changed before its upload was waited for"});
    check_fine([&] { return uploads(false); });
}

TEST_CASE("simulated device: a kernel's mistake is told with its operation and place, when the stream is waited for") {
    check_mistake(
        [] {
            Quantiser q;
            const DeviceStream stream = new_stream();
            q.params.x = reinterpret_cast<const Bf16 *>(static_cast<char *>(q.x) + 1);
            must(q.launch(stream));
            return device().synchronize(stream);
        },
        {"quantise: quantise", "a read of 2 bytes", "which is not aligned to 2", "kernel", "block ("});
    check_mistake(
        [] {
            Quantiser q;
            const DeviceStream stream = new_stream();
            q.params.n = 0;
            must(q.launch(stream));
            return device().synchronize(stream);
        },
        {"quantise", "cannot run"});
}

// ---- Graphs.

TEST_CASE("simulated device: a capture records and does not run; its graph gives the same bits each time") {
    const DeviceStream stream = new_stream(), other = new_stream();
    const Quantiser q;
    int capturing = 1;
    must(device().is_capturing(stream, &capturing));
    CHECK(capturing == 0);
    must(device().begin_capture(stream));
    must(device().is_capturing(stream, &capturing));
    CHECK(capturing == 1);
    must(device().is_capturing(other, &capturing));
    CHECK(capturing == 0);
    void *const copied = q.scales;
    must(q.launch(stream));
    must(device().copy(stream, copied, q.codes, kScaleBytes));
    DeviceGraph graph = nullptr;
    must(device().end_capture(stream, &graph));
    REQUIRE(graph != nullptr);
    must(device().is_capturing(stream, &capturing));
    CHECK(capturing == 0);
    must(device().synchronize(stream));
    CHECK(q.downloaded() == std::vector<std::int8_t>(kCodeBytes, -1)); // nothing ran

    must(device().launch_graph(graph, stream));
    must(device().synchronize(stream));
    const auto once = q.downloaded();
    CHECK(once == q.expected());
    must(device().fill(stream, q.codes, 0x5a, kCodeBytes));
    must(device().launch_graph(graph, stream));
    must(device().launch_graph(graph, stream));
    must(device().synchronize(stream));
    CHECK(q.downloaded() == once);
    std::vector<std::int8_t> scales(kScaleBytes);
    must(device().download_now(scales.data(), copied, kScaleBytes));
    CHECK(std::equal(scales.begin(), scales.end(), once.begin()));

    // New numbers in the same memory; and on a stream that it was not recorded on.
    const Quantiser different(2);
    must(device().copy(stream, q.x, different.x, kInBytes));
    must(device().synchronize(stream));
    must(device().launch_graph(graph, other));
    must(device().synchronize(other));
    CHECK(q.downloaded() == different.expected());
    CHECK(different.expected() != q.expected());
    device().destroy_graph(graph);
    q.release();
    different.release();
    device().destroy_stream(stream);
    device().destroy_stream(other);
}

TEST_CASE("simulated device: no host work in a capture") {
    const auto capturing = [](const std::function<int(DeviceStream, const Quantiser &)> &f) {
        return [f] {
            const Quantiser q;
            const DeviceStream stream = new_stream();
            must(device().begin_capture(stream));
            return f(stream, q);
        };
    };
    // The later calls of a child are made in the capture too, and return the same error.
    check_mistake(capturing([](DeviceStream, const Quantiser &) {
                      void *data = nullptr;
                      return device().allocate(&data, 16);
                  }),
                  {"memory is allocated while a stream is captured"});
    check_mistake(
        capturing([](DeviceStream, const Quantiser &q) { return device().upload_now(q.x, q.values.data(), 2); }),
        {"an upload while a stream is captured"});
    check_mistake(capturing([](DeviceStream, const Quantiser &q) {
                      Bf16 value;
                      return device().download_now(&value, q.x, sizeof value);
                  }),
                  {"a download while a stream is captured"});
    check_mistake(capturing([](DeviceStream stream, const Quantiser &) { return device().synchronize(stream); }),
                  {"a stream is waited for while it is captured"});
    check_mistake(capturing([](DeviceStream stream, const Quantiser &) { return device().begin_capture(stream); }),
                  {"a capture begins on a stream that is captured already"});
    check_mistake(
        [] {
            DeviceGraph graph = nullptr;
            return device().end_capture(new_stream(), &graph);
        },
        {"a capture ends on a stream that is not captured"});
    check_mistake(capturing([](DeviceStream stream, const Quantiser &q) {
                      device().release(q.codes);
                      return q.launch(stream);
                  }),
                  {"is freed while a stream is captured"});
    // Memory that is not the device's is found when it is recorded, freed memory when the graph is launched.
    check_mistake(capturing([](DeviceStream stream, Quantiser q) {
                      q.references[1].n_bytes += 1;
                      return q.launch(stream);
                  }),
                  {"quantise declares", "which are not the device's"});
    check_mistake(capturing([](DeviceStream stream, const Quantiser &q) {
                      must(q.launch(stream));
                      DeviceGraph graph = nullptr;
                      must(device().end_capture(stream, &graph));
                      must(device().launch_graph(graph, stream));
                      must(device().synchronize(stream));
                      device().release(q.codes);
                      return device().launch_graph(graph, stream);
                  }),
                  {"quantise declares", "which are not the device's"});
    // A graph's launches are ordered as any others.
    check_mistake(capturing([](DeviceStream stream, const Quantiser &q) {
                      must(q.launch(stream));
                      DeviceGraph graph = nullptr;
                      must(device().end_capture(stream, &graph));
                      must(device().launch_graph(graph, stream));
                      return device().fill(new_stream(), q.codes, 0, 1);
                  }),
                  {"touch the same memory without an event between them"});
}

// ---- Counts.

TEST_CASE("simulated device: launches, waits, uploads and bytes are counted") {
    const DeviceStream stream = new_stream();
    const Quantiser q;
    DeviceCounts counts{};
    device().take_counts(&counts, nullptr, nullptr);
    void *pinned = nullptr;
    must(device().allocate_pinned(&pinned, kInBytes));
    std::memcpy(pinned, q.values.data(), kInBytes);
    must(device().upload(stream, q.x, pinned, kInBytes));
    must(q.launch(stream));
    must(q.launch(stream));
    must(device().synchronize(stream));
    must(device().upload_now(q.x, q.values.data(), 10));
    device().take_counts(&counts, nullptr, nullptr);
    CHECK(counts.launches == 2);
    CHECK(counts.synchronisations == 2); // the second is upload_now's own
    CHECK(counts.uploads == 2);
    CHECK(counts.uploaded_bytes == kInBytes + 10);
    CHECK(counts.bytes_read == 2 * kInBytes);
    CHECK(counts.bytes_written == 2 * (kCodeBytes + kScaleBytes));
    CHECK(counts.distinct_bytes == kInBytes + kCodeBytes + kScaleBytes);
    device().take_counts(&counts, nullptr, nullptr);
    CHECK(counts.launches + counts.synchronisations + counts.uploads + counts.uploaded_bytes + counts.bytes_read +
              counts.bytes_written + counts.distinct_bytes ==
          0);
    device().release_pinned(pinned);
    q.release();
    device().destroy_stream(stream);
}

// Counts of each range by its name.
std::map<std::string, DeviceCounts> take_range_counts() {
    std::map<std::string, DeviceCounts> ranges;
    DeviceCounts total{};
    device().take_counts(
        &total,
        [](const char *range, const DeviceCounts *counts, void *user) {
            (*static_cast<std::map<std::string, DeviceCounts> *>(user))[range] = *counts;
        },
        &ranges);
    return ranges;
}

TEST_CASE("simulated device: ranges have counts of their own, the innermost takes them") {
    const DeviceStream stream = new_stream();
    const Quantiser q;
    take_range_counts();
    device().push_range(nullptr, "outer");
    must(q.launch(stream));
    device().push_range(nullptr, "inner");
    must(q.launch(stream));
    must(q.launch(stream));
    device().pop_range(nullptr);
    device().push_range(nullptr, "inner");
    must(q.launch(stream));
    device().pop_range(nullptr);
    device().pop_range(nullptr);
    must(q.launch(stream)); // in none
    must(device().synchronize(stream));
    auto ranges = take_range_counts();
    CHECK(ranges.size() == 2);
    CHECK(ranges["outer"].launches == 1);
    CHECK(ranges["inner"].launches == 3);
    CHECK(ranges["inner"].bytes_read == 3 * kInBytes);
    CHECK(ranges["inner"].bytes_written == 3 * (kCodeBytes + kScaleBytes));
    // Once for each push: two launches of one push touch the same bytes.
    CHECK(ranges["outer"].distinct_bytes == kInBytes + kCodeBytes + kScaleBytes);
    CHECK(ranges["inner"].distinct_bytes == 2 * (kInBytes + kCodeBytes + kScaleBytes));
    CHECK(take_range_counts().empty());
    q.release();
    device().destroy_stream(stream);
}

TEST_SUITE_END();
