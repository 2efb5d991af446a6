// The simulated device: what is enqueued runs when something waits for it, in the order it was enqueued, on the calling
// thread. It holds the caller to what CUDA leaves undefined or would find late: memory that is freed or was never the
// device's, reads of what a stream has not finished, streams that touch the same memory without an event between them,
// operations that touch what they did not declare, pinned memory that changes before it is copied, host work in a
// capture. The first mistake is kept, as CUDA keeps its faults: every later call returns it.
#include "backend/cuda/plugin/operations.h"
#include "simt/engine.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace ds41 {

namespace {

constexpr int kOutOfMemory = 2; // the numbers that CUDA has for them
constexpr int kInvalidValue = 1;

// Moments of the streams that something is known to come after.
using Clock = std::map<int, std::uint64_t>;

void merge(Clock &clock, const Clock &other) {
    for (const auto &[stream, moment] : other) clock[stream] = std::max(clock[stream], moment);
}

struct Use {
    std::uintptr_t begin, end;
    bool write;
    int stream;
    std::uint64_t moment;
    const char *by;
};

struct Allocation {
    std::size_t n_bytes = 0;
    std::unique_ptr<unsigned char[]> storage;
    std::vector<Use> uses; // that the host has not waited for
    // Since the counts were taken; empty: nothing was touched.
    std::vector<std::uint64_t> touched;  // a bit for each byte
    std::vector<std::uint32_t> by_range; // of each word the range that touched it last << 4, and a bit for each byte
};

struct Range {
    std::uintptr_t begin, end;
    bool read, write;
};

// What a thread is in, between push_range and pop_range.
struct CountedRange {
    std::uint32_t number = 0; // of this push; 0: none
    DeviceCounts *counts = nullptr;
};

struct Task {
    const char *name = "";
    CountedRange range;
    std::vector<Range> ranges;
    std::function<int(class SimDevice &, const Task &)> run;
};

struct SimGraph {
    std::vector<Task> tasks;
};

struct SimStream {
    int id;
    Clock clock;
    std::uint64_t moment = 0;
    std::unique_ptr<SimGraph> capture; // what is recorded, while it is
};

struct SimEvent {
    Clock clock;
};

class SimDevice final : public simt::MemoryObserver {
public:
    std::recursive_mutex mutex;
    int error = 0;
    std::string sentence;
    DeviceCounts counts{};

    int fail(int number, const char *format, ...) __attribute__((format(printf, 3, 4))) {
        if (error) return error;
        char text[1024];
        va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        sentence = text;
        return error = number;
    }

    int allocate(void **data, std::size_t n_bytes) {
        if (error) return error;
        if (n_capturing_ > 0) return fail(kInvalidValue, "memory is allocated while a stream is captured");
        // Aligned as CUDA does it. Every byte reads as a NaN until it is written.
        constexpr std::size_t kAlign = 256;
        if (n_bytes > PTRDIFF_MAX - kAlign) return kOutOfMemory;
        std::unique_ptr<unsigned char[]> storage(new (std::nothrow) unsigned char[n_bytes + kAlign]);
        if (!storage) return kOutOfMemory; // the caller's to handle: nothing is kept
        const auto address = (reinterpret_cast<std::uintptr_t>(storage.get()) + kAlign - 1) / kAlign * kAlign;
        std::memset(reinterpret_cast<void *>(address), 0xff, n_bytes);
        Allocation &made = allocations_[address];
        made.n_bytes = n_bytes;
        made.storage = std::move(storage);
        *data = reinterpret_cast<void *>(address);
        return 0;
    }

    void release(void *data) {
        if (!data) return;
        run_all(); // as cudaFree
        if (allocations_.erase(reinterpret_cast<std::uintptr_t>(data)) == 0)
            fail(kInvalidValue, "%p is freed, which is no allocation of the device", data);
    }

    Allocation *find(std::uintptr_t begin, std::uintptr_t end) {
        auto next = allocations_.upper_bound(begin);
        if (next == allocations_.begin()) return nullptr;
        --next;
        return end <= next->first + next->second.n_bytes ? &next->second : nullptr;
    }

