// Named intermediates for parity checks: the tap that a caller set, and what one layer's run collects for it. All
// memory is taken before the layer runs, so that a tapped run cannot fail half way.
#pragma once

#include "forward/step.h"
#include "forward/workspace.h"

#include <array>
#include <cstdint>
#include <vector>

namespace ds41 {

// In the order of delivery.
enum class TapName {
    kQ,
    kLatent,
    kIndexK,
    kCompRows,
    kIndexQ,
    kIndexWeights,
    kScores,
    kCandidates,
    kKvRows,
    kIdx,
    kO,
    kRing,
    kStateKv,
    kStateGate,
    kCount
};

struct Tap {
    ds41_tap_fn function = nullptr;
    void *user = nullptr;
    std::uint32_t names = 0; // bits by TapName

    bool wanted() const { return function != nullptr; }
    bool wants(TapName name) const { return wanted() && (names >> static_cast<int>(name) & 1u) != 0; }
};

// Throws INVALID_ARGUMENT for a name that there is not; n_names 0 means all.
Tap make_tap(const char *const *names, std::int32_t n_names, ds41_tap_fn function, void *user);

class TapRun {
public:
    // Plans and allocates nothing when no tap is set.
    TapRun(const Tap &tap, const Model &model, const Step &step, int layer);

    // Called by the forward, in this order, for each tile and then once.
    void save_q(const Tile &tile, const Bf16 *q);
    Bf16 *const *latents() const noexcept { return latents_.empty() ? nullptr : latents_.data(); }
    void save_index_query(const Tile &tile, const std::uint8_t *iq, const Bf16 *weights);
    float *const *scores() const noexcept { return scores_.empty() ? nullptr : scores_.data(); }
    void save_o(const Tile &tile, const Bf16 *o);
    void save_rows(const LayerView &layer, const Workspace &workspace,
                   const Published &published); // before the ring is written
    void save_state(const LayerView &layer);    // after

    void deliver() const;

private:
    // One span's counts, in the letters of the header's table.
    struct Counts {
        std::int64_t n_tokens, start_pos;   // T
        std::int64_t n_groups, n_completed; // P, G
        std::int64_t n_window_rows;         // R
        std::int64_t first_window_pos;
        std::int64_t n_window_cols, n_group_cols;
    };
    struct Value {
        Block host; // empty where the tap is not delivered
        ds41_tensor tensor{};
    };
    struct SpanValues {
        Counts counts{};
        std::array<Value, static_cast<std::size_t>(TapName::kCount)> values;

        Value &operator[](TapName name) { return values[static_cast<std::size_t>(name)]; }
    };

    void plan_span(SpanValues &span, const Config &config, const LayerRole &role);
    void plan(SpanValues &span, TapName name, ds41_dtype dtype, std::initializer_list<std::int64_t> shape);
    void plan_device_side(const Model &model);
    template <typename T> void save_tile(TapName name, const Tile &tile, const T *source, std::int64_t row);
    void save_idx(SpanValues &span, const Published &published, std::int32_t first_token);
    void save_candidates(SpanValues &span, const Config &config, const Published &published, std::int32_t first_token);

    const Tap &tap_;
    const Memory *memory_;
    int layer_;
    std::vector<SpanValues> spans_;
    std::vector<Bf16 *> latents_; // [n_spans] where the backend puts them
    std::vector<float *> scores_;
    std::vector<Block> device_; // what those point to
    Block staging_;             // host copy of one row, or of a token's slots
};

} // namespace ds41
