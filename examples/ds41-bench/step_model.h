// What mode `step` measures: layers of DeepSeek-V4.1-Flash's sizes with made-up weights, and sequences that stand at
// the end of a long context. Nothing prefills them, which would take a simulator days: their pages are filled with rows
// of a plausible form, through the insides of the library.
#pragma once

#include "memory.h"

#include "backend/memory.h"
#include "forward/context.h"
#include "model/model.h"
#include "sequence/sequence.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace bench {

/// Of a name that --formats takes.
ds41_dtype dtype_of_format(const std::string &format);

/// The configuration of DeepSeek-V4.1-Flash, its sizes divided by `scale` as far as every weight format allows.
ds41_config step_config(int32_t scale);

/// "window only", "ratio 2, source" and so on: layers of one kind cost the same.
std::string kind_of(const ds41::LayerRole &role);
/// The first layer of each kind.
std::vector<int> layers_of_each_kind(const ds41::Config &config);
/// Layers that have to run in a step before this one, ascending.
std::vector<int> layers_before(const ds41::Config &config, int layer);

/// Weights of a format for any layer, in one piece of memory that layers share: of a layer, no two matrices overlap.
class StepWeights {
public:
    StepWeights(const ds41::Config &config, const ds41::Memory &memory, ds41_dtype format);

    ds41::LayerWeights of(int layer) const;
    /// Matrices, their scales and the vectors.
    uint64_t bytes_of(int layer) const;
    /// Where the matrices of a layer lie that are in the format.
    std::span<const std::byte> matrices_of(int layer) const;

private:
    struct Place {
        size_t offset, n_bytes, n_scales;
        ds41_dtype dtype;
    };
    ds41_dtype dtype_of(int layer, size_t place) const;
    std::vector<Place> places_of(int layer) const;

    const ds41::Config &config_;
    const ds41::Memory &memory_;
    ds41_dtype format_;
    std::optional<Arena> pages_; ///< For backends that compute on the CPU.
    ds41::Block block_;          ///< For others.
    ds41::Block float_block_;    ///< F32 matrices of the other formats.
    const std::byte *data_ = nullptr;
    std::vector<uint8_t> scales_;
    std::vector<float> vector_;
};

/// A layer of a step, with its weights.
struct StepLayer {
    int layer;
    const StepWeights *weights; ///< Not owned. Layers may share them.
};

/// Layers to measure, those they need, and sequences of `context` tokens of which the last is to come.
class StepRig {
public:
    StepRig(const ds41_config &config, const std::string &backend, int threads);
    StepRig(const StepRig &) = delete;
    StepRig &operator=(const StepRig &) = delete;
    ~StepRig();

    const ds41::Model &model() const { return *model_; }
    void set_up(const std::vector<StepLayer> &before, const std::vector<StepLayer> &measured, int64_t context,
                int32_t n_rows);

    void prep();          ///< For the last token, wherever the sequences stand.
    void prep_previous(); ///< For the one before it, so that the next prep() finds another step in place.
    void prep_next();     ///< For the last few tokens in turn.
    void run_before();
    void run(); ///< The layers to measure.
    void synchronize() { ctx_->synchronize(); }

    bool has_graphs() const { return model_->backend().has_graphs; }
    void capture(); ///< After prep().
    void launch();  ///< After prep() and run_before().

private:
    void prep_at(int64_t pos);
    void body(int layer);
    void fill(ds41::Sequence &seq, int layer, uint64_t seed) const;

    std::shared_ptr<ds41::Model> model_;
    std::unique_ptr<ds41::Context> ctx_;
    std::vector<std::shared_ptr<ds41::Sequence>> seqs_;
    std::unique_ptr<ds41::Graph> graph_;
    ds41::Block x_, out_;
    std::vector<int> before_, measured_;
    int64_t context_ = 0, n_steps_ = 0;
    int32_t n_rows_ = 0;
    int threads_;
};

} // namespace bench
