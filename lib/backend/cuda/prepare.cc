// Streams and scratch memory of the CUDA backend, and the upload of a step.
#include "attend/params.h"
#include "backend/cuda/stages.h"
#include "error.h"
#include "numeric/q8.h"
#include "numeric/rows.h"
#include "pages/params.h"

#include <algorithm>
#include <bit>
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
      attention_split_(options.attention_split), check_stages_(std::getenv("DS41_CHECK_STAGES") != nullptr) {
    if (owns_stream_) check_device(device_, device_.create_stream(&stream_), "creating a stream");
}

CudaStages::~CudaStages() {
    int capturing = 0; // by the stream's owner: waiting would break that
    if (stream_ && device_.is_capturing(stream_, &capturing) == 0 && !capturing)
        device_.synchronize(stream_); // what is enqueued reads the buffers that go
    for (Staging &staging : stagings_) {
        if (staging.event) device_.destroy_event(staging.event);
        if (staging.pinned) device_.release_pinned(staging.pinned);
    }
    if (owns_stream_ && stream_) device_.destroy_stream(stream_);
}

CudaStages::Sizes CudaStages::buffer_bytes(const Config &c, const StageSizes &sizes) const noexcept {
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
    attend.n_splits = attention_split_;
    // Fewer tokens are shared among more blocks: the largest need is not at the largest tile.
    for (; attend.n >= 1; --attend.n) n[kPartials] = std::max(n[kPartials], attend_workspace_bytes(attend));
    n[kRotated] = bf16(c.q_width());
    n[kGrouped] = bf16(c.o_lora_width());
    // Which projections are quantised is the weights' matter: room for all.
    for (int input = 0; input < static_cast<int>(Input::kCount); ++input)
        n[kQuantised] += quantised_bytes(c, static_cast<Input>(input), tile);
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
    Buffers grown;
    for (std::size_t i = 0; i < kBufferCount; ++i)
        if (!buffers_[i] || wanted[i] > buffers_[i]->n_bytes())
            grown[i] = std::make_shared<const Block>(memory_, wanted[i]);
    for (std::size_t i = 0; i < kBufferCount; ++i)
        if (grown[i]) buffers_[i] = std::move(grown[i]);
}

std::size_t CudaStages::n_bytes() const noexcept {
    std::size_t sum = 0; // the uploaded step is bookkeeping: some hundred bytes a token
    for (const auto &block : buffers_) sum += block ? block->n_bytes() : 0;
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
    device_.push_range(stream_, name);
}

void CudaStages::leave(int layer, const char *stage) {
    device_.pop_range(stream_);
    if (!check_stages_ || capture_ != Capture::kNone) return;
    char doing[64];
    std::snprintf(doing, sizeof doing, "stage %s of layer %d", stage, layer);
    check_device(device_, device_.synchronize(stream_), doing);
}

CudaStages::References &CudaStages::References::bytes(const void *data, std::size_t n_bytes, DeviceAccess access) {
    if (wanted_ && n_bytes > 0) list_.push_back({data, n_bytes, access});
    return *this;
}

CudaStages::References &CudaStages::References::quantised(const kernels::QuantisedRows &rows, int n,
                                                          DeviceAccess access) {
    const auto n_values = static_cast<std::size_t>(n) * static_cast<std::size_t>(rows.width);
    if (rows.form == kernels::QuantisedForm::kFp8) return bytes(rows.values, n_values * sizeof(Bf16), access);
    if (rows.form != kernels::QuantisedForm::kQ8) return *this;
    return bytes(rows.codes, n_values, access).bytes(rows.scales, n_values / kQ8Block * sizeof(float), access);
}

CudaStages::References &CudaStages::References::rows(DeviceRows rows, std::size_t n_bytes, int per_row,
                                                     DeviceAccess access) {
    if (wanted_) list_.push_back({spans_, n_bytes, access, rows, n_spans_, per_row});
    return *this;
}

CudaStages::References &CudaStages::References::window(const Config &c, DeviceAccess access) {
    return rows(DeviceRows::kWindow, window_row_bytes(c.head_dim), c.window_size, access);
}

CudaStages::References &CudaStages::References::compressed(const Config &c, int ratio, DeviceAccess access) {
    return rows(DeviceRows::kCompressed, compressed_row_bytes(c.head_dim), ratio, access);
}

CudaStages::References &CudaStages::References::index_keys(const Config &c, int ratio, DeviceAccess access) {
    return rows(DeviceRows::kIndexKeys, index_key_row_bytes(c.index_head_dim), ratio, access);
}