    // The host touches memory itself.
    int touch_now(const void *data, std::size_t n_bytes, bool write, const char *by) {
        if (error) return error;
        if (n_capturing_ > 0) return fail(kInvalidValue, "%s while a stream is captured", by);
        const auto begin = reinterpret_cast<std::uintptr_t>(data), end = begin + n_bytes;
        Allocation *allocation = find(begin, end);
        if (!allocation) return fail(kInvalidValue, "%s: %zu bytes at %p are not the device's", by, n_bytes, data);
        for (const Use &use : allocation->uses)
            if (use.begin < end && begin < use.end && (use.write || write) && !is_over(use, host_clock_))
                return fail(kInvalidValue, "%s: %zu bytes at %p, which %s on stream %d has not been waited for to %s",
                            by, n_bytes, data, use.by, use.stream, use.write ? "write" : "read");
        ++counts.synchronisations;
        return 0;
    }

    static bool is_over(const Use &use, const Clock &clock) {
        const auto found = clock.find(use.stream);
        return found != clock.end() && found->second >= use.moment;
    }

    int enqueue(SimStream &stream, Task task) {
        if (error) return error;
        for (const Range &range : task.ranges)
            if (!find(range.begin, range.end))
                return fail(kInvalidValue, "%s declares %zu bytes at %p, which are not the device's", task.name,
                            static_cast<std::size_t>(range.end - range.begin), reinterpret_cast<void *>(range.begin));
        if (stream.capture) {
            stream.capture->tasks.push_back(std::move(task));
            return 0;
        }
        merge(stream.clock, host_clock_);
        stream.clock[stream.id] = ++stream.moment;
        for (const Range &range : task.ranges) {
            Allocation &allocation = *find(range.begin, range.end);
            std::erase_if(allocation.uses, [&](const Use &use) { return is_over(use, host_clock_); });
            for (const Use &use : allocation.uses)
                if (use.begin < range.end && range.begin < use.end && (use.write || range.write) &&
                    !is_over(use, stream.clock))
                    return fail(
                        kInvalidValue,
                        "%s on stream %d and %s on stream %d touch the same memory without an event between them",
                        task.name, stream.id, use.by, use.stream);
            allocation.uses.push_back({range.begin, range.end, range.write, stream.id, stream.moment, task.name});
        }
        tasks_.push_back(std::move(task));
        return 0;
    }

    void run_all() {
        while (!tasks_.empty()) {
            const Task task = std::move(tasks_.front());
            tasks_.pop_front();
            if (error) continue;
            running_ = &task;
            last_ = nullptr;
            if (const int number = task.run(*this, task))
                fail(number, "%s: %s", task.name, simt::last_failure().c_str());
            running_ = nullptr;
        }
    }

    int synchronize(SimStream &stream) {
        if (error) return error;
        if (stream.capture) return fail(kInvalidValue, "a stream is waited for while it is captured");
        ++counts.synchronisations;
        run_all();
        merge(host_clock_, stream.clock);
        return error;
    }
    int synchronize(const SimEvent &event) {
        if (error) return error;
        ++counts.synchronisations;
        run_all();
        merge(host_clock_, event.clock);
        return error;
    }

    const char *access(const void *p, std::size_t n_bytes, simt::Access access) override {
        const auto begin = reinterpret_cast<std::uintptr_t>(p), end = begin + n_bytes;
        const bool read = static_cast<int>(access) & static_cast<int>(simt::Access::kRead);
        const bool write = static_cast<int>(access) & static_cast<int>(simt::Access::kWrite);
        const auto allows = [&](const Range &r) {
            return r.begin <= begin && end <= r.end && (!read || r.read) && (!write || r.write);
        };
        if (!last_ || !allows(*last_)) {
            const auto found = std::find_if(running_->ranges.begin(), running_->ranges.end(), allows);
            if (found == running_->ranges.end()) return "which the launch has not declared so";
            last_ = &*found;
        }
        count(begin, end, read, write);
        return nullptr;
    }

    void count(std::uintptr_t begin, std::uintptr_t end, bool read, bool write) {
        DeviceCounts *const in_range = running_->range.counts;
        for (DeviceCounts *to : {&counts, in_range}) {
            if (!to) continue;
            if (read) to->bytes_read += end - begin;
            if (write) to->bytes_written += end - begin;
        }
        auto next = allocations_.upper_bound(begin);
        --next;
        Allocation &allocation = next->second;
        if (allocation.touched.empty()) {
            allocation.touched.resize((allocation.n_bytes + 63) / 64);
            allocation.by_range.resize((allocation.n_bytes + 3) / 4);
        }
        const std::uint32_t number = running_->range.number;
        for (std::uintptr_t byte = begin - next->first, last = end - next->first; byte < last;) {
            const std::uintptr_t word = byte / 4, word_end = std::min(last, word * 4 + 4);
            const std::uint32_t bytes = ((1u << (word_end - byte)) - 1) << byte % 4;
            allocation.touched[word / 16] |= std::uint64_t{bytes} << word % 16 * 4;
            if (in_range) {
                std::uint32_t &owner = allocation.by_range[word];
                const std::uint32_t before = owner >> 4 == number ? owner & 15u : 0;
                in_range->distinct_bytes += static_cast<std::uint64_t>(__builtin_popcount(bytes & ~before));
                owner = number << 4 | before | bytes;
            }
            byte = word_end;
        }
    }

