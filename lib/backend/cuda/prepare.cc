// Streams and scratch memory of the CUDA backend, and the upload of a step.
#include "attend/params.h"
#include "backend/cuda/stages.h"
#include "error.h"
#include "numeric/q8.h"
#include "numeric/rows.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ds41 {

namespace {

// Sort keys of as many tokens as fit are made at once: a decode step of 16 at 1M positions, prefill tiles below 64K.
constexpr std::int64_t kScoreBytes = std::int64_t{32} << 20;

std::int64_t score_stride(const Config &c, const StageSizes &sizes) {
    constexpr std::int64_t kVector = 8; // keys that one load takes
    return (sizes.n_groups + c.candidate_block_size + kVector - 1) / kVector * kVector;
}

int score_tile(const Config &c, const StageSizes &sizes) {
    // Without groups there is no row, and nothing is scored.
    const std::int64_t row = std::max<std::int64_t>(1, score_stride(c, sizes) * std::int64_t{sizeof(std::uint16_t)});
    return static_cast<int>(
        std::clamp<std::int64_t>(kScoreBytes / row, 1, std::max<std::int64_t>(1, sizes.n_tile_tokens)));
}

} // namespace

CudaStages::CudaStages(const DeviceFunctions &device, const Memory &memory, const StageOptions &options)
    : device_(device), memory_(memory), stream_(options.stream), owns_stream_(options.stream == nullptr),
      check_stages_(std::getenv("DS41_CHECK_STAGES") != nullptr) {
    if (owns_stream_) check_device(device_, device_.create_stream(&stream_), "creating a stream");
}

CudaStages::~CudaStages() {
    if (stream_) device_.synchronize(stream_); // what is enqueued reads the buffers that go
    for (Staging &staging : stagings_) {
        if (staging.event) device_.destroy_event(staging.event);
        if (staging.pinned) device_.release_pinned(staging.pinned);
    }
    if (owns_stream_ && stream_) device_.destroy_stream(stream_);
}

CudaStages::Sizes CudaStages::buffer_bytes(const Config &c, const StageSizes &sizes) noexcept {
    const auto tile = static_cast<std::size_t>(sizes.n_tile_tokens);
    const auto bf16 = [&](std::int64_t width) { return tile * static_cast<std::size_t>(width) * sizeof(Bf16); };
    bool pools = false;
    for (int layer = 0; layer < c.n_layers_total(); ++layer) pools = pools || c.role(layer).has_group_state();
    const bool indexed = sizes.n_groups > 0 || c.n_kv_source_layers > 0;

    Sizes n{};
    n[kKv] = bf16(c.head_dim);
    n[kLatent] = c.n_kv_source_layers > 0 ? bf16(c.head_dim) : 0;
    n[kProducts] = pools ? tile * 2 * static_cast<std::size_t>(c.head_dim) * sizeof(float) : 0;
    n[kKey] = indexed ? bf16(c.index_head_dim) : 0;
    n[kIndexRaw] = indexed ? bf16(c.index_q_width()) : 0;
    if (sizes.n_groups > 0) {
        const std::size_t scores =
            static_cast<std::size_t>(score_tile(c, sizes)) * static_cast<std::size_t>(score_stride(c, sizes));
        n[kScores] = scores * sizeof(std::uint16_t);
        if (sizes.topk_rule == DS41_TOPK_TORCH_CPU) n[kTorchScores] = scores * sizeof(float);
    }
    kernels::AttendParams attend{};
    attend.n = static_cast<int>(sizes.n_tile_tokens);
    attend.window_size = c.window_size;
    attend.n_heads = c.n_heads;
    attend.head_dim = c.head_dim;
    const std::int32_t any = -1; // looked at for null only
    attend.groups = sizes.n_group_slots > 0 ? &any : nullptr;
    attend.n_group_slots = sizes.n_group_slots;
    // Fewer tokens are shared among more blocks: the largest need is not at the largest tile.
    for (; attend.n >= 1; --attend.n) n[kPartials] = std::max(n[kPartials], attend_workspace_bytes(attend));
    n[kRotated] = bf16(c.q_width());
    n[kGrouped] = bf16(c.o_lora_width());
    // Which projections are Q2_K is the weights' matter: room for the widest input of any.
    const auto widest = static_cast<std::size_t>(
        std::max({std::int64_t{c.dim}, std::int64_t{c.q_lora_rank}, c.q_width(), c.o_lora_width()}));
    n[kQ8Codes] = tile * widest;
    n[kQ8Scales] = tile * (widest / kQ8Block) * sizeof(float);
    return n;
}

void CudaStages::prepare(const Config &config, const StageSizes &sizes) {
    if (group_ratios_.empty()) {
        std::vector<int> ratios;
        for (int layer = 0; layer < config.n_layers_total(); ++layer)
            if (config.role(layer).has_group_state()) ratios.push_back(config.role(layer).ratio);
        std::sort(ratios.begin(), ratios.end());
        ratios.erase(std::unique(ratios.begin(), ratios.end()), ratios.end());
        group_ratios_ = std::move(ratios);
    }
    const Sizes wanted = buffer_bytes(config, sizes);
    std::array<Block, kBufferCount> grown;
    for (std::size_t i = 0; i < kBufferCount; ++i)
        if (wanted[i] > buffers_[i].n_bytes()) grown[i] = Block(memory_, wanted[i]);
    for (std::size_t i = 0; i < kBufferCount; ++i)
        if (grown[i].n_bytes() > 0) buffers_[i] = std::move(grown[i]);
}