CudaStages::References &CudaStages::References::group_state(const Config &c, int ratio, DeviceAccess access) {
    const auto floats = std::size_t{2} * static_cast<std::size_t>(ratio) * static_cast<std::size_t>(c.head_dim);
    return rows(DeviceRows::kGroupState, floats * sizeof(float), 1, access);
}

CudaStages::References CudaStages::step_references(const LayerView &layer) const {
    References step(device_.wants_references != 0, spans(layer), layout_.n_span_slots);
    step.read(tokens(), layout_.n_token_slots).read(spans(layer), layout_.n_span_slots);
    return step;
}

const kernels::SpanRows *CudaStages::spans(const LayerView &layer) const {
    const auto slot = static_cast<std::size_t>(layout_.slot_of_layer[static_cast<std::size_t>(layer.layer)]);
    return reinterpret_cast<const kernels::SpanRows *>(place_->block.as<unsigned char>() + layout_.spans_at) +
           slot * static_cast<std::size_t>(layout_.n_span_slots);
}

const float *CudaStages::angle_table(int table) const {
    return reinterpret_cast<const float *>(place_->block.as<unsigned char>() + layout_.angles_at) +
           std::int64_t{table} * layout_.n_token_slots * angle_count();
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
    // Steps of a prefill have the room that they need. Those of decode have one place for each power of two.
    const int n_slots = std::max(upload.n_tokens, upload.n_slots);
    layout.n_token_slots =
        upload.is_prefill ? n_slots : static_cast<int>(std::bit_ceil(static_cast<unsigned>(n_slots)));
    layout.n_span_slots = upload.is_prefill ? upload.n_spans : layout.n_token_slots;
    layout.n_pairs = c.rope_head_dim / 2;
    layout.is_prefill = upload.is_prefill;
    layout.score_stride = score_stride(c, *upload.sizes);
    layout.score_tile = score_tile(c, *upload.sizes);
    layout.slot_of_layer.assign(static_cast<std::size_t>(c.n_layers_total()), 0);
    for (int i = 0; i < upload.n_layers; ++i) layout.slot_of_layer[static_cast<std::size_t>(upload.layers[i])] = i;

    const auto n_tokens = static_cast<std::size_t>(layout.n_token_slots);
    const std::size_t token_angles = 2 * static_cast<std::size_t>(layout.n_pairs) * sizeof(float);
    layout.angles_at = n_tokens * sizeof(kernels::Token);
    const std::size_t angles_end = layout.angles_at + (2 + group_ratios_.size()) * n_tokens * token_angles;
    layout.spans_at = (angles_end + 15) / 16 * 16;
    layout.n_bytes = layout.spans_at + static_cast<std::size_t>(upload.n_layers) *
                                           static_cast<std::size_t>(layout.n_span_slots) * sizeof(kernels::SpanRows);
    return layout;
}

CudaStages::Place &CudaStages::place_of(const StepUpload &upload, const Layout &layout) {
    if (upload.is_prefill) return prefill_;
    return decode_[static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(layout.n_token_slots)) - 1)];
}

void CudaStages::write_angles(const StepUpload &upload, const Layout &layout, float *out) const {
    const std::int64_t row = std::int64_t{2} * layout.n_pairs, table = layout.n_token_slots * row;
    const auto write = [&](float *to, const RopeTable &rope, std::int64_t pos) {
        for (int pair = 0; pair < layout.n_pairs; ++pair, to += 2) rope.angle(pos, pair, to[0], to[1]);
    };
    for (int i = 0; i < layout.n_tokens; ++i) {
        const std::int64_t pos = upload.tokens[i].pos;
        float *to = out + i * row;
        write(to, *upload.rope_plain, pos);
        write(to += table, *upload.rope_compressed, pos);
        for (const int ratio : group_ratios_) {
            to += table;
            if ((pos + 1) % ratio == 0) write(to, *upload.rope_compressed, pos + 1 - ratio); // completes a group
        }
    }
}