    void count_launch() {
        ++counts.launches;
        if (running_->range.counts) ++running_->range.counts->launches;
    }
    void count_upload(std::size_t n_bytes) {
        DeviceCounts *const in_range = running_ ? running_->range.counts : nullptr;
        for (DeviceCounts *to : {&counts, in_range}) {
            if (!to) continue;
            ++to->uploads;
            to->uploaded_bytes += n_bytes;
        }
    }

    // A range's counts stay where they are: tasks point to them.
    CountedRange push_range(const char *name) {
        if (++n_ranges_ >= 1u << 28) n_ranges_ = 1; // by_range has so many bits; counts are taken long before
        return {n_ranges_, &ranges_[name]};
    }

    void take_counts(DeviceCounts *total, void (*each)(const char *, const DeviceCounts *, void *), void *user) {
        run_all();
        *total = std::exchange(counts, DeviceCounts());
        for (auto &[address, allocation] : allocations_) {
            for (const std::uint64_t word : allocation.touched)
                total->distinct_bytes += static_cast<std::uint64_t>(__builtin_popcountll(word));
            allocation.touched.clear();
            allocation.by_range.clear();
        }
        for (auto &[name, of] : ranges_) {
            if (each && (of.launches > 0 || of.uploads > 0)) each(name.c_str(), &of, user);
            of = {};
        }
    }

