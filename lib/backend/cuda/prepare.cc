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
    const std::int64_t row = score_stride(c, sizes) * std::int64_t{sizeof(std::uint16_t)};
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
    const Sizes wanted = buffer_bytes(config, sizes);
    std::array<Block, kBufferCount> grown;
    for (std::size_t i = 0; i < kBufferCount; ++i)
        if (wanted[i] > buffers_[i].n_bytes()) grown[i] = Block(memory_, wanted[i]);
    for (std::size_t i = 0; i < kBufferCount; ++i)
        if (grown[i].n_bytes() > 0) buffers_[i] = std::move(grown[i]);
    if (sizes.n_groups > 0) {
        score_stride_ = score_stride(config, sizes);
        score_tile_ = score_tile(config, sizes);
    }
    if (sizes.topk_rule == DS41_TOPK_TORCH_CPU) {
        const auto n = static_cast<std::size_t>(std::max<std::int64_t>(sizes.n_groups, 1));
        host_scores_.resize(std::max(host_scores_.size(), n * static_cast<std::size_t>(std::max(score_tile_, 1))));
    }
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
    return references().read(tokens(), n_tokens_).read(spans(layer), n_spans_);
}

const kernels::SpanRows *CudaStages::spans(const LayerView &layer) const {
    const auto slot = static_cast<std::size_t>(slot_of_layer_[static_cast<std::size_t>(layer.layer)]);
    return reinterpret_cast<const kernels::SpanRows *>(step_.as<unsigned char>() + spans_at_) +
           slot * static_cast<std::size_t>(n_spans_);
}

const float *CudaStages::angle_table(int table) const {
    return reinterpret_cast<const float *>(step_.as<unsigned char>() + angles_at_) +
           std::int64_t{table} * n_tokens_ * angle_count();
}

const float *CudaStages::angles(const LayerView &layer) const {
    return angle_table(layer.role->ratio > 0 ? 1 : 0);
}

const float *CudaStages::group_angles(const LayerView &layer) const {
    if (layer.role->ratio <= 1) return angle_table(1); // a group of one token stands where the token does
    const auto found = std::find(group_ratios_.begin(), group_ratios_.end(), layer.role->ratio);
    return angle_table(2 + static_cast<int>(found - group_ratios_.begin()));
}

void CudaStages::write_angles(const StepUpload &upload, float *out) const {
    const auto write = [&](const RopeTable &rope, std::int64_t pos) {
        for (int pair = 0; pair < n_pairs_; ++pair, out += 2) rope.angle(pos, pair, out[0], out[1]);
    };
    for (const RopeTable *rope : {upload.rope_plain, upload.rope_compressed})
        for (int i = 0; i < n_tokens_; ++i) write(*rope, upload.tokens[i].pos);
    for (const int ratio : group_ratios_)
        for (int i = 0; i < n_tokens_; ++i) {
            const std::int64_t pos = upload.tokens[i].pos;
            if ((pos + 1) % ratio == 0)
                write(*upload.rope_compressed, pos + 1 - ratio);
            else
                out = std::fill_n(out, angle_count(), 0.0f); // the token completes no group
        }
}

