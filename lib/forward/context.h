// An execution context: a backend's stages, a workspace, the step in flight and the tap. All checks that depend on the
// state stand here; what runs is in forward.h.
#pragma once

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

    void set_tap(Tap tap) { tap_ = std::move(tap); }
    void synchronize() { stages_->synchronize(); }
    std::size_t n_bytes() const { return workspace_.n_bytes() + stages_->n_bytes(); }

private:
    // To the device, for the layers of `layers`; the last thing that may fail before a step is installed.
    void upload(Step &step, const std::vector<int> &layers);
    // Pages and buffers for a step are found before it is installed: what fails leaves the step in flight as it was.
    void install(Step &&step, Workspace &&grown) noexcept;
    void run(Step &step, Workspace *grown, int layer, const ds41_tensor &x, const ds41_tensor &out);

    std::shared_ptr<const Model> model_;
    std::unique_ptr<Stages> stages_;
    Workspace workspace_;
    Step step_;
    Tap tap_;
    std::int64_t rank_end_; // torch rule: where prefills are said to end; 0: at the end of each
};

// Bytes of a fresh context after a step of n_tokens tokens that ends at end_pos.
std::size_t context_bytes_for(const Model &model, std::int64_t n_tokens, std::int64_t end_pos);

} // namespace ds41