    int new_stream_id() { return ++n_streams_; }
    void note_capture(int change) { n_capturing_ += change; }

private:
    std::map<std::uintptr_t, Allocation> allocations_;
    std::deque<Task> tasks_;
    Clock host_clock_;
    const Task *running_ = nullptr;
    const Range *last_ = nullptr;
    std::map<std::string, DeviceCounts> ranges_;
    std::uint32_t n_ranges_ = 0;
    int n_streams_ = 0;
    int n_capturing_ = 0;
};

SimDevice &device() {
    static SimDevice instance;
    return instance;
}

using Lock = std::lock_guard<std::recursive_mutex>;

SimStream &stream_of(DeviceStream stream) {
    return *static_cast<SimStream *>(stream);
}

Range range_of(const void *data, std::size_t n_bytes, DeviceAccess access) {
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    const auto bits = static_cast<std::uint32_t>(access);
    return {begin, begin + n_bytes, (bits & 1) != 0, (bits & 2) != 0};
}

// What the operation that is being launched declared; its kernels share it.
thread_local std::vector<Range> launching_ranges;
thread_local const char *launching_name = "";
thread_local std::vector<CountedRange> open_ranges;

CountedRange open_range() {
    return open_ranges.empty() ? CountedRange() : open_ranges.back();
}

int enqueue_kernel(simt::Stream stream, const simt::LaunchInfo &info, std::function<void()> kernel) {
    Task task;
    task.name = launching_name;
    task.ranges = launching_ranges;
    task.run = [info, kernel = std::move(kernel)](SimDevice &sim, const Task &) {
        sim.count_launch();
        return simt::run(info, kernel, &sim);
    };
    task.range = open_range();
    return device().enqueue(stream_of(stream), std::move(task));
}

// ---- The table.

const char *describe(int error) {
    const Lock lock(device().mutex);
    if (device().error != error) return simt::last_failure().c_str(); // of a launch that did not get as far
    return device().sentence.c_str();
}
int is_out_of_memory(int error) {
    return error == kOutOfMemory;
}
int open() {
    simt::set_enqueue_hook(enqueue_kernel);
    return 0;
}
int allocate(void **data, std::size_t n_bytes) {
    const Lock lock(device().mutex);
    return device().allocate(data, n_bytes);
}
void release(void *data) {
    const Lock lock(device().mutex);
    device().release(data);
}
int allocate_pinned(void **data, std::size_t n_bytes) {
    *data = ::operator new (n_bytes, std::align_val_t{64}, std::nothrow);
    return *data ? 0 : kOutOfMemory;
}
void release_pinned(void *data) {
    const Lock lock(device().mutex);
    device().run_all(); // an upload may still read it
    ::operator delete (data, std::align_val_t{64});
}
int owns(const void *data, std::size_t n_bytes) {
    const Lock lock(device().mutex);
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    return device().find(begin, begin + n_bytes) != nullptr;
}
int upload_now(void *target, const void *source, std::size_t n_bytes) {
    const Lock lock(device().mutex);
    if (const int error = device().touch_now(target, n_bytes, true, "an upload")) return error;
    device().count_upload(n_bytes);
    std::memcpy(target, source, n_bytes);
    return 0;
}
int download_now(void *target, const void *source, std::size_t n_bytes) {
    const Lock lock(device().mutex);
    if (const int error = device().touch_now(source, n_bytes, false, "a download")) return error;
    std::memcpy(target, source, n_bytes);
    return 0;
}
int create_stream(DeviceStream *stream) {
    const Lock lock(device().mutex);
    *stream = new (std::nothrow) SimStream{device().new_stream_id(), {}, 0, nullptr};
    return *stream ? 0 : kOutOfMemory;
}
void destroy_stream(DeviceStream stream) {
    const Lock lock(device().mutex);
    device().run_all();
    if (stream_of(stream).capture) device().note_capture(-1);
    delete static_cast<SimStream *>(stream);
}
int synchronize(DeviceStream stream) {
    const Lock lock(device().mutex);
    return device().synchronize(stream_of(stream));
}
int create_event(DeviceEvent *event) {
    *event = new (std::nothrow) SimEvent();
    return *event ? 0 : kOutOfMemory;
}
void destroy_event(DeviceEvent event) {
    delete static_cast<SimEvent *>(event);
}
int record_event(DeviceEvent event, DeviceStream stream) {
    const Lock lock(device().mutex);
    static_cast<SimEvent *>(event)->clock = stream_of(stream).clock;
    return device().error;
}
int wait_event(DeviceStream stream, DeviceEvent event) {
    const Lock lock(device().mutex);
    merge(stream_of(stream).clock, static_cast<SimEvent *>(event)->clock);
    return device().error;
}
int synchronize_event(DeviceEvent event) {
    const Lock lock(device().mutex);
    return device().synchronize(*static_cast<SimEvent *>(event));
}

int upload(DeviceStream stream, void *target, const void *source, std::size_t n_bytes) {
    const Lock lock(device().mutex);
    Task task;
    task.name = "an upload";
    task.range = open_range();
    task.ranges.push_back(range_of(target, n_bytes, DeviceAccess::kWrite));
    // A graph's upload reads what is there at each launch; any other one, what is there now.
    std::vector<unsigned char> before;
    const auto *bytes = static_cast<const unsigned char *>(source);
    if (!stream_of(stream).capture) before.assign(bytes, bytes + n_bytes);
    task.run = [=, before = std::move(before)](SimDevice &sim, const Task &) {
        if (!before.empty() && std::memcmp(before.data(), source, n_bytes) != 0)
            return sim.fail(kInvalidValue, "pinned memory at %p changed before it was uploaded", source);
        std::memcpy(target, source, n_bytes);
        sim.count_upload(n_bytes);
        return 0;
    };
    return device().enqueue(stream_of(stream), std::move(task));
}
int copy(DeviceStream stream, void *target, const void *source, std::size_t n_bytes) {
    const Lock lock(device().mutex);
    Task task;
    task.name = "a copy";
    task.ranges.push_back(range_of(target, n_bytes, DeviceAccess::kWrite));
    task.ranges.push_back(range_of(source, n_bytes, DeviceAccess::kRead));
    task.run = [=](SimDevice &, const Task &) {
        std::memcpy(target, source, n_bytes);
        return 0;
    };
    return device().enqueue(stream_of(stream), std::move(task));
}
int fill(DeviceStream stream, void *target, int byte, std::size_t n_bytes) {
    const Lock lock(device().mutex);
    Task task;
    task.name = "a fill";
    task.ranges.push_back(range_of(target, n_bytes, DeviceAccess::kWrite));
    task.run = [=](SimDevice &, const Task &) {
        std::memset(target, byte, n_bytes);
        return 0;
    };
    return device().enqueue(stream_of(stream), std::move(task));
}
int launch(DeviceStream stream, DeviceOp op, const void *params, const DeviceReference *references,
           std::size_t n_references) {
    const Lock lock(device().mutex);
    launching_ranges.clear();
    launching_name = operation_name(op);
    for (std::size_t i = 0; i < n_references; ++i) {
        const DeviceReference &r = references[i];
        if (r.n_bytes == 0) continue;
        if (!r.pages && r.data) launching_ranges.push_back(range_of(r.data, r.n_bytes, r.access));
        for (std::size_t page = 0; r.pages && page < r.n_pages; ++page)
            launching_ranges.push_back(range_of(r.pages[page], r.n_bytes, r.access));
    }
    return launch_operation(stream, op, params);
}
int gemm(DeviceStream stream, const DeviceGemm *gemm) {
    const Lock lock(device().mutex);
    const DeviceGemm g = *gemm;
    const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n) * sizeof(Bf16); };
    Task task;
    task.name = "gemm";
    task.range = open_range();
    const std::int64_t n_in = (g.n - 1) * g.stride_x + std::int64_t{g.k} * g.n_slices;
    const std::int64_t n_out = (g.n - 1) * g.stride_out + std::int64_t{g.rows} * g.n_slices;
    task.ranges.push_back(range_of(g.x, size(n_in), DeviceAccess::kRead));
    task.ranges.push_back(range_of(g.weights, size(std::int64_t{g.n_slices} * g.rows * g.k), DeviceAccess::kRead));
    task.ranges.push_back(range_of(g.out, size(n_out), DeviceAccess::kWrite));
    task.run = [g](SimDevice &sim, const Task &task_) {
        sim.count_launch();
        for (const Range &r : task_.ranges) sim.count(r.begin, r.end, r.read, r.write);
        for (std::int64_t t = 0; t < g.n; ++t)
            for (std::int64_t row = 0; row < std::int64_t{g.n_slices} * g.rows; ++row) {
                const Bf16 *x = g.x + t * g.stride_x + row / g.rows * g.k, *w = g.weights + row * g.k;
                float sum = 0.0f;
                for (int i = 0; i < g.k; ++i) sum += to_f32(x[i]) * to_f32(w[i]);
                g.out[t * g.stride_out + row] = to_bf16(sum);
            }
        return 0;
    };
    return device().enqueue(stream_of(stream), std::move(task));
}

