// A step: spans of new tokens, and what its layers have published for each other so far.
#pragma once

#include "backend/stages.h"
#include "forward/workspace.h"
#include "sequence/sequence.h"

#include <memory>
#include <vector>

namespace ds41 {

struct Span {
    std::shared_ptr<Sequence> seq;
    std::int64_t start_pos;
    std::int32_t n_tokens;
    std::uint64_t claim = 0; // the sequence's number for this step; another one now means that the step is over

    std::int64_t end_pos() const { return start_pos + n_tokens; }
};

struct Step {
    enum class Kind { kNone, kPrefill, kDecode };

    Kind kind = Kind::kNone;
    std::vector<Span> spans;
    std::vector<TokenView> tokens;
    std::vector<SpanView> views; // of the layer that runs; rewritten by each
    StepSizes sizes;
    std::int64_t rank_end = 0; // torch rule: where a prefill is said to end; 0: at the end of each span

    std::vector<bool> ran; // by layer: its compressed rows and index keys of this step are there
    int last_layer = -1;
    int selection_of = -1;   // index source whose groups are in the workspace
    bool has_blocks = false; // the candidate source has run

    // Lay out tokens and bookkeeping for `spans`; no claim is taken. Throws INVALID_ARGUMENT for too many tokens, or
    // std::bad_alloc.
    static Step plan(const Model &model, Kind kind, std::vector<Span> spans, std::int64_t rank_end);

    void claim() noexcept;
    bool is_over() const noexcept; // a sequence was reset, destroyed or taken by another step

    // Throws INVALID_POSITION where the layer of a sequence does not stand at the start of its span.
    void check_positions(int layer) const;
    // Throws WRONG_ORDER where the layer may not run next in this step.
    void check_order(const Config &config, int layer) const;

    // Views of the spans for a layer; its pages must be reserved.
    StepView view(const Config &config, int layer);
    // The layer has run: advance its sequences, record what it published.
    void complete(const Config &config, int layer) noexcept;
};

// Throws INVALID_ARGUMENT for a span without tokens, INVALID_POSITION for one that starts below 0 or ends beyond
// max_seq_len; `place` stands before the argument in the message.
void check_span_range(const Config &config, const char *place, std::int64_t start_pos, std::int32_t n_tokens);

} // namespace ds41
