// The device interface over the CUDA runtime, which is linked statically: it opens the driver at its first call, so the
// plugin loads where there is none, and says so.
#include "backend/cuda/plugin/cublas.h"
#include "backend/cuda/plugin/operations.h"

#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace ds41 {

namespace {

// Ours, with a sentence of their own.
constexpr int kNoImage = 20000; // the device is not among those that kernels were built for
constexpr int kNoDriver = 20001;

thread_local char sentence[512] = "";

const char *describe(int error) {
    if (error >= kNoImage) return sentence;
    if (error >= kCublasMissing) return cublas_sentence();
    const auto number = static_cast<cudaError_t>(error);
    std::snprintf(sentence, sizeof sentence, "%s (%s)", cudaGetErrorString(number), cudaGetErrorName(number));
    return sentence;
}

// Device 0 for the calls of a scope, and the caller's again behind it.
class OnDevice {
public:
    OnDevice() {
        if (cudaGetDevice(&callers_) == cudaSuccess && callers_ != 0) cudaSetDevice(0);
    }
    ~OnDevice() {
        if (callers_ != 0) cudaSetDevice(callers_);
    }
    OnDevice(const OnDevice &) = delete;
    OnDevice &operator=(const OnDevice &) = delete;

private:
    int callers_ = 0;
};

int is_out_of_memory(int error) {
    return error == cudaErrorMemoryAllocation;
}

int open() {
    int n_devices = 0, driver = 0;
    // Without a driver the runtime calls it too old.
    if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) {
        std::snprintf(sentence, sizeof sentence, "there is no NVIDIA driver on this machine");
        return kNoDriver;
    }
    if (const cudaError_t error = cudaGetDeviceCount(&n_devices)) return error;
    if (n_devices == 0) return cudaErrorNoDevice;
    const OnDevice on;
    cudaDeviceProp properties{};
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, 0)) return error;
    if (const int error = probe_image()) {
        if (error != cudaErrorNoKernelImageForDevice && error != cudaErrorInvalidPtx &&
            error != cudaErrorUnsupportedPtxVersion)
            return error;
        std::snprintf(sentence, sizeof sentence, "%s has compute capability %d.%d, and this library has kernels for %s",
                      properties.name, properties.major, properties.minor, DS41_CUDA_ARCHITECTURES);
        return kNoImage;
    }
    return 0;
}

int allocate(void **data, std::size_t n_bytes) {
    const OnDevice on;
    return cudaMalloc(data, n_bytes);
}
void release(void *data) {
    cudaFree(data);
}
int allocate_pinned(void **data, std::size_t n_bytes) {
    const OnDevice on;
    return cudaMallocHost(data, n_bytes);
}
void release_pinned(void *data) {
    cudaFreeHost(data);
}
int owns(const void *data, std::size_t n_bytes) {
    const auto is_device = [](const void *p) {
        cudaPointerAttributes attributes{};
        if (cudaPointerGetAttributes(&attributes, p) != cudaSuccess) {
            cudaGetLastError(); // not a fault of anything that was enqueued
            return false;
        }
        return attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
    };
    return is_device(data) && (n_bytes == 0 || is_device(static_cast<const char *>(data) + n_bytes - 1));
}
std::uint64_t allocation_id(const void *data) {
    // The runtime has no call for it; the driver is opened already.
    using AttributeFn = int (*)(void *value, int attribute, unsigned long long address);
    constexpr int kBufferId = 7; // CU_POINTER_ATTRIBUTE_BUFFER_ID
    static const auto attribute = [] {
        void *function = nullptr;
        cudaDriverEntryPointQueryResult found{};
        constexpr unsigned kVersion = 12000;
        const cudaError_t error =
            cudaGetDriverEntryPointByVersion("cuPointerGetAttribute", &function, kVersion, cudaEnableDefault, &found);
        const bool there = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
        return there ? reinterpret_cast<AttributeFn>(function) : nullptr;
    }();
    unsigned long long id = 0;
    return attribute && attribute(&id, kBufferId, reinterpret_cast<unsigned long long>(data)) == 0 ? id : 0;
}
// A stream of its own: the legacy one would wait for, and break the capture of, a caller's blocking streams.
cudaStream_t copies() {
    static cudaStream_t stream = [] {
        cudaStream_t made = nullptr;
        return cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking) == cudaSuccess ? made : nullptr;
    }();
    return stream; // null, which is the legacy one, where there is none to be had
}
int copy_now(void *target, const void *source, std::size_t n_bytes, cudaMemcpyKind kind) {
    if (const cudaError_t error = cudaMemcpyAsync(target, source, n_bytes, kind, copies())) return error;
    return cudaStreamSynchronize(copies());
}
int upload_now(void *target, const void *source, std::size_t n_bytes) {
    const OnDevice on;
    return copy_now(target, source, n_bytes, cudaMemcpyHostToDevice);
}
int download_now(void *target, const void *source, std::size_t n_bytes) {
    const OnDevice on;
    return copy_now(target, source, n_bytes, cudaMemcpyDeviceToHost);
}

cudaStream_t native(DeviceStream stream) {
    return static_cast<cudaStream_t>(stream);
}
cudaEvent_t native_event(DeviceEvent event) {
    return static_cast<cudaEvent_t>(event);
}

