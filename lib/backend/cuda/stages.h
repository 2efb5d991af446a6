// The CUDA backend: every stage as launches on one stream, through the device interface. Between prepare() and the next
// one nothing is allocated, and nothing waits for the device but the torch rule, which selects on the host, and taps.
#pragma once

#include "backend/cuda/plugin.h"
#include "backend/stages.h"
#include "common/step.h"
#include "linear/params.h"
#include "rows/params.h"

#include <array>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace ds41 {

class CudaStages final : public Stages {
public:
    CudaStages(const DeviceFunctions &device, const Memory &memory, const StageOptions &options);
    ~CudaStages() override;
    CudaStages(const CudaStages &) = delete;
    CudaStages &operator=(const CudaStages &) = delete;

    void prepare(const Config &config, const StageSizes &sizes) override;
    std::size_t n_bytes() const noexcept override;
    std::size_t needed_bytes(const Config &config, const StageSizes &sizes) const noexcept override;
    bool wants_upload() const noexcept override { return true; }
    void upload_step(const StepUpload &upload) override;
    int n_slots() const noexcept override { return layout_.n_token_slots; }
    void synchronize() override;
    bool is_capturing() override;
    void begin_capture(bool by_caller) override;
    std::unique_ptr<StageGraph> end_capture() override;
    void abandon_capture() noexcept override;
    void launch(const StageGraph &graph) override;
    void enter(int layer, const char *stage) override;
    void leave(int layer, const char *stage) override;

    void project(const ProjectArgs &args) override;
    void compress(const CompressArgs &args) override;
    void index_query(const IndexQueryArgs &args) override;
    void select(const SelectArgs &args) override;
    void attend(const AttendArgs &args) override;
    void output(const OutputArgs &args) override;
    void commit_window(const LayerView &layer, const std::uint8_t *window_new) override;

private:
    enum Buffer {
        kKv,          // bf16 [tile, head_dim]: window rows before their norm
        kLatent,      // bf16 [tile, head_dim]
        kProducts,    // f32 [tile, 2, head_dim]: kv and gate products of the compressor
        kKey,         // bf16 [tile, index_head_dim]: index keys before their norm
        kIndexRaw,    // bf16 [tile, index_n_heads, index_head_dim]: index queries before their rotation
        kScores,      // u16 [score tile, stride]: sort keys
        kTorchScores, // f32 [score tile, stride], torch rule
        kPartials,    // of the attention's chunks
        kRotated,     // bf16 [tile, n_heads, head_dim]: o, rotated back
        kGrouped,     // bf16 [tile, o_groups, o_lora_rank]
        kQuantised,   // of every Input, its rows in the form that quantised weights take
        kBufferCount
    };
    using Sizes = std::array<std::size_t, kBufferCount>;
    Sizes buffer_bytes(const Config &config, const StageSizes &sizes) const noexcept;

    // What one launch touches.
    class References {
    public:
        References(bool wanted, const kernels::SpanRows *spans, int n_spans)
            : wanted_(wanted), spans_(spans), n_spans_(n_spans) {}
        template <typename T> References &read(const T *data, std::int64_t n) {
            return add(data, n, DeviceAccess::kRead);
        }
        template <typename T> References &write(const T *data, std::int64_t n) {
            return add(data, n, DeviceAccess::kWrite);
        }
        References &bytes(const void *data, std::size_t n_bytes, DeviceAccess access);
        References &quantised(const kernels::QuantisedRows &rows, int n, DeviceAccess access);
        // What the step's spans point to, in the layer that the references are of.
        References &window(const Config &config, DeviceAccess access);
        References &compressed(const Config &config, int ratio, DeviceAccess access);
        References &index_keys(const Config &config, int ratio, DeviceAccess access);
        References &group_state(const Config &config, int ratio, DeviceAccess access);
        const std::vector<DeviceReference> &list() const { return list_; }

    private:
        template <typename T> References &add(const T *data, std::int64_t n, DeviceAccess access) {
            return bytes(data, static_cast<std::size_t>(n) * sizeof(T), access);
        }
        References &rows(DeviceRows rows, std::size_t n_bytes, int per_row, DeviceAccess access);
        bool wanted_;
        const kernels::SpanRows *spans_;
        int n_spans_;
        std::vector<DeviceReference> list_;
    };
    References references() const { return References(device_.wants_references != 0, nullptr, 0); }
    // Tokens and spans of the step, which most operations read.
    References step_references(const LayerView &layer) const;

    template <typename P> void launch(DeviceOp op, const P &params, const References &references) {
        check_device(device_, device_.launch(stream_, op, &params, references.list().data(), references.list().size()),
                     "launching");
    }

