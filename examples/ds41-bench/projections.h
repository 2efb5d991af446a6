// What modes `proj` and `prefill` compute: tokens that go through the stages `project` and `output`, and the products
// in them, bare.
#pragma once

#include "backend/backend.h"
#include "model/config.h"
#include "model/rope_tables.h"
#include "model/weights.h"
#include "numeric/bf16.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace bench {

/// Tokens of one sequence with what goes into and comes out of the two stages.
class Tokens {
public:
    static constexpr int kLayer = 0; ///< Nothing but the window: all layers have these five matrices.

    Tokens(const ds41::Config &config, int32_t n);
    /// The one token that stands at a row of others.
    static Tokens one_of(const Tokens &all, int32_t row);

    /// Stages with room for them.
    std::unique_ptr<ds41::Stages> stages(const ds41::Backend &backend, int threads);

    /// All at 0, where a rotation changes nothing: what others compute can then be compared. So they begin.
    void stand_at_zero();
    void stand_at(int64_t first);
    void run(ds41::Stages &stages, const ds41::LayerWeights &weights);

    const int32_t n;
    std::vector<ds41::Bf16> x, o, qr, q, out; ///< [n] rows each; o is rotated in place.
    std::vector<float> window_values() const; ///< [n, head_dim]: what was packed.

private:
    const ds41::Config &config_;
    ds41::RopeTable rope_;
    ds41::SpanView span_{};
    std::vector<ds41::TokenView> tokens_;
    std::vector<uint8_t> window_; ///< Packed rows.
    int32_t n_tile_ = 0;
};

/// One of the products, by its matrix and, of wo_a, its group.
struct Product {
    enum Input { kX, kQr, kO, kGrouped } input;
    const ds41::Matrix ds41::LayerWeights::*matrix;
    int64_t group, rows, cols;
    int turn; ///< Products of the same turn do not need each other.

    /// Of its rows the first.
    const std::byte *data(const ds41::LayerWeights &weights) const;
};

/// Inputs and outputs of the bare products, each [n, cols] and [n, rows] by itself. Between products stand norms and
/// rotations, which only ours does: the others get the inputs of each from the start.
class BareProducts {
public:
    BareProducts(const ds41::Config &config, const Tokens &ours);

    /// What wo_a gave, in bf16, as wo_b's input.
    void hand_on_groups();
    /// Throws unless the outputs are those of tokens that stand at 0.
    void must_match(const std::string &who, const Tokens &ours) const;

    uint64_t n_values() const; ///< Of all matrices.

    const std::vector<Product> products;
    std::vector<std::vector<ds41::Bf16>> inputs; ///< By product, as are the outputs.
    std::vector<std::vector<float>> outputs;

private:
    std::vector<float> normed(std::span<const float> values, int64_t width) const;

    const ds41::Config &config_;
    const int64_t n_;
};

/// Of window rows. A value next to a border between codes may take the other one: of values up to 4 a distance of 2^-2.
constexpr double kMostOfE4m3 = 0.6;

} // namespace bench