int create_stream(DeviceStream *stream) {
    const OnDevice on;
    return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t *>(stream), cudaStreamNonBlocking);
}
void destroy_stream(DeviceStream stream) {
    cudaStreamDestroy(native(stream));
}
int synchronize(DeviceStream stream) {
    return cudaStreamSynchronize(native(stream));
}
int create_event(DeviceEvent *event) {
    const OnDevice on;
    return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t *>(event), cudaEventDisableTiming);
}
void destroy_event(DeviceEvent event) {
    cudaEventDestroy(native_event(event));
}
int record_event(DeviceEvent event, DeviceStream stream) {
    const OnDevice on;
    return cudaEventRecord(native_event(event), native(stream));
}
int wait_event(DeviceStream stream, DeviceEvent event) {
    return cudaStreamWaitEvent(native(stream), native_event(event), 0);
}
int synchronize_event(DeviceEvent event) {
    return cudaEventSynchronize(native_event(event));
}

int is_event_over(DeviceEvent event, int *over) {
    const cudaError_t error = cudaEventQuery(native_event(event));
    *over = error == cudaSuccess;
    return error == cudaErrorNotReady ? cudaSuccess : error;
}

int upload(DeviceStream stream, void *target, const void *source, std::size_t n_bytes) {
    const OnDevice on;
    return cudaMemcpyAsync(target, source, n_bytes, cudaMemcpyHostToDevice, native(stream));
}
int copy(DeviceStream stream, void *target, const void *source, std::size_t n_bytes) {
    const OnDevice on;
    return cudaMemcpyAsync(target, source, n_bytes, cudaMemcpyDeviceToDevice, native(stream));
}
int fill(DeviceStream stream, void *target, int byte, std::size_t n_bytes) {
    const OnDevice on;
    return cudaMemsetAsync(target, byte, n_bytes, native(stream));
}
int launch(DeviceStream stream, DeviceOp op, const void *params, const DeviceReference *, std::size_t) {
    const OnDevice on;
    return launch_operation(stream, op, params);
}
int gemm(DeviceStream stream, const DeviceGemm *gemm) {
    const OnDevice on;
    return cublas_gemm(stream, *gemm);
}

int is_capturing(DeviceStream stream, int *capturing) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing(native(stream), &status);
    *capturing = status != cudaStreamCaptureStatusNone;
    return error;
}
// Relaxed: what other contexts of this thread do on streams of their own is no mistake, and none of it is recorded.
int begin_capture(DeviceStream stream) {
    return cudaStreamBeginCapture(native(stream), cudaStreamCaptureModeRelaxed);
}
int end_capture(DeviceStream stream, DeviceGraph *graph) {
    const OnDevice on;
    cudaGraph_t captured = nullptr;
    if (const cudaError_t error = cudaStreamEndCapture(native(stream), &captured)) return error;
    const cudaError_t error = cudaGraphInstantiate(reinterpret_cast<cudaGraphExec_t *>(graph), captured, 0);
    cudaGraphDestroy(captured);
    return error;
}
int launch_graph(DeviceGraph graph, DeviceStream stream) {
    const OnDevice on;
    return cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), native(stream));
}
void destroy_graph(DeviceGraph graph) {
    cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

// Times of ranges, by events around them. Those of captured streams have none: their events would be the graph's.
struct RangeBegin {
    std::string name;
    cudaEvent_t begin = nullptr; // null: it is not timed
};
struct TimedRange {
    std::string name;
    cudaEvent_t begin, end;
};
std::atomic<bool> ranges_are_timed{false};
std::mutex timed_mutex;
std::vector<TimedRange> timed_ranges;
thread_local std::vector<RangeBegin> open_ranges;

cudaEvent_t record_now(DeviceStream stream) {
    const OnDevice on;
    cudaEvent_t event = nullptr;
    if (cudaEventCreate(&event) == cudaSuccess && cudaEventRecord(event, native(stream)) == cudaSuccess) return event;
    if (event) cudaEventDestroy(event);
    return nullptr;
}

void push_range(DeviceStream stream, const char *name) {
    nvtxRangePushA(name);
    RangeBegin range;
    int capturing = 0;
    if (ranges_are_timed && is_capturing(stream, &capturing) == cudaSuccess && !capturing)
        range = {name, record_now(stream)};
    open_ranges.push_back(std::move(range));
}
void pop_range(DeviceStream stream) {
    nvtxRangePop();
    if (open_ranges.empty()) return;
    RangeBegin range = std::move(open_ranges.back());
    open_ranges.pop_back();
    if (!range.begin) return;
    if (const cudaEvent_t end = record_now(stream)) {
        const std::lock_guard<std::mutex> lock(timed_mutex);
        timed_ranges.push_back({std::move(range.name), range.begin, end});
    } else {
        cudaEventDestroy(range.begin);
    }
}
void take_counts(DeviceCounts *total, void (*each)(const char *, const DeviceCounts *, void *), void *user) {
    ranges_are_timed = true;
    *total = {};
    std::vector<TimedRange> ranges;
    {
        const std::lock_guard<std::mutex> lock(timed_mutex);
        ranges.swap(timed_ranges);
    }
    std::map<std::string, DeviceCounts> by_name;
    for (const TimedRange &range : ranges) {
        float milliseconds = 0.0f;
        if (cudaEventSynchronize(range.end) == cudaSuccess &&
            cudaEventElapsedTime(&milliseconds, range.begin, range.end) == cudaSuccess)
            by_name[range.name].nanoseconds += static_cast<std::uint64_t>(1e6 * static_cast<double>(milliseconds));
        cudaEventDestroy(range.begin);
        cudaEventDestroy(range.end);
    }
    for (const auto &[name, counts] : by_name)
        if (each) each(name.c_str(), &counts, user);
}

constexpr DeviceFunctions kFunctions = {
    kDeviceVersion,
    0,
    "cuda",
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
