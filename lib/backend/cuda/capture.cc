// Capture of a stream into a graph, and its launch.
#include "backend/cuda/stages.h"
#include "error.h"

namespace ds41 {

// What was enqueued while the stream was captured; nothing to launch where the caller captured it.
struct CudaStages::Graph final : StageGraph {
    Graph(const DeviceFunctions &functions, int slots, const Buffers &kept)
        : device(functions), n_step_slots(slots), buffers(kept) {}
    ~Graph() override {
        if (executable) device.destroy_graph(executable);
    }
    int n_slots() const noexcept override { return n_step_slots; }

    const DeviceFunctions &device;
    int n_step_slots;
    Buffers buffers; // that it works in, however the context's grow
    DeviceGraph executable = nullptr;
};

bool CudaStages::is_capturing() {
    int capturing = 0;
    check_device(device_, device_.is_capturing(stream_, &capturing), "asking about the stream");
    return capturing != 0;
}

void CudaStages::begin_capture(bool by_caller) {
    DS41_CHECK(!is_capturing(), DS41_STATUS_WRONG_ORDER, "%s",
               by_caller
                   ? "the stream is captured already, need ds41_graph_begin() before the capture begins"
                   : "the stream is captured already by its owner, need DS41_GRAPH_EXTERNAL and ds41_graph_begin() "
                     "before that capture begins");
    capturing_thread_ = begin_thread_capture();
    if (const int error = by_caller ? 0 : device_.begin_capture(stream_)) {
        end_thread_capture(capturing_thread_);
        check_device(device_, error, "beginning a capture");
    }
    capture_ = by_caller ? Capture::kCallers : Capture::kOurs;
}

std::unique_ptr<StageGraph> CudaStages::end_capture() {
    auto graph = std::make_unique<Graph>(device_, layout_.n_token_slots, buffers_);
    const bool ours = capture_ == Capture::kOurs;
    leave_capture();
    const int error = ours ? device_.end_capture(stream_, &graph->executable) : 0;
    release_deferred();
    check_device(device_, error, "ending a capture");
    return graph;
}

void CudaStages::abandon_capture() noexcept {
    if (capture_ == Capture::kNone) return;
    DeviceGraph nobodys = nullptr;
    const bool ours = capture_ == Capture::kOurs;
    leave_capture();
    if (ours && device_.end_capture(stream_, &nobodys) == 0 && nobodys) device_.destroy_graph(nobodys);
    release_deferred();
}

void CudaStages::leave_capture() noexcept {
    capture_ = Capture::kNone;
    end_thread_capture(capturing_thread_);
}

void CudaStages::launch(const StageGraph &graph) {
    const auto &own = static_cast<const Graph &>(graph);
    if (!own.executable) return;
    check_device(device_, device_.launch_graph(own.executable, stream_), "launching a graph");
    if (check_stages_) check_device(device_, device_.synchronize(stream_), "waiting for a graph");
}

} // namespace ds41
