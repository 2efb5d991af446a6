// The reference backend: every stage in scalar code, written to be read beside DESIGN's part 1. It is the yardstick:
// f32 sums in index order, no fused multiply-adds, exponentials and angles rounded once from f64, so that it gives the
// same bits on every machine. One file a stage; rows.h has what they share.
#pragma once

#include "backend/stages.h"
#include "numeric/q8.h"

#include <vector>

namespace ds41 {

// A score and what it belongs to, a group or a block.
struct Scored {
    float score;
    std::int32_t index;
};

// Room for one row of a product in each format's activations.
struct LinearScratch {
    std::vector<float> values; // a decoded weight row
    std::vector<std::uint8_t> codes;
    std::vector<float> scales;
    std::vector<Q8Block> q8;
};

class ReferenceStages : public Stages {
public:
    void prepare(const Config &config, const StageSizes &sizes) override;
    std::size_t n_bytes() const noexcept override;
    std::size_t needed_bytes(const Config &config, const StageSizes &sizes) const noexcept override;

    void project(const ProjectArgs &args) override;
    void compress(const CompressArgs &args) override;
    void index_query(const IndexQueryArgs &args) override;
    void select(const SelectArgs &args) override;
    void attend(const AttendArgs &args) override;
    void output(const OutputArgs &args) override;
    void commit_window(const LayerView &layer, const std::uint8_t *window_new) override;

private:
    struct Buffers {
        LinearScratch linear;
        std::vector<Bf16> row;       // one row of a projection
        std::vector<Bf16> key;       // one index key
        std::vector<float> scores;   // of one token's groups
        std::vector<Scored> ranking; // groups or blocks, while they are ranked
        std::vector<float> rows;     // unpacked rows that one token attends to
        std::vector<float> weights;  // scores, then weights, of one head over those rows
        std::vector<float> sums;     // one head's output
    };
    struct Lengths {
        std::size_t linear, row, key, scores, rows, weights, sums;
    };
    static Lengths lengths(const Config &config, const StageSizes &sizes) noexcept;
    static std::size_t bytes_of(const Lengths &lengths) noexcept;

    void score_groups(const SelectArgs &args, int token, std::int64_t n_visible);

    Buffers buffers_;
    Lengths held_{};
};

} // namespace ds41