void CudaStages::upload_step(const StepUpload &upload) {
    const Config &c = *upload.config;
    const int n_tokens_before = n_tokens_;
    n_tokens_ = upload.n_tokens;
    is_prefill_ = upload.is_prefill;
    n_spans_ = upload.n_spans;
    n_pairs_ = c.rope_head_dim / 2;
    group_ratios_.clear();
    for (int layer = 0; layer < c.n_layers_total(); ++layer)
        if (c.role(layer).has_group_state()) group_ratios_.push_back(c.role(layer).ratio);
    std::sort(group_ratios_.begin(), group_ratios_.end());
    group_ratios_.erase(std::unique(group_ratios_.begin(), group_ratios_.end()), group_ratios_.end());
    slot_of_layer_.assign(static_cast<std::size_t>(c.n_layers_total()), 0);
    for (int i = 0; i < upload.n_layers; ++i) slot_of_layer_[static_cast<std::size_t>(upload.layers[i])] = i;

    const auto n_tokens = static_cast<std::size_t>(n_tokens_);
    const std::size_t angle_bytes =
        (2 + group_ratios_.size()) * n_tokens * static_cast<std::size_t>(angle_count()) * sizeof(float);
    angles_at_ = n_tokens * sizeof(kernels::Token);
    spans_at_ = (angles_at_ + angle_bytes + 15) / 16 * 16;
    const std::size_t n_bytes = spans_at_ + static_cast<std::size_t>(upload.n_layers) *
                                                static_cast<std::size_t>(n_spans_) * sizeof(kernels::SpanRows);
    next_.assign(n_bytes, 0);
    auto *const token = reinterpret_cast<kernels::Token *>(next_.data());
    for (std::size_t i = 0; i < n_tokens; ++i) token[i] = {upload.tokens[i].span, 0, upload.tokens[i].pos};
    // Angles are dear on the host, and the same for all layers of a step.
    const bool same_tokens = n_tokens_before == n_tokens_ && uploaded_.size() >= angles_at_ + angle_bytes &&
                             std::memcmp(uploaded_.data(), next_.data(), angles_at_) == 0;
    if (same_tokens)
        std::memcpy(next_.data() + angles_at_, uploaded_.data() + angles_at_, angle_bytes);
    else
        write_angles(upload, reinterpret_cast<float *>(next_.data() + angles_at_));
    auto *rows = reinterpret_cast<kernels::SpanRows *>(next_.data() + spans_at_);
    for (int i = 0; i < upload.n_layers; ++i)
        for (int s = 0; s < n_spans_; ++s, ++rows) {
            const SpanView &view = upload.views[i * n_spans_ + s];
            *rows = {view.first_token,
                     view.n_tokens,
                     view.start_pos,
                     view.window.device_pages,
                     view.compressed.device_pages,
                     view.index_keys.device_pages,
                     view.group_state};
        }

    const bool moved = n_bytes > step_.n_bytes();
    if (moved) {
        uploaded_.clear();
        step_.ensure(memory_, n_bytes + n_bytes / 2);
    }
    // Only what changed.
    std::size_t begin = 0, end = n_bytes;
    if (uploaded_.size() >= n_bytes) {
        begin = static_cast<std::size_t>(std::mismatch(next_.begin(), next_.end(), uploaded_.begin()).first -
                                         next_.begin());
        while (end > begin && next_[end - 1] == uploaded_[end - 1]) --end;
    }
    if (begin < end) send(begin, end);
    if (uploaded_.size() < n_bytes) uploaded_.resize(n_bytes);
    std::memcpy(uploaded_.data(), next_.data(), n_bytes);
}

void CudaStages::send(std::size_t begin, std::size_t end) {
    Staging &staging = stagings_[next_staging_++ % kStagings];
    if (!staging.event) check_device(device_, device_.create_event(&staging.event), "creating an event");
    if (staging.in_flight) {
        check_device(device_, device_.synchronize_event(staging.event), "waiting for an upload");
        staging.in_flight = false;
    }
    const std::size_t n_bytes = end - begin;
    if (staging.n_bytes < n_bytes) {
        void *pinned = nullptr;
        check_device(device_, device_.allocate_pinned(&pinned, 2 * n_bytes), "allocating pinned memory");
        if (staging.pinned) device_.release_pinned(staging.pinned);
        staging.pinned = pinned;
        staging.n_bytes = 2 * n_bytes;
    }
    std::memcpy(staging.pinned, next_.data() + begin, n_bytes);
    check_device(device_, device_.upload(stream_, step_.as<unsigned char>() + begin, staging.pinned, n_bytes),
                 "uploading a step");
    check_device(device_, device_.record_event(staging.event, stream_), "recording an event");
    staging.in_flight = true;
}

std::unique_ptr<Stages> create_cuda_stages(const StageOptions &options) {
    return std::make_unique<CudaStages>(*cuda_plugin().functions(), cuda_memory(), options);
}

std::unique_ptr<Stages> create_sim_stages(const StageOptions &options) {
    return std::make_unique<CudaStages>(*sim_plugin().functions(), sim_memory(), options);
}

} // namespace ds41