void CudaStages::write_step(const StepUpload &upload, const Layout &layout, const Place &place) {
    next_.assign(layout.n_bytes, 0);
    auto *const token = reinterpret_cast<kernels::Token *>(next_.data());
    for (int i = 0; i < layout.n_tokens; ++i) token[i] = {upload.tokens[i].span, 0, upload.tokens[i].pos};
    for (int i = layout.n_tokens; i < layout.n_token_slots; ++i) token[i] = {-1, 0, 0};
    // Angles are dear on the host, and the same for all layers of a step.
    const std::vector<unsigned char> &uploaded = place.uploaded;
    const bool same_tokens = layout_.n_token_slots == layout.n_token_slots && place_ == &place &&
                             uploaded.size() >= layout.spans_at &&
                             std::memcmp(uploaded.data(), next_.data(), layout.angles_at) == 0;
    if (same_tokens)
        std::memcpy(next_.data() + layout.angles_at, uploaded.data() + layout.angles_at,
                    layout.spans_at - layout.angles_at);
    else
        write_angles(upload, layout, reinterpret_cast<float *>(next_.data() + layout.angles_at));
    auto *rows = reinterpret_cast<kernels::SpanRows *>(next_.data() + layout.spans_at);
    for (int i = 0; i < upload.n_layers; ++i, rows += layout.n_span_slots)
        for (int s = 0; s < layout.n_spans; ++s) {
            const SpanView &view = upload.views[i * layout.n_spans + s];
            rows[s] = {view.first_token,
                       view.n_tokens,
                       view.start_pos,
                       view.window.device_pages,
                       view.compressed.device_pages,
                       view.index_keys.device_pages,
                       view.group_state};
        }
}

void CudaStages::write_pages(const StepUpload &upload) {
    for (int first = 0; first < upload.n_page_writes; first += kernels::kMaxPageWrites) {
        kernels::WritePagesParams p{};
        p.n = std::min(kernels::kMaxPageWrites, upload.n_page_writes - first);
        References touched = references();
        for (int i = 0; i < p.n; ++i) {
            p.writes[i] = upload.page_writes[first + i];
            touched.write(p.writes[i].entry, 1);
        }
        launch(DeviceOp::kWritePages, p, touched);
    }
}

CudaStages::Staging &CudaStages::free_staging(std::size_t n_bytes) {
    Staging &staging = stagings_[next_staging_++ % kStagings];
    if (!staging.event) check_device(device_, device_.create_event(&staging.event), "creating an event");
    if (staging.in_flight) {
        int over = 0;
        check_device(device_, device_.is_event_over(staging.event, &over), "asking about an upload");
        if (!over) check_device(device_, device_.synchronize_event(staging.event), "waiting for an upload");
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
    Place &place = place_of(upload, layout);
    write_step(upload, layout, place);
    const std::size_t n_bytes = layout.n_bytes;
    place.uploaded.reserve(n_bytes);
    Block grown;
    if (n_bytes > place.block.n_bytes()) grown = Block(memory_, upload.is_prefill ? n_bytes + n_bytes / 2 : n_bytes);
    std::size_t begin = 0, end = n_bytes; // of what changed
    if (grown.n_bytes() == 0 && place.uploaded.size() >= n_bytes) {
        begin = static_cast<std::size_t>(std::mismatch(next_.begin(), next_.end(), place.uploaded.begin()).first -
                                         next_.begin());
        while (end > begin && next_[end - 1] == place.uploaded[end - 1]) --end;
    }
    Staging *const staging = begin < end ? &free_staging(end - begin) : nullptr;

    // Then the device, and only what it has taken is remembered.
    write_pages(upload);
    if (staging) {
        auto *const target = (grown.n_bytes() > 0 ? grown : place.block).as<unsigned char>() + begin;
        std::memcpy(staging->pinned, next_.data() + begin, end - begin);
        check_device(device_, device_.upload(stream_, target, staging->pinned, end - begin), "uploading a step");
        staging->in_flight = true;
        check_device(device_, device_.record_event(staging->event, stream_), "recording an event");
    }
    layout_ = std::move(layout);
    place_ = &place;
    if (grown.n_bytes() > 0) {
        place.block = std::move(grown);
        place.uploaded.clear();
    }
    if (place.uploaded.size() < n_bytes) place.uploaded.resize(n_bytes);
    std::memcpy(place.uploaded.data() + begin, next_.data() + begin, end - begin);
}

std::unique_ptr<Stages> create_cuda_stages(const StageOptions &options) {
    return std::make_unique<CudaStages>(*cuda_plugin().functions(), cuda_memory(), options);
}

std::unique_ptr<Stages> create_sim_stages(const StageOptions &options) {
    return std::make_unique<CudaStages>(*sim_plugin().functions(), sim_memory(), options);
}

} // namespace ds41
