// The simulated device: what is enqueued runs in the order it was enqueued, on the calling thread, when something waits
// for it or when what a launch may touch is read from the device's memory. It holds the caller to what CUDA leaves
// undefined or would find late: memory that is freed or was never the device's, reads of what a stream has not
// finished, streams that touch the same memory without an event between them, operations that touch what they did not
// declare, pinned memory that changes before it is copied, host work in a capture. The first mistake is kept, as CUDA
// keeps its faults: every later call returns it.
#include "backend/cuda/plugin/operations.h"
#include "common/step.h"
#include "simt/engine.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
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
    std::uint64_t id = 0;
    std::unique_ptr<unsigned char[]> storage;
    std::vector<Use> uses; // that the host has not waited for
    // Since the counts were taken; empty: nothing was touched.
    std::vector<std::uint64_t> touched;  // a bit for each byte
    std::vector<std::uint32_t> by_range; // of each word the range that touched it last << 4, and a bit for each byte
};

struct Range {
    std::uintptr_t begin, end;
    bool read, write;
    bool may_change = false; // while the task runs, by this range or by another that overlaps it
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
    std::vector<DeviceReference> late; // to what a step's spans point, when the task is enqueued outside of a capture
    std::function<int(class SimDevice &, const Task &)> run;
};

void note_changes(std::vector<Range> &ranges) {
    std::vector<std::pair<std::uintptr_t, std::uintptr_t>> written;
    for (const Range &range : ranges)
        if (range.write) written.emplace_back(range.begin, range.end);
    std::sort(written.begin(), written.end());
    // Each end becomes the farthest so far: one look tells whether any that begins before a range's end reaches into
    // it.
    for (std::size_t i = 1; i < written.size(); ++i)
        written[i].second = std::max(written[i].second, written[i - 1].second);
    for (Range &range : ranges) {
        const auto behind = std::lower_bound(written.begin(), written.end(), std::pair(range.end, std::uintptr_t{0}));
        range.may_change = behind != written.begin() && std::prev(behind)->second > range.begin;
    }
}

struct SimGraph {
    std::vector<Task> tasks;
};

// Pinned memory that an upload reads, as it was at the call.
struct PinnedUse {
    const unsigned char *data;
    std::vector<unsigned char> before;
    int stream;
    std::uint64_t moment;
};