std::size_t CudaStages::n_bytes() const noexcept {
    std::size_t sum = 0; // the uploaded step is bookkeeping: some hundred bytes a token
    for (const Block &block : buffers_) sum += block.n_bytes();
    return sum;
}

std::size_t CudaStages::needed_bytes(const Config &config, const StageSizes &sizes) const noexcept {
    std::size_t sum = 0;
    for (const std::size_t n : buffer_bytes(config, sizes)) sum += n;
    return sum;
}

void CudaStages::synchronize() {
    check_device(device_, device_.synchronize(stream_), "waiting for the stream");
}

void CudaStages::enter(int layer, const char *stage) {
    char name[64];
    std::snprintf(name, sizeof name, "layer %d %s", layer, stage);
    device_.push_range(name);
}

void CudaStages::leave(int layer, const char *stage) {
    device_.pop_range();
    if (!check_stages_) return;
    char doing[64];
    std::snprintf(doing, sizeof doing, "stage %s of layer %d", stage, layer);
    check_device(device_, device_.synchronize(stream_), doing);
}

CudaStages::References &CudaStages::References::bytes(const void *data, std::size_t n_bytes, DeviceAccess access) {
    if (wanted_ && n_bytes > 0) list_.push_back({data, n_bytes, access, nullptr, 0});
    return *this;
}

CudaStages::References &CudaStages::References::rows(const RowsView &rows, DeviceAccess access) {
    if (!wanted_ || rows.n_rows == 0) return *this;
    const auto n_full = static_cast<std::size_t>(rows.n_rows / kPageRows);
    const auto n_last = static_cast<std::size_t>(rows.n_rows % kPageRows);
    read(rows.device_pages, static_cast<std::int64_t>(n_full + (n_last > 0)));
    if (n_full > 0) list_.push_back({nullptr, kPageRows * rows.row_bytes, access, rows.pages, n_full});
    if (n_last > 0) list_.push_back({nullptr, n_last * rows.row_bytes, access, rows.pages + n_full, 1});
    return *this;
}

CudaStages::References CudaStages::step_references(const LayerView &layer) const {
    return references().read(tokens(), layout_.n_tokens).read(spans(layer), layout_.n_spans);
}

const kernels::SpanRows *CudaStages::spans(const LayerView &layer) const {
    const auto slot = static_cast<std::size_t>(layout_.slot_of_layer[static_cast<std::size_t>(layer.layer)]);
    return reinterpret_cast<const kernels::SpanRows *>(step_.as<unsigned char>() + layout_.spans_at) +
           slot * static_cast<std::size_t>(layout_.n_spans);
}

const float *CudaStages::angle_table(int table) const {
    return reinterpret_cast<const float *>(step_.as<unsigned char>() + layout_.angles_at) +
           std::int64_t{table} * layout_.n_tokens * angle_count();
}

const float *CudaStages::angles(const LayerView &layer) const {
    return angle_table(layer.role->ratio > 0 ? 1 : 0);
}

const float *CudaStages::group_angles(const LayerView &layer) const {
    if (layer.role->ratio <= 1) return angle_table(1); // a group of one token stands where the token does
    const auto found = std::find(group_ratios_.begin(), group_ratios_.end(), layer.role->ratio);
    return angle_table(2 + static_cast<int>(found - group_ratios_.begin()));
}

CudaStages::Layout CudaStages::layout_of(const StepUpload &upload) const {
    const Config &c = *upload.config;
    Layout layout;
    layout.n_tokens = upload.n_tokens;
    layout.n_spans = upload.n_spans;
    layout.n_pairs = c.rope_head_dim / 2;
    layout.is_prefill = upload.is_prefill;
    layout.score_stride = score_stride(c, *upload.sizes);
    layout.score_tile = score_tile(c, *upload.sizes);
    layout.slot_of_layer.assign(static_cast<std::size_t>(c.n_layers_total()), 0);
    for (int i = 0; i < upload.n_layers; ++i) layout.slot_of_layer[static_cast<std::size_t>(upload.layers[i])] = i;

    const auto n_tokens = static_cast<std::size_t>(layout.n_tokens);
    const std::size_t token_angles = 2 * static_cast<std::size_t>(layout.n_pairs) * sizeof(float);
    layout.angles_at = n_tokens * sizeof(kernels::Token);
    const std::size_t angles_end = layout.angles_at + (2 + group_ratios_.size()) * n_tokens * token_angles;
    layout.spans_at = (angles_end + 15) / 16 * 16;
    layout.n_bytes = layout.spans_at + static_cast<std::size_t>(upload.n_layers) *
                                           static_cast<std::size_t>(layout.n_spans) * sizeof(kernels::SpanRows);
    return layout;
}

