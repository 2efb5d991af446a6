// The stage interface: one layer's computation in six parts, each coarse enough to be fused. The forward calls them in
// order over tiles of a step's tokens; a backend implements them and knows nothing of sequences, handles or steps.
//
// A backend that does some stages better derives from ReferenceStages and overrides those. Tensors, rows and pages
// are in the backend's memory; spans, tokens and page tables are the host's, and a device backend uploads them. Tokens
// of a tile are [first, first + n) of the step; "tile row" i is token first + i. Stages do not allocate: what they need
// beside their arguments is made in prepare(). Those of a device enqueue, and throw what its driver reports.
#pragma once

#include "model/config.h"
#include "model/rope_tables.h"
#include "model/weights.h"
#include "numeric/bf16.h"
#include "sequence/rows_view.h"

#include <cstdint>
#include <memory>

namespace ds41 {

// One sequence, as one layer of the step sees it.
struct SpanView {
    std::int32_t first_token; // of the step
    std::int32_t n_tokens;
    std::int64_t start_pos;
    RowsView window; // ring of positions before start_pos, slot pos % window_size
    RowsView
        compressed; // rows of the kv source that the layer reads; those of this step's groups are there once it ran
    RowsView index_keys;        // keys of the kv source; index sources and writers only
    float *group_state;         // [2][ratio][head_dim]: kv and gate products of the incomplete group by pos % ratio
    std::int64_t n_rank_groups; // columns that the torch rule ranks
};

struct TokenView {
    std::int32_t span;
    std::int64_t pos;
};

struct StepView {
    const SpanView *spans;   // [n_spans]
    const TokenView *tokens; // [n_tokens]
    std::int32_t n_spans;
    std::int32_t n_tokens;
};

struct Tile {
    std::int32_t first;
    std::int32_t n;
};

// What every stage of a layer gets.
struct LayerView {
    int layer;
    const Config *config;
    const LayerRole *role;
    const LayerWeights *weights;
    const RopeTable *rope;
    StepView step;
};

struct ProjectArgs {
    LayerView layer;
    Tile tile;
    const Bf16 *x;            // [n_tokens, dim]
    Bf16 *qr;                 // [tile, q_lora_rank]: normed low-rank queries
    Bf16 *q;                  // [tile, n_heads, head_dim], rotated
    std::uint8_t *window_new; // [n_tokens, window_row_bytes]: packed rows of the step's own tokens
};

struct CompressArgs {
    LayerView layer;
    Tile tile;
    const Bf16 *x; // [n_tokens, dim]
    // Where each span's latents go for a tap: [n_spans] arrays [groups of the span, head_dim]; may be null.
    Bf16 *const *tap_latents;
};

struct IndexQueryArgs {
    LayerView layer;
    Tile tile;
    const Bf16 *x;    // [n_tokens, dim]
    const Bf16 *qr;   // [tile, q_lora_rank]
    std::uint8_t *iq; // [tile, index_n_heads, index_key_row_bytes]: rotated and packed
    Bf16 *weights;    // [tile, index_n_heads]
};

struct SelectArgs {
    LayerView layer;
    Tile tile;
    const std::uint8_t *iq; // [tile, index_n_heads, index_key_row_bytes]
    const Bf16 *weights;    // [tile, index_n_heads]
    std::int32_t *blocks;   // [n_tokens, n_block_slots]: kept blocks, ascending, then -1. Written by the candidate
                            // source, read by layers that use candidates; otherwise null
    std::int32_t n_block_slots;
    std::int32_t *groups; // [n_tokens, n_group_slots]: selected groups, ascending, then -1
    std::int32_t n_group_slots;
    ds41_topk_rule rule;
    // [n_spans] arrays [tokens of the span, groups at its end], -inf where masked; may be null.
    float *const *tap_scores;
};

struct AttendArgs {
    LayerView layer;
    Tile tile;
    const Bf16 *q;                  // [tile, n_heads, head_dim]
    const std::uint8_t *window_new; // [n_tokens, window_row_bytes]
    const std::int32_t *groups;     // [n_tokens, n_group_slots]; null in layers of ratio 0
    std::int32_t n_group_slots;
    Bf16 *o; // [tile, n_heads, head_dim], before the inverse rotation; output() gets the same
    bool is_tapped =
        false; // somebody else reads o: a backend that hands it to output() in its own form writes it as well
};

struct OutputArgs {
    LayerView layer;
    Tile tile;
    Bf16 *o;   // [tile, n_heads, head_dim]; rotated back in place
    Bf16 *out; // [n_tokens, dim]; may be the step's x
};

struct StageSizes;

// What layers that are about to run see of a step.
struct StepUpload {
    const Config *config;
    const RopeTable *rope_plain, *rope_compressed;
    const TokenView *tokens; // [n_tokens]
    std::int32_t n_tokens;
    std::int32_t n_spans;
    const int *layers;     // [n_layers]
    const SpanView *views; // [n_layers, n_spans]
    int n_layers;
    bool is_prefill;
    const StageSizes *sizes;      // as prepare() has got them for this step
    const PageWrite *page_writes; // [n_page_writes] that the tables of the views lack
    int n_page_writes;
    int n_slots; // tokens to make room for at least: those behind the step's last are not there
};

// Enqueued work that can be launched again. It keeps the memory that it works in.
class StageGraph {
public:
    virtual ~StageGraph() = default;
    virtual int n_slots() const noexcept = 0; // tokens that the uploaded step must have room for, exactly
};

// Bounds of what the stages of one layer will be asked for.
struct StageSizes {
    std::int64_t n_tile_tokens = 0;
    std::int64_t n_groups = 0; // most that any token of the step may see or rank
    std::int32_t n_group_slots = 0;
    std::int64_t n_window_rows = 0; // most that any token attends to
    ds41_topk_rule topk_rule = DS41_TOPK_STABLE;
};

// How a context's stages run. Backends that compute elsewhere, or on one thread, do without threads.
struct StageOptions {
    int n_threads = 1;                   // the caller's among them; 0: as many as CPUs that the process may use
    bool pin_threads = false;            // each thread but the caller's to a CPU of its own
    ds41_parallel_fn parallel = nullptr; // the caller's parallel-for, instead of threads
    void *parallel_user = nullptr;
    bool share_all = false;           // however short the work is, for tests
    void *stream = nullptr;           // the caller's CUDA stream
    int attention_split = 0;          // thread blocks that share a token's rows; 0: as many as fill a GPU
    const char *cpu_target = nullptr; // instruction set of the cpu backend; null: DS41_CPU_TARGET, or the best
};

class Stages {
public:
    virtual ~Stages() = default;