struct SimStream {
    int id;
    Clock clock;
    std::uint64_t moment = 0;
    std::unique_ptr<SimGraph> capture; // what is recorded, while it is
    std::thread::id capturing_thread;
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
        if (is_capturing_here()) return fail(kInvalidValue, "memory is allocated while a stream is captured");
        // Aligned as CUDA does it. Every byte reads as a NaN until it is written.
        constexpr std::size_t kAlign = 256;
        if (n_bytes > PTRDIFF_MAX - kAlign) return kOutOfMemory;
        std::unique_ptr<unsigned char[]> storage(new (std::nothrow) unsigned char[n_bytes + kAlign]);
        if (!storage) return kOutOfMemory; // the caller's to handle: nothing is kept
        const auto address = (reinterpret_cast<std::uintptr_t>(storage.get()) + kAlign - 1) / kAlign * kAlign;
        std::memset(reinterpret_cast<void *>(address), 0xff, n_bytes);
        Allocation &made = allocations_[address];
        made.n_bytes = n_bytes;
        made.id = ++n_allocations_;
        made.storage = std::move(storage);
        *data = reinterpret_cast<void *>(address);
        return 0;
    }

    void release(void *data) {
        if (!data) return;
        if (is_capturing_here()) fail(kInvalidValue, "%p is freed while a stream is captured", data);
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

    std::uint64_t allocation_id(const void *data) {
        const auto address = reinterpret_cast<std::uintptr_t>(data);
        const Allocation *allocation = find(address, address + 1);
        return allocation ? allocation->id : 0;
    }

    // The host touches memory itself.
    int touch_now(const void *data, std::size_t n_bytes, bool write, const char *by) {
        if (error) return error;
        if (is_capturing_here()) return fail(kInvalidValue, "%s while a stream is captured", by);
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
        if (!stream.capture && !task.late.empty()) {
            run_all(); // spans and tables are what the tasks before leave
            for (const DeviceReference &reference : task.late) resolve(task, reference);
            task.late.clear();
            if (error) return error;
        }
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

    // The ranges of what the spans of a step point to.
    void resolve(Task &task, const DeviceReference &reference) {
        if (error) return;
        const auto *const spans = static_cast<const kernels::SpanRows *>(reference.data);
        const std::size_t n_bytes = static_cast<std::size_t>(reference.n_spans) * sizeof *spans;
        if (!declare(task, spans, n_bytes, true, false)) return;
        const auto bits = static_cast<std::uint32_t>(reference.access);
        const bool read = (bits & 1) != 0, write = (bits & 2) != 0;
        for (std::int32_t s = 0; s < reference.n_spans; ++s) {
            const kernels::SpanRows &span = spans[s];
            if (span.n_tokens == 0) continue; // not there
            if (reference.rows == DeviceRows::kGroupState) {
                declare(task, span.group_state, reference.n_bytes, read, write);
                continue;
            }
            const std::int64_t end = span.start_pos + span.n_tokens;
            std::int64_t first = 0, n_rows = std::min<std::int64_t>(end, reference.per_row);
            std::uint8_t *const *table = span.window;
            if (reference.rows != DeviceRows::kWindow) {
                n_rows = end / reference.per_row;
                if (!read) first = span.start_pos / reference.per_row; // only rows of this step are made
                table = reference.rows == DeviceRows::kCompressed ? span.compressed : span.index_keys;
            }
            if (first >= n_rows) continue;
            const std::int64_t page = kernels::kRowsPerPage, begin_page = first / page;
            const std::int64_t end_page = (n_rows + page - 1) / page;
            if (!declare(task, table + begin_page, static_cast<std::size_t>(end_page - begin_page) * sizeof *table,
                         true, false))
                return;
            for (std::int64_t i = begin_page; i < end_page; ++i) {
                const auto begin = static_cast<std::size_t>(std::max(first - i * page, std::int64_t{0}));
                const auto n = static_cast<std::size_t>(std::min(n_rows - i * page, page)) - begin;
                if (!declare(task, table[i] + begin * reference.n_bytes, n * reference.n_bytes, read, write)) return;
            }
        }
    }

    // Pinned memory stays as it is until the host has waited for its upload, whenever that runs here.
    void check_pinned() {
        std::erase_if(pinned_, [&](const PinnedUse &use) {
            const auto found = host_clock_.find(use.stream);
            return found != host_clock_.end() && found->second >= use.moment;
        });
        for (const PinnedUse &use : pinned_)
            if (std::memcmp(use.data, use.before.data(), use.before.size()) != 0)
                fail(kInvalidValue, "pinned memory at %p changed before its upload was waited for",
                     static_cast<const void *>(use.data));
    }
    void use_pinned(const SimStream &stream, const unsigned char *data, std::vector<unsigned char> before) {
        pinned_.push_back({data, std::move(before), stream.id, stream.moment});
    }
    void release_pinned(const unsigned char *data) {
        check_pinned();
        run_all(); // an upload may still read it
        std::erase_if(pinned_, [&](const PinnedUse &use) { return use.data == data; });
    }

    void run_all() {
        while (!tasks_.empty()) {
            Task task = std::move(tasks_.front());
            tasks_.pop_front();
            if (error) continue;
            note_changes(task.ranges);
            running_ = &task;
            last_ = nullptr;
            if (const int number = task.run(*this, task))
                fail(number, "%s: %s", task.name, simt::last_failure().c_str());
            running_ = nullptr;
        }
    }

    int synchronize(SimStream &stream) {
        check_pinned();
        if (error) return error;
        if (stream.capture) return fail(kInvalidValue, "a stream is waited for while it is captured");
        ++counts.synchronisations;
        run_all();
        merge(host_clock_, stream.clock);
        return error;
    }
    int synchronize(const SimEvent &event) {
        check_pinned();
        if (error) return error;
        ++counts.synchronisations;
        run_all();
        merge(host_clock_, event.clock);
        return error;
    }

    // All that the event stands for, as late as a device may be.
    bool has_waited_for(const SimEvent &event) const {
        return std::all_of(event.clock.begin(), event.clock.end(), [&](const auto &moment) {
            const auto found = host_clock_.find(moment.first);
            return found != host_clock_.end() && found->second >= moment.second;
        });
    }

    const char *access(const void *p, std::size_t n_bytes, simt::Access access, bool *may_change) override {
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
        *may_change = last_->may_change;
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
    CountedRange push_range(const char *name) { return {next_range(), &ranges_[name]}; }

    // A graph's launches count their bytes anew.
    void renew(CountedRange &range) {
        if (range.counts) range.number = next_range();
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
    // As CUDA has it for captures that are bound to their thread.
    void note_capture(std::thread::id thread, int change) { captures_[thread] += change; }
    bool is_capturing_here() const {
        const auto found = captures_.find(std::this_thread::get_id());
        return found != captures_.end() && found->second > 0;
    }

private:
    std::uint32_t next_range() {
        if (++n_ranges_ >= 1u << 28) n_ranges_ = 1; // by_range has so many bits; counts are taken long before
        return n_ranges_;
    }

    bool declare(Task &task, const void *data, std::size_t n_bytes, bool read, bool write) {
        const auto begin = reinterpret_cast<std::uintptr_t>(data);
        if (!find(begin, begin + n_bytes)) {
            fail(kInvalidValue, "%s: a span of the step points to %zu bytes at %p, which are not the device's",
                 task.name, n_bytes, data);
            return false;
        }
        task.ranges.push_back({begin, begin + n_bytes, read, write});
        return true;
    }

    std::map<std::uintptr_t, Allocation> allocations_;
    std::deque<Task> tasks_;
    std::vector<PinnedUse> pinned_;
    Clock host_clock_;
    const Task *running_ = nullptr;
    const Range *last_ = nullptr;
    std::map<std::string, DeviceCounts> ranges_;
    std::uint32_t n_ranges_ = 0;
    int n_streams_ = 0;
    std::uint64_t n_allocations_ = 0;
    std::map<std::thread::id, int> captures_;
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
thread_local std::vector<DeviceReference> launching_late;
thread_local const char *launching_name = "";
thread_local std::vector<CountedRange> open_ranges;

CountedRange open_range() {
    return open_ranges.empty() ? CountedRange() : open_ranges.back();
}

int enqueue_kernel(simt::Stream stream, const simt::LaunchInfo &info, std::function<void()> kernel) {
    Task task;
    task.name = launching_name;
    task.ranges = launching_ranges;
    task.late = launching_late;
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
    device().release_pinned(static_cast<const unsigned char *>(data));
    ::operator delete (data, std::align_val_t{64});
}
int owns(const void *data, std::size_t n_bytes) {
    const Lock lock(device().mutex);
    const auto begin = reinterpret_cast<std::uintptr_t>(data);
    return device().find(begin, begin + n_bytes) != nullptr;
}
std::uint64_t allocation_id(const void *data) {
    const Lock lock(device().mutex);
    return device().allocation_id(data);
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
    *stream = new (std::nothrow) SimStream{device().new_stream_id(), {}, 0, nullptr, {}};
    return *stream ? 0 : kOutOfMemory;
}
void destroy_stream(DeviceStream stream) {
    const Lock lock(device().mutex);
    device().run_all();
    if (stream_of(stream).capture) device().note_capture(stream_of(stream).capturing_thread, -1);
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

int is_event_over(DeviceEvent event, int *over) {
    const Lock lock(device().mutex);
    *over = device().has_waited_for(*static_cast<SimEvent *>(event));
    return device().error;
}

int upload(DeviceStream stream, void *target, const void *source, std::size_t n_bytes) {
    const Lock lock(device().mutex);
    device().check_pinned();
    Task task;
    task.name = "an upload";
    task.range = open_range();
    task.ranges.push_back(range_of(target, n_bytes, DeviceAccess::kWrite));
    // A graph's upload reads what is there at each launch; any other one, what is there now.
    std::vector<unsigned char> before;
    const auto *bytes = static_cast<const unsigned char *>(source);
    const bool captured = stream_of(stream).capture != nullptr;
    if (!captured) before.assign(bytes, bytes + n_bytes);
    task.run = [=](SimDevice &sim, const Task &) {
        std::memcpy(target, source, n_bytes);
        sim.count_upload(n_bytes);
        return 0;
    };
    if (const int error = device().enqueue(stream_of(stream), std::move(task))) return error;
    if (!captured) device().use_pinned(stream_of(stream), bytes, std::move(before));
    return 0;
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
    launching_late.clear();
    launching_name = operation_name(op);
    for (std::size_t i = 0; i < n_references; ++i) {
        const DeviceReference &r = references[i];
        if (r.n_bytes == 0 || !r.data) continue;
        if (r.rows == DeviceRows::kNone)
            launching_ranges.push_back(range_of(r.data, r.n_bytes, r.access));
        else
            launching_late.push_back(r);
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
    s.capturing_thread = std::this_thread::get_id();
    device().note_capture(s.capturing_thread, 1);
    return device().error;
}
int end_capture(DeviceStream stream, DeviceGraph *graph) {
    const Lock lock(device().mutex);
    SimStream &s = stream_of(stream);
    if (!s.capture) return device().fail(kInvalidValue, "a capture ends on a stream that is not captured");
    device().note_capture(s.capturing_thread, -1);
    *graph = s.capture.release();
    return device().error;
}
int launch_graph(DeviceGraph graph, DeviceStream stream) {
    const Lock lock(device().mutex);
    if (stream_of(stream).capture)
        return device().fail(kInvalidValue, "a graph is launched on a stream that is captured");
    ++device().counts.graph_launches;
    for (Task task : static_cast<SimGraph *>(graph)->tasks) {
        device().renew(task.range);
        if (const int error = device().enqueue(stream_of(stream), std::move(task))) return error;
    }
    return device().error;
}
void destroy_graph(DeviceGraph graph) {
    delete static_cast<SimGraph *>(graph);
}
void push_range(DeviceStream, const char *name) {
    const Lock lock(device().mutex);
    open_ranges.push_back(device().push_range(name));
}
void pop_range(DeviceStream) {
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
    allocation_id,
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
    is_event_over,
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