int is_capturing(DeviceStream stream, int *capturing) {
    const Lock lock(device().mutex);
    *capturing = stream_of(stream).capture != nullptr;
    return device().error;
}
int begin_capture(DeviceStream stream) {
    const Lock lock(device().mutex);
    SimStream &s = stream_of(stream);
    if (s.capture) return device().fail(kInvalidValue, "a capture begins on a stream that is captured already");
    s.capture.reset(new (std::nothrow) SimGraph());
    if (!s.capture) return kOutOfMemory;
    device().note_capture(1);
    return device().error;
}
int end_capture(DeviceStream stream, DeviceGraph *graph) {
    const Lock lock(device().mutex);
    SimStream &s = stream_of(stream);
    if (!s.capture) return device().fail(kInvalidValue, "a capture ends on a stream that is not captured");
    device().note_capture(-1);
    *graph = s.capture.release();
    return device().error;
}
int launch_graph(DeviceGraph graph, DeviceStream stream) {
    const Lock lock(device().mutex);
    for (const Task &task : static_cast<SimGraph *>(graph)->tasks)
        if (const int error = device().enqueue(stream_of(stream), task)) return error;
    return device().error;
}
void destroy_graph(DeviceGraph graph) {
    delete static_cast<SimGraph *>(graph);
}
void push_range(const char *name) {
    const Lock lock(device().mutex);
    open_ranges.push_back(device().push_range(name));
}
void pop_range() {
    if (!open_ranges.empty()) open_ranges.pop_back();
}
void take_counts(DeviceCounts *total, void (*each)(const char *, const DeviceCounts *, void *), void *user) {
    const Lock lock(device().mutex);
    device().take_counts(total, each, user);
}

constexpr DeviceFunctions kFunctions = {
    kDeviceVersion,
    1,
    "sim",
    describe,
    is_out_of_memory,
    open,
    allocate,
    release,
    allocate_pinned,
    release_pinned,
    owns,
    upload_now,
    download_now,
    create_stream,
    destroy_stream,
    synchronize,
    create_event,
    destroy_event,
    record_event,
    wait_event,
    synchronize_event,
    upload,
    copy,
    fill,
    launch,
    gemm,
    is_capturing,
    begin_capture,
    end_capture,
    launch_graph,
    destroy_graph,
    push_range,
    pop_range,
    take_counts,
};

} // namespace

} // namespace ds41

extern "C" __attribute__((visibility("default"))) const ds41::DeviceFunctions *
ds41_device_plugin(std::uint32_t version) {
    return version == ds41::kDeviceVersion ? &ds41::kFunctions : nullptr;
}