void CudaStages::write_angles(const StepUpload &upload, const Layout &layout, float *out) const {
    const auto write = [&](const RopeTable &rope, std::int64_t pos) {
        for (int pair = 0; pair < layout.n_pairs; ++pair, out += 2) rope.angle(pos, pair, out[0], out[1]);
    };
    for (const RopeTable *rope : {upload.rope_plain, upload.rope_compressed})
        for (int i = 0; i < layout.n_tokens; ++i) write(*rope, upload.tokens[i].pos);
    for (const int ratio : group_ratios_)
        for (int i = 0; i < layout.n_tokens; ++i) {
            const std::int64_t pos = upload.tokens[i].pos;
            if ((pos + 1) % ratio == 0)
                write(*upload.rope_compressed, pos + 1 - ratio);
            else
                out = std::fill_n(out, 2 * layout.n_pairs, 0.0f); // the token completes no group
        }
}

void CudaStages::write_step(const StepUpload &upload, const Layout &layout) {
    next_.assign(layout.n_bytes, 0);
    auto *const token = reinterpret_cast<kernels::Token *>(next_.data());
    for (int i = 0; i < layout.n_tokens; ++i) token[i] = {upload.tokens[i].span, 0, upload.tokens[i].pos};
    // Angles are dear on the host, and the same for all layers of a step.
    const bool same_tokens = layout_.n_tokens == layout.n_tokens && uploaded_.size() >= layout.spans_at &&
                             std::memcmp(uploaded_.data(), next_.data(), layout.angles_at) == 0;
    if (same_tokens)
        std::memcpy(next_.data() + layout.angles_at, uploaded_.data() + layout.angles_at,
                    layout.spans_at - layout.angles_at);
    else
        write_angles(upload, layout, reinterpret_cast<float *>(next_.data() + layout.angles_at));
    auto *rows = reinterpret_cast<kernels::SpanRows *>(next_.data() + layout.spans_at);
    for (int i = 0; i < upload.n_layers * layout.n_spans; ++i) {
        const SpanView &view = upload.views[i];
        rows[i] = {view.first_token,
                   view.n_tokens,
                   view.start_pos,
                   view.window.device_pages,
                   view.compressed.device_pages,
                   view.index_keys.device_pages,
                   view.group_state};
    }
}

CudaStages::Staging &CudaStages::free_staging(std::size_t n_bytes) {
    Staging &staging = stagings_[next_staging_++ % kStagings];
    if (!staging.event) check_device(device_, device_.create_event(&staging.event), "creating an event");
    if (staging.in_flight) {
        check_device(device_, device_.synchronize_event(staging.event), "waiting for an upload");
        staging.in_flight = false;
    }
    if (staging.n_bytes < n_bytes) {
        void *pinned = nullptr;
        check_device(device_, device_.allocate_pinned(&pinned, 2 * n_bytes), "allocating pinned memory");
        if (staging.pinned) device_.release_pinned(staging.pinned);
        staging.pinned = pinned;
        staging.n_bytes = 2 * n_bytes;
    }
    return staging;
}

void CudaStages::upload_step(const StepUpload &upload) {
    // Memory first: until all of it is there, the step that was uploaded before stays in use.
    Layout layout = layout_of(upload);
    write_step(upload, layout);
    const std::size_t n_bytes = layout.n_bytes;
    uploaded_.reserve(n_bytes);
    Block grown;
    if (n_bytes > step_.n_bytes()) grown = Block(memory_, n_bytes + n_bytes / 2);
    std::size_t begin = 0, end = n_bytes; // of what changed
    if (grown.n_bytes() == 0 && uploaded_.size() >= n_bytes) {
        begin = static_cast<std::size_t>(std::mismatch(next_.begin(), next_.end(), uploaded_.begin()).first -
                                         next_.begin());
        while (end > begin && next_[end - 1] == uploaded_[end - 1]) --end;
    }
    Staging *const staging = begin < end ? &free_staging(end - begin) : nullptr;

    layout_ = std::move(layout);
    if (grown.n_bytes() > 0) {
        step_ = std::move(grown);
        uploaded_.clear();
    }
    if (uploaded_.size() < n_bytes) uploaded_.resize(n_bytes);
    if (!staging) return;
    std::memcpy(uploaded_.data() + begin, next_.data() + begin, end - begin);
    std::memcpy(staging->pinned, next_.data() + begin, end - begin);
    check_device(device_, device_.upload(stream_, step_.as<unsigned char>() + begin, staging->pinned, end - begin),
                 "uploading a step");
    check_device(device_, device_.record_event(staging->event, stream_), "recording an event");
    staging->in_flight = true;
}

std::unique_ptr<Stages> create_cuda_stages(const StageOptions &options) {
    return std::make_unique<CudaStages>(*cuda_plugin().functions(), cuda_memory(), options);
}

std::unique_ptr<Stages> create_sim_stages(const StageOptions &options) {
    return std::make_unique<CudaStages>(*sim_plugin().functions(), sim_memory(), options);
}

} // namespace ds41
