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

// Which layers of a step have run, and what that allows.
struct Progress {
    std::vector<bool> ran; // by layer: its compressed rows and index keys of this step are there
    int last_layer = -1;
    int selection_of = -1;   // index source whose groups were published
    bool has_blocks = false; // the candidate source has run

    // Throws WRONG_ORDER where the layer may not run next.
    void check_order(const Config &config, int layer) const;
    void complete(const Config &config, int layer) noexcept;
};

// Selections that layers of a step leave for later ones. Null: no group was complete anywhere.
struct Published {
    std::shared_ptr<const Block> groups; // i32 [n_tokens, n_group_slots], of the last index source
    std::shared_ptr<const Block> blocks; // i32 [n_tokens, n_block_slots], of the candidate source
    std::int32_t n_group_slots = 0;
    std::int32_t n_block_slots = 0;
};

struct Step {
    enum class Kind { kNone, kPrefill, kDecode };

    Kind kind = Kind::kNone;
    std::vector<Span> spans;
    std::vector<TokenView> tokens;
    std::vector<SpanView> views; // of the layer that runs; rewritten by each
    StepSizes sizes;
    std::int64_t rank_end = 0; // torch rule: where a prefill is said to end; 0: at the end of each span

    Progress progress;
    Published published;

    // Lay out tokens and bookkeeping for `spans`; no claim is taken. `widths_for` is a position up to which selections
    // shall have room, beyond the step's own end. Throws INVALID_ARGUMENT for too many tokens, or std::bad_alloc.
    static Step plan(const Model &model, Kind kind, std::vector<Span> spans, std::int64_t rank_end,
                     std::int64_t widths_for = 0);

    void claim() noexcept;
    bool is_over() const noexcept; // a sequence was reset, destroyed or taken by another step

    // Throws INVALID_POSITION where the layer of a sequence does not stand at the start of its span.
    void check_positions(int layer) const;
    // Views of the spans for a layer; its pages must be reserved.
    StepView view(const Config &config, int layer);
    // The layer has run: advance its sequences, record what it published.
    void complete(const Config &config, int layer) noexcept;
};

// Throws INVALID_ARGUMENT for a span without tokens, INVALID_POSITION for one that starts below 0 or ends beyond
// max_seq_len; `place` stands before the argument in the message.
void check_span_range(const Config &config, const char *place, std::int64_t start_pos, std::int32_t n_tokens);

} // namespace ds41
