// The fast backend for CPUs: SIMD kernels chosen at run time, threads of the context or the caller, weights read where
// they lie. What is exact in the reference (quantisers, q8_1 products, index scores, selections, norms, rotations) is
// the same here to the bit; other f32 sums have an order of their own, one and the same for every number of threads and
// tokens (simd.h). One file a stage, as in reference/; linear.cc has the products.
#pragma once

#include "backend/cpu/kernels.h"
#include "backend/cpu/pairs.h"
#include "backend/cpu/pool.h"
#include "backend/cpu/rank.h"
#include "backend/cpu/targets.h"
#include "backend/memory.h"
#include "backend/reference/stages.h"
#include "numeric/rows.h"

#include <array>
#include <memory>

namespace ds41 {

// Up to so many tokens a product reads its weights once for all groups of columns at a time; more, and a group's
// activations fill the caches by themselves.
constexpr int kFewTokens = 16;

// Tokens that are scored against each unpacked key. Each costs two bytes of memory per group of the context.
constexpr int kScoreTokens = 4;

// What a product takes its activations as: floats in an order of kernels.h, quantised floats, q8_1, or pairs.h's bf16,
// as they are or quantised.
enum class Form { kPairs, kNatural, kCodes, kFp8, kQ8, kBf16, kBf16Fp8 };

// Activations in a form, for all tokens of a tile and for one or more groups of columns (wo_a has eight).
struct Activations {
    Form form;
    std::int64_t k; // columns of a group
    int n_tokens;
    float *values;    // float forms: [n_groups] blocks as kernels.h says
    int *exponents;   // [n_groups][n_tokens]
    Bf16 *pairs;      // bf16 forms: [n_groups] as pairs.h says
    cpu::Q8View q8{}; // kQ8: of group 0; the others follow, n_tokens rows each
};

// Rows of a matrix times the activations of a group, for all tokens.
struct Product {
    const Matrix *matrix;
    std::int64_t first_row, n_rows;
    const Activations *x;
    std::int64_t group;
    Bf16 *out; // [n_tokens] rows, stride_out apart; null where the f32 sums are wanted
    float *out_f32;
    std::int64_t stride_out;
};

// Bytes of one token's unpacked index queries.
inline std::size_t query_bytes(const Config &c) {
    const std::int64_t blocks = c.index_q_width() / kIndexKeyBlock;
    const std::int64_t n = c.index_q_width() + 8 * blocks + 4 * std::int64_t{c.index_n_heads};
    return static_cast<std::size_t>((n + 63) / 64 * 64);
}

class CpuStages final : public ReferenceStages {
public:
    explicit CpuStages(const StageOptions &options);

    void prepare(const Config &config, const StageSizes &sizes) override;
    std::size_t n_bytes() const noexcept override;
    std::size_t needed_bytes(const Config &config, const StageSizes &sizes) const noexcept override;

    void project(const ProjectArgs &args) override;
    void compress(const CompressArgs &args) override;
    void index_query(const IndexQueryArgs &args) override;
    void select(const SelectArgs &args) override;
    void attend(const AttendArgs &args) override;
    void output(const OutputArgs &args) override;

private:
    enum Buffer {
        kX0,        // activations; two forms of x may be wanted at once
        kX1,        //
        kExponents, // of both
        kAngles,    // f32 [tile][2][pairs]: cosines, sines
        kRows,      // bf16 rows of a tile: projections on their way to where they belong
        kSums,      // f32 [tile][2][head_dim]: the compressor's products
        kScratch,   // each slot's own
        kQueries,   // index queries of kScoreTokens tokens, unpacked
        kScores,    // bf16 [kScoreTokens][n_groups]
        kBest,      // bf16 [blocks]: the best score of each
        kStretches, // i16 [kScoreTokens][stretches]: scratch of the selection
        kRanking,   // torch's rule: f32 [n_groups], Scored [n_groups]
        kBufferCount
    };
    using Lengths = std::array<std::size_t, kBufferCount>;