    // Make room for stages within `sizes`. On failure things stay usable as they were.
    virtual void prepare(const Config &config, const StageSizes &sizes) = 0;
    // Bytes that prepare() has taken, and would take.
    virtual std::size_t n_bytes() const noexcept = 0;
    virtual std::size_t needed_bytes(const Config &config, const StageSizes &sizes) const noexcept = 0;

    // Bring the host's part of a step to where stages read it. Only the layers of the last call may run.
    virtual bool wants_upload() const noexcept { return false; }
    virtual void upload_step(const StepUpload &) {}
    // Tokens that the uploaded step has room for.
    virtual int n_slots() const noexcept { return 0; }
    // Wait for what has been enqueued.
    virtual void synchronize() {}

    // Whether calls are recorded instead of enqueued; nothing may then be allocated or waited for.
    virtual bool is_capturing() { return false; }
    // Record what follows, for the step that was uploaded. The caller may do the recording itself: begin_capture() then
    // comes before, and end_capture() after it. Backends with graphs only.
    virtual void begin_capture(bool /* by_caller */) {}
    virtual std::unique_ptr<StageGraph> end_capture() { return nullptr; }
    virtual void abandon_capture() noexcept {}
    virtual void launch(const StageGraph &) {}

    // Around the calls of a stage: for profilers, and to blame the right one for what a device reports.
    virtual void enter(int /* layer */, const char * /* stage */) {}
    virtual void leave(int /* layer */, const char * /* stage */) {}

    // x to normed low-rank queries, rotated queries, and packed window rows.
    virtual void project(const ProjectArgs &args) = 0;
    // x to latents of the groups that the tile completes, their index keys and compressed rows.
    virtual void compress(const CompressArgs &args) = 0;
    // x and qr to index queries and head weights.
    virtual void index_query(const IndexQueryArgs &args) = 0;
    // Scores, candidate blocks, the best groups.
    virtual void select(const SelectArgs &args) = 0;
    // Softmax over window rows and selected rows.
    virtual void attend(const AttendArgs &args) = 0;
    // Inverse rotation and the two output projections.
    virtual void output(const OutputArgs &args) = 0;
    // Window rows of the step into the rings: the last window_size of each span.
    virtual void commit_window(const LayerView &layer, const std::uint8_t *window_new) = 0;
};

// Groups complete among the first `n_positions` tokens.
inline std::int64_t groups_among(std::int64_t n_positions, int ratio) {
    return n_positions / ratio;
}

} // namespace ds41
