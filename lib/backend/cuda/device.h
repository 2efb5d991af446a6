// The device interface: what the CUDA backend asks of a device, as one table of functions. The core has no CUDA in it;
// a plugin library brings the table, over the CUDA runtime or over the simulator. The boundary is plain: numbers come
// back, no exception crosses it. Parameters of operations are the structs of kernels/<operation>/params.h.
#pragma once

#include "numeric/bf16.h"

#include <cstddef>
#include <cstdint>

namespace ds41 {

// Changes with anything in this file or in an operation's parameters: a plugin of another version is refused.
constexpr std::uint32_t kDeviceVersion = 3;

enum class DeviceOp : std::int32_t {
    kLinear,
    kQuantise,
    kRows,
    kCommitWindow,
    kScore,
    kTopk,
    kKeepBlocks,
    kAttend,
    kAttendTensor,
    kWritePages,
    kCount
};

enum class DeviceAccess : std::uint32_t { kRead = 1, kWrite = 2, kReadWrite = 3 };

// What a SpanRows entry (kernels/common/step.h) points to.
enum class DeviceRows : std::int32_t { kNone, kWindow, kCompressed, kIndexKeys, kGroupState };

// Memory that an operation touches: n_bytes at `data`. Or what the n_spans entries of SpanRows at `data` point to when
// the operation runs, so that a graph's operations are held to what stands there at each launch: rows of the sequences,
// the tables of their pages, and their group states. What is not declared is not touched: the simulator holds
// operations to it.
struct DeviceReference {
    const void *data;
    std::size_t n_bytes; // with rows: of a row, or of a group state
    DeviceAccess access;
    DeviceRows rows = DeviceRows::kNone;
    std::int32_t n_spans = 0;
    std::int32_t per_row = 0; // kWindow: rows of the ring; kCompressed, kIndexKeys: positions for which a row stands
};

// out[n, rows] = bf16(x[n, k] . w[rows, k]) for each of n_slices, in f32. Slice s reads x from column s * k on, the
// weights from row s * rows on, and writes out from column s * rows on.
struct DeviceGemm {
    const Bf16 *x;       // [n, stride_x]
    const Bf16 *weights; // [n_slices * rows, k]
    Bf16 *out;           // [n, stride_out]
    std::int64_t stride_x, stride_out;
    std::int32_t n, rows, k, n_slices;
};

// What a device counted since it was last asked: in all, or in the innermost range of a name. The simulated one has no
// time, a GPU nothing else, and that by range only, for what is enqueued after the first question.
struct DeviceCounts {
    std::uint64_t nanoseconds;
    std::uint64_t launches;       // of kernels, those of graphs included
    std::uint64_t graph_launches; // in all only
    std::uint64_t synchronisations;
    std::uint64_t uploads, uploaded_bytes;   // from the host, asynchronous ones and others
    std::uint64_t bytes_read, bytes_written; // by kernels, each access counted
    std::uint64_t distinct_bytes;            // of those, each byte once; of a range once each time it is pushed
};

using DeviceStream = void *;
using DeviceEvent = void *;
using DeviceGraph = void *;

// Functions that return int give 0, or an error's number; describe() then tells the last one of this thread.
// Allocations, uploads and launches name device 0: which one that is, is the environment's choice.
struct DeviceFunctions {
    std::uint32_t version; // kDeviceVersion
    std::uint32_t wants_references;
    const char *name;

    const char *(*describe)(int error);
    int (*is_out_of_memory)(int error);
    // Whether there is a device on which this plugin's kernels run.
    int (*open)();

    int (*allocate)(void **data, std::size_t n_bytes);
    void (*release)(void *data);
    int (*allocate_pinned)(void **data, std::size_t n_bytes);
    void (*release_pinned)(void *data);
    // 1 where all n_bytes are memory of the device.
    int (*owns)(const void *data, std::size_t n_bytes);
    // The number of the allocation that `data` lies in, which no other gets; 0 where there is none, or no telling.
    std::uint64_t (*allocation_id)(const void *data);
    // Wait until they are done; what streams do meanwhile is not waited for.
    int (*upload_now)(void *target, const void *source, std::size_t n_bytes);
    int (*download_now)(void *target, const void *source, std::size_t n_bytes);

    int (*create_stream)(DeviceStream *stream);
    void (*destroy_stream)(DeviceStream stream);
    int (*synchronize)(DeviceStream stream);
    int (*create_event)(DeviceEvent *event);
    void (*destroy_event)(DeviceEvent event);
    int (*record_event)(DeviceEvent event, DeviceStream stream);
    int (*wait_event)(DeviceStream stream, DeviceEvent event);
    int (*synchronize_event)(DeviceEvent event);
    int (*is_event_over)(DeviceEvent event, int *over); // without waiting

    // All from here on enqueue. `source` is pinned memory, which stays as it is until the copy is done.
    int (*upload)(DeviceStream stream, void *target, const void *source, std::size_t n_bytes);
    int (*copy)(DeviceStream stream, void *target, const void *source, std::size_t n_bytes);
    int (*fill)(DeviceStream stream, void *target, int byte, std::size_t n_bytes);
    int (*launch)(DeviceStream stream, DeviceOp op, const void *params, const DeviceReference *references,
                  std::size_t n_references);
    int (*gemm)(DeviceStream stream, const DeviceGemm *gemm);

    int (*is_capturing)(DeviceStream stream, int *capturing);
    int (*begin_capture)(DeviceStream stream);
    int (*end_capture)(DeviceStream stream, DeviceGraph *graph); // instantiated
    int (*launch_graph)(DeviceGraph graph, DeviceStream stream);
    void (*destroy_graph)(DeviceGraph graph);

    // Names what is enqueued on a stream between the two calls, for profilers and counters. Ranges nest.
    void (*push_range)(DeviceStream stream, const char *name);
    void (*pop_range)(DeviceStream stream);
    // `each` may be null. What is enqueued is done first.
    void (*take_counts)(DeviceCounts *total, void (*each)(const char *range, const DeviceCounts *counts, void *user),
                        void *user);
};

// What a plugin library exports; null for a version that it does not have.
using DevicePluginFn = const DeviceFunctions *(*)(std::uint32_t version);
constexpr const char *kDevicePluginSymbol = "ds41_device_plugin";

} // namespace ds41