    // What products read. Of each, the tile's rows stand quantised in one form at a time, made by the operation that
    // makes the rows where there is one.
    enum class Input { kX, kQr, kLatent, kO, kGrouped, kCount };
    static kernels::QuantisedForm form_of(const Matrix &weights);
    static std::size_t quantised_bytes(const Config &config, Input input, std::size_t n_tile) noexcept;
    // Where rows of an input go in a form; they stand there from the next launch on.
    kernels::QuantisedRows quantised(Input input, kernels::QuantisedForm form, std::int64_t width);
    // One product of n rows of x.
    struct Product {
        Input input = Input::kX;
        const Matrix *weights = nullptr;
        const Bf16 *x = nullptr;
        std::int64_t stride_x = 0;
        void *out = nullptr;
        std::int64_t stride_out = 0;
        int n_slices = 1;
        kernels::LinearOutput output = kernels::LinearOutput::kBf16;
        const float *angles = nullptr; // kRotated
        int head_dim = 0;
        float scale = 0.0f;            // kScaled
        kernels::QuantisedRows copy{}; // of the result
    };
    void products(int n, std::initializer_list<Product> list);
    // Whether tensor cores and cuBLAS serve the step: prefills that the other kernels would make wait. Never a decode
    // step: a token's bits must not depend on the batch that it rides in.
    bool has_many_rows() const { return layout_.is_prefill && layout_.n_tokens > kernels::kMaxLinearRows; }
    void linear_products(int first, int n, const Product *list, std::size_t n_list);
    // x of a product, where nobody has made the form that it takes.
    void quantise(int n, const Product &product);
    void gemm_product(int n, const Product &product);
    void rotate_heads(int n, const Product &product);
    // Jobs of a tile's rows; `more` is what they read and write beside the step.
    void rows(const LayerView &layer, const Tile &tile, std::span<const kernels::RowJob> jobs, References more);
    void rows(const LayerView &layer, const Tile &tile, std::initializer_list<kernels::RowJob> jobs, References more) {
        rows(layer, tile, std::span<const kernels::RowJob>(jobs.begin(), jobs.size()), std::move(more));
    }

    void score(const SelectArgs &args, int first, int n, float *tap, std::int64_t stride_tap);
    void select_tile(const SelectArgs &args, int first, int n);
    void select_on_host(const SelectArgs &args, int first, int n);

    template <typename T> T *buffer(Buffer which) const { return buffers_[which]->as<T>(); }
    const kernels::Token *tokens() const { return place_->block.as<kernels::Token>(); }
    const kernels::SpanRows *spans(const LayerView &layer) const;
    // Cosines and sines of all tokens of the step: at their position, or at that of the group they complete.
    const float *angles(const LayerView &layer) const;
    const float *group_angles(const LayerView &layer) const;
    const float *angle_table(int table) const;
    std::int64_t angle_count() const { return std::int64_t{2} * layout_.n_pairs; } // of a token

    // Of the tile that runs.
    void begin_tile(const Config &config, const Tile &tile);
    std::array<kernels::QuantisedForm, static_cast<std::size_t>(Input::kCount)> made_{};
    std::array<unsigned char *, static_cast<std::size_t>(Input::kCount)> made_at_{};
    std::int64_t tile_tokens_ = 0;
    bool has_committed_ = false; // its window rows are in the rings already

    const DeviceFunctions &device_;
    const Memory &memory_;
    DeviceStream stream_ = nullptr;
    bool owns_stream_ = false;
    int attention_split_ = 0;
    bool check_stages_ = false;

    using Buffers = std::array<std::shared_ptr<const Block>, kBufferCount>; // shared with graphs; each is there
    struct Graph;
    Buffers buffers_;

    // Where the parts of an uploaded step stand: tokens, tables of angles, then spans by layer. Slots behind the last
    // token and span hold such as are not there.
    struct Layout {
        int n_tokens = 0, n_spans = 0, n_pairs = 0;
        int n_token_slots = 0, n_span_slots = 0;
        bool is_prefill = false;
        std::int64_t score_stride = 0;                        // of a token's sort keys
        int score_tile = 0;                                   // tokens that are scored at once
        std::size_t angles_at = 0, spans_at = 0, n_bytes = 0; // in bytes
        std::vector<int> slot_of_layer;                       // in the order of the uploaded layers
    };
    struct Staging {
        void *pinned = nullptr;
        std::size_t n_bytes = 0;
        DeviceEvent event = nullptr;
        bool in_flight = false;
    };
    static constexpr std::size_t kStagings = 4; // uploads that may be under way before one is waited for
    // Where steps of so many slots stand, and what stands there. Those of decode steps never move: graphs bake them.
    struct Place {
        Block block;
        std::vector<unsigned char> uploaded;
    };
    Layout layout_of(const StepUpload &upload) const;
    Place &place_of(const StepUpload &upload, const Layout &layout);
    // The step's bytes into next_.
    void write_step(const StepUpload &upload, const Layout &layout, const Place &place);
    void write_pages(const StepUpload &upload);
    void write_angles(const StepUpload &upload, const Layout &layout, float *out) const;
    // Pinned memory for so many bytes that no upload under way reads.
    Staging &free_staging(std::size_t n_bytes);

    std::vector<unsigned char> next_;
    Layout layout_;
    Place *place_ = nullptr; // of the step that was uploaded last
    Place prefill_;
    std::array<Place, 31> decode_; // by the logarithm of their slots
    enum class Capture { kNone, kOurs, kCallers } capture_ = Capture::kNone;
    std::thread::id capturing_thread_;
    void leave_capture() noexcept;
    std::array<Staging, kStagings> stagings_;
    std::size_t next_staging_ = 0;
    std::vector<int> group_ratios_; // of the configuration: ratios above 1, ascending

    // Torch rule.
    std::vector<float> host_scores_;
    std::vector<unsigned char> ranking_;
    std::vector<std::int32_t> host_groups_, host_blocks_;
};

std::unique_ptr<Stages> create_cuda_stages(const StageOptions &options);
std::unique_ptr<Stages> create_sim_stages(const StageOptions &options);

} // namespace ds41
