// An execution context: a backend's stages, a workspace, the step in flight and the tap. All checks that depend on the
// state stand here; what runs is in forward.h.
#pragma once

#include "forward/graph.h"
#include "forward/step.h"
#include "forward/tap.h"
#include "forward/workspace.h"

#include <memory>
#include <vector>

namespace ds41 {

class Context {
public:
    Context(std::shared_ptr<const Model> model, const ds41_ctx_options &options);

    const Model &model() const { return *model_; }

    void prefill(int layer, const std::shared_ptr<Sequence> &seq, const ds41_tensor &x, std::int32_t n_tokens,
                 std::int64_t start_pos, const ds41_tensor &out);
    void prep(std::vector<Span> spans);
    void body(int layer, const ds41_tensor &x, const ds41_tensor &out);
    bool capturable(int layer) const;

    // Layers that body() is called for between the two are recorded; no state changes.
    void begin_graph(bool by_caller);
    std::unique_ptr<Graph> end_graph();
    // Run the graph's layers on the step in flight.
    void launch(const Graph &graph);
    // Free a graph once what it has enqueued is done.
    void retire(std::unique_ptr<Graph> graph) noexcept;
    void free_retired() noexcept;
    ~Context();

    void set_tap(Tap tap);
    void synchronize();
    std::size_t n_bytes() const { return workspace_.n_bytes() + stages_->n_bytes(); }

private:
    // To the device, for the layers of `layers`; the last thing that may fail before a step is installed.
    void upload(Step &step, const std::vector<int> &layers, int n_slots = 0);
    // What may not be done while a graph is captured, or while the stream's owner captures it.
    void check_not_capturing() const;
    void record(int layer, const ds41_tensor &x, const ds41_tensor &out);
    const char *why_not_capturable(int layer) const;
    std::int64_t widths_for() const; // position up to which selections of decode steps have room
    // Pages and buffers for a step are found before it is installed: what fails leaves the step in flight as it was.
    void install(Step &&step, Workspace &&grown) noexcept;
    void run(Step &step, Workspace *grown, int layer, const ds41_tensor &x, const ds41_tensor &out);

    std::shared_ptr<const Model> model_;
    std::unique_ptr<Stages> stages_;
    Workspace workspace_;
    Step step_;
    Tap tap_;
    std::vector<int> layers_; // that the model holds; a decode step is uploaded for all of them
    // From the first capture on, selections have the same width in every decode step, so that layers that are captured
    // and layers that are not can share them.
    bool has_fixed_widths_ = false;
    int graph_slots_ = 0;                         // of the graph launched last: the next step is uploaded to its place
    std::unique_ptr<Graph> recording_;            // while a graph is captured
    Step recorded_;                               // the step of the capture, which advances nothing
    std::vector<std::unique_ptr<Graph>> retired_; // by the caller during the capture
    std::int64_t rank_end_;                       // torch rule: where prefills are said to end; 0: at the end of each
};

// Bytes of a fresh context after a step of n_tokens tokens that ends at end_pos.
std::size_t context_bytes_for(const Model &model, std::int64_t n_tokens, std::int64_t end_pos);

} // namespace ds41