    // A slot's scratch memory for attention.
    struct AttendScratch {
        float *rows;    // [n_rows][stride_rows]
        float *q;       // [heads][head_dim], heads a multiple of 4
        float *weights; // [heads][stride_weights]
        float *sums;    // [heads][head_dim]
        std::int64_t stride_rows, stride_weights;
    };
    CpuStages(const StageOptions &options, const cpu::Target &target);
    Lengths lengths(const Config &config, const StageSizes &sizes) const noexcept;
    template <typename T> T *get(Buffer buffer) const { return blocks_[buffer].as<T>(); }
    std::uint8_t *scratch(int slot) const { return get<std::uint8_t>(kScratch) + std::size_t(slot) * scratch_bytes_; }

    Form form_for(const Matrix &matrix) const;
    // Whether activations of one serve the other.
    bool same_form(const Matrix &a, const Matrix &b) const { return form_for(a) == form_for(b); }
    // Rows of `n_groups` times k values, `stride` apart, into the form that a matrix multiplies.
    Activations take_activations(Buffer buffer, const Matrix &matrix, const Bf16 *x, std::int64_t stride, int n_tokens,
                                 int n_groups = 1);
    void put_floats(const Activations &a, int slot, const Bf16 *source, std::int64_t row) const;
    void put_pairs(const Activations &a, int slot, const Bf16 *source, std::int64_t stride, std::int64_t first_row,
                   int n_rows) const;
    // The scales of a row's blocks; returns the exponent that takes its largest block to a scale of 1.
    int fp8_scales(const Bf16 *source, std::int64_t k, std::uint8_t *scales) const;
    void multiply(const Product *products, int n_products);
    int most_rows(const Product &product) const; // that a kernel takes at once
    void multiply_rows(const Product &product, std::int64_t at, int n_rows, int slot) const;

    void make_angles(const LayerView &layer, const Tile &tile, bool inverse);
    // `n_heads` heads of each token of the tile, by the angles made before.
    void rotate_heads(Bf16 *rows, int n_tokens, int n_heads, int head_dim, int n_pairs);
    const float *angles_of(int i, int n_pairs) const { return get<float>(kAngles) + std::int64_t{i} * 2 * n_pairs; }

    AttendScratch attend_scratch(const Config &config, int slot) const;
    std::int64_t rows_in_reach(const AttendArgs &args, int token) const;
    void unpack_rows(const AttendArgs &args, int token, std::int64_t from, std::int64_t to, float *rows,
                     std::int64_t stride) const;
    void attend_heads(const AttendArgs &args, int token, int first_head, int last_head, const float *rows,
                      std::int64_t n_rows, const AttendScratch &scratch) const;

    cpu::IndexQuery query_at(const Config &config, int i) const;
    std::uint16_t *scores_of(int i) const { return get<std::uint16_t>(kScores) + i * n_group_room_; }
    void unpack_query(const SelectArgs &args, int token, int i) const;
    // Tokens [first, first + n) of one span: queries 0 .. n - 1.
    void score_tokens(const SelectArgs &args, int first, int n);
    void score_keys(const SelectArgs &args, int first, int n, std::int64_t from, std::int64_t to, int slot) const;
    void choose(const SelectArgs &args, int token, int i);
    void keep_blocks(const SelectArgs &args, int token, const std::uint16_t *scores, std::int64_t n_visible,
                     std::int16_t *stretches) const;
    std::int16_t *stretches_at(int i) const {
        return get<std::int16_t>(kStretches) + i * cpu::stretches_of(n_group_room_);
    }

    const cpu::ActivationKernels &activations_;
    const cpu::DotKernels &dot_;
    const cpu::Q2KKernels &q2_k_;
    const cpu::PairKernels *pairs_; // null where the target has none
    const cpu::AttendKernels &attend_;
    const cpu::ScoreKernels &score_;
    cpu::Pool pool_;
    std::array<Block, kBufferCount> blocks_;
    std::size_t scratch_bytes_ = 0; // of a slot
    std::int64_t n_group_room_ = 0; // groups that kScores has room for, per token
    std::int64_t n_row_room_ = 0;   // rows that one token may attend to
};

std::unique_ptr<Stages> create_cpu_stages(const StageOptions &options);

// Tokens of a tile for the target that contexts take now.
std::int32_t cpu_tile() noexcept;

} // namespace ds41
