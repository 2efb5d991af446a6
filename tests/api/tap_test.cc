// Taps: which intermediates come, in which order and shape, that they agree with each other, and that looking changes
// nothing.
#include "support.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <thread>

using namespace api_test;

namespace {

// A delivered intermediate, copied.
struct Delivery {
    std::string name;
    int32_t layer, span, n_tokens;
    int64_t start_pos;
    int32_t dtype;
    std::vector<int64_t> shape;
    std::vector<uint8_t> bytes;

    template <typename T> T at(int64_t i) const {
        T value;
        std::memcpy(&value, bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
        return value;
    }
};

struct Deliveries {
    std::vector<Delivery> all;
    bool well_formed = true;
    std::thread::id thread = std::this_thread::get_id();

    std::vector<Delivery> of(int32_t layer, int32_t span) const {
        std::vector<Delivery> some;
        for (const Delivery &one : all) {
            if (one.layer == layer && one.span == span) some.push_back(one);
        }
        return some;
    }
};

void collect(const ds41_tap *tap, void *user) {
    Deliveries &into = *static_cast<Deliveries *>(user);
    const ds41_tensor &t = tap->tensor;
    uint64_t n_bytes = 0;
    into.well_formed = into.well_formed && tap->struct_size == sizeof(ds41_tap) && t.data != nullptr &&
                       t.scales == nullptr && t.flags == 0 && t.reserved == 0 &&
                       std::this_thread::get_id() == into.thread &&
                       ds41_tensor_get_bytes(&t, &n_bytes) == DS41_STATUS_OK && n_bytes > 0;
    const uint8_t *bytes = static_cast<const uint8_t *>(t.data);
    into.all.push_back({tap->name, tap->layer, tap->span, tap->n_tokens, tap->start_pos, t.dtype,
                        std::vector<int64_t>(t.shape, t.shape + t.n_dims),
                        std::vector<uint8_t>(bytes, bytes + n_bytes)});
}

struct Expected {
    const char *name;
    int32_t dtype;
    std::vector<int64_t> shape;
};

// The header's table.
std::vector<Expected> expected_taps(const ds41_config &c, int32_t layer, int64_t start, int64_t T) {
    const ds41_layer_role role = expected_role(c, layer);
    const int64_t end = start + T, W = c.window_size, P = role.ratio > 0 ? end / role.ratio : 0;
    const int64_t G = role.ratio > 0 ? P - start / role.ratio : 0, R = end - std::max<int64_t>(0, start - W + 1);
    const bool kv = role.is_kv_source && G > 0, index = role.is_index_source && P > 0;
    std::vector<Expected> list = {{"q", DS41_DTYPE_BF16, {T, c.n_heads, c.head_dim}}};
    if (kv) list.push_back({"latent", DS41_DTYPE_BF16, {G, c.head_dim}});
    if (kv && role.is_index_source) list.push_back({"index_k", DS41_DTYPE_BF16, {G, c.index_head_dim}});
    if (kv) list.push_back({"comp_rows", DS41_DTYPE_BF16, {G, c.head_dim}});
    if (index) list.push_back({"index_q", DS41_DTYPE_BF16, {T, c.index_n_heads, c.index_head_dim}});
    if (index) list.push_back({"index_weights", DS41_DTYPE_BF16, {T, c.index_n_heads}});
    if (index) list.push_back({"scores", DS41_DTYPE_F32, {T, P}});
    if (index && role.is_candidate_source) list.push_back({"candidates", DS41_DTYPE_U8, {T, P}});
    list.push_back({"kv_rows", DS41_DTYPE_BF16, {R + P, c.head_dim}});
    list.push_back({"idx", DS41_DTYPE_I32, {T, std::min(W, R) + std::min<int64_t>(c.index_topk, P)}});
    list.push_back({"o", DS41_DTYPE_BF16, {T, c.n_heads, c.head_dim}});
    list.push_back({"ring", DS41_DTYPE_BF16, {W, c.head_dim}});
    if (role.is_kv_source && role.ratio > 1) {
        list.push_back({"state_kv", DS41_DTYPE_F32, {role.ratio, c.head_dim}});
        list.push_back({"state_gate", DS41_DTYPE_F32, {role.ratio, c.head_dim}});
    }
    return list;
}

const Delivery *find(const std::vector<Delivery> &list, const char *name) {
    for (const Delivery &one : list) {
        if (one.name == name) return &one;
    }
    return nullptr;
}

// The stable rule: higher score first, then lower index; -inf never.
std::vector<int32_t> best(const Delivery &scores, int64_t token, int64_t topk) {
    const int64_t n_groups = scores.shape[1];
    std::vector<int32_t> order;
    const auto score = [&](int32_t g) { return scores.at<float>(token * n_groups + g); };
    for (int32_t g = 0; g < n_groups; g++) {
        if (score(g) > -INFINITY) order.push_back(g);
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return score(a) > score(b); });
    if (static_cast<int64_t>(order.size()) > topk) order.resize(static_cast<size_t>(topk));
    std::sort(order.begin(), order.end());
    return order;
}

void check_agreement(const ds41_config &c, int32_t layer, int64_t start, int64_t T, const std::vector<Delivery> &list) {
    const ds41_layer_role role = expected_role(c, layer);
    const int64_t end = start + T, W = c.window_size, first = std::max<int64_t>(0, start - W + 1), R = end - first;
    const size_t row_bytes = static_cast<size_t>(c.head_dim) * 2;
    const Delivery &kv_rows = *find(list, "kv_rows"), &idx = *find(list, "idx"), &ring = *find(list, "ring");
    const int64_t n_columns = idx.shape[1], n_window = std::min(W, R), P = kv_rows.shape[0] - R;
    for (int64_t t = 0; t < T; t++) {
        const int64_t p = start + t;
        std::vector<int32_t> window, expected, groups;
        for (int64_t i = 0; i < n_columns; i++) {
            const int32_t row = idx.at<int32_t>(t * n_columns + i);
            if (row != -1)
                (i < n_window ? window : groups).push_back(i < n_window ? row : row - static_cast<int32_t>(R));
        }
        for (int64_t at = std::max<int64_t>(0, p - W + 1); at <= p; at++)
            expected.push_back(static_cast<int32_t>(at - first));
        CHECK(window == expected);
        const int64_t visible = role.ratio > 0 ? (p + 1) / role.ratio : 0;
        CHECK(std::is_sorted(groups.begin(), groups.end()));
        for (const int32_t group : groups) CHECK((group >= 0 && group < visible));
        for (int64_t i = n_window; i + 1 < n_columns; i++) { // -1 only at the end
            const bool padded = idx.at<int32_t>(t * n_columns + i) == -1;
            if (padded) CHECK(idx.at<int32_t>(t * n_columns + i + 1) == -1);
        }
        if (const Delivery *scores = find(list, "scores")) {
            CHECK(groups == best(*scores, t, c.index_topk));
            for (int64_t g = visible; g < P; g++) CHECK(scores->at<float>(t * P + g) == -INFINITY);
        }
        if (const Delivery *candidates = find(list, "candidates")) {
            int64_t kept_blocks = 0;
            for (int64_t g = 0; g < P; g += c.candidate_block_size) kept_blocks += candidates->at<uint8_t>(t * P + g);
            CHECK(kept_blocks <= c.candidate_topk_blocks);
            if (visible > 0) CHECK(candidates->at<uint8_t>(t * P + visible - 1) == 1); // the newest is pinned
        }
    }
    if (const Delivery *rows = find(list, "comp_rows")) {
        const size_t tail = static_cast<size_t>(P - rows->shape[0] + R) * row_bytes;
        CHECK(std::memcmp(kv_rows.bytes.data() + tail, rows->bytes.data(), rows->bytes.size()) == 0);
    }
    for (int64_t slot = 0; slot < W; slot++) { // the newest position of each slot
        const int64_t p = end - 1 - ((end - 1 - slot) % W + W) % W;
        const uint8_t *in_ring = ring.bytes.data() + static_cast<size_t>(slot) * row_bytes;
        if (p < 0) CHECK(std::all_of(in_ring, in_ring + row_bytes, [](uint8_t byte) { return byte == 0; }));
        if (p >= first) {
            CHECK(std::memcmp(in_ring, kv_rows.bytes.data() + static_cast<size_t>(p - first) * row_bytes, row_bytes) ==
                  0);
        }
    }
}

void check_span(const ds41_config &c, const Deliveries &got, int32_t layer, int32_t span, int64_t start, int64_t T) {
    CAPTURE(layer);
    CAPTURE(span);
    CAPTURE(start);
    CAPTURE(T);
    const std::vector<Delivery> list = got.of(layer, span);
    const std::vector<Expected> expected = expected_taps(c, layer, start, T);
    REQUIRE(list.size() == expected.size());
    for (size_t i = 0; i < expected.size(); i++) {
        CAPTURE(std::string(expected[i].name));
        CHECK(list[i].name == expected[i].name);
        CHECK(list[i].dtype == expected[i].dtype);
        CHECK(list[i].shape == expected[i].shape);
        CHECK(list[i].n_tokens == T);
        CHECK(list[i].start_pos == start);
    }
    check_agreement(c, layer, start, T, list);
}

} // namespace

TEST_CASE("a tap delivers what the table says, for every layer and span") {
    const TestModel model = random_model(small_config());
    const ds41_config &c = model.config;
    const Ctx ctx = new_ctx(model.get());
    const Seq a = new_seq(model.get()), b = new_seq(model.get());
    Deliveries got;
    must(ds41_ctx_set_tap(ctx.get(), nullptr, 0, collect, &got));
    int64_t at = 0;
    for (const int32_t n : {1, 2, 4, 1, 9, 3, 25}) {
        got.all.clear();
        prefill(model, ctx.get(), a.get(), {1}, at, n, nullptr);
        for (int32_t layer = 0; layer < c.n_compress_ratios; layer++) check_span(c, got, layer, 0, at, n);
        at += n;
    }
    for (int step = 0; step < 5; step++) {
        got.all.clear();
        const int32_t n = 1 + step % 3;
        const int64_t at_b = 3 * step;
        decode(model, ctx.get(), {{b.get(), {2}, at_b, 3, nullptr}, {a.get(), {1}, at, n, nullptr}});
        for (int32_t layer = 0; layer < c.n_compress_ratios; layer++) {
            check_span(c, got, layer, 0, at_b, 3);
            check_span(c, got, layer, 1, at, n);
        }
        at += n;
    }
    CHECK(got.well_formed);
}

TEST_CASE("a tap of index rows that are far wider than window rows") {
    ds41_config config = small_config();
    config.index_head_dim = 32 * config.head_dim;
    const TestModel model = random_model(config);
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    Deliveries got;
    must(ds41_ctx_set_tap(ctx.get(), nullptr, 0, collect, &got));
    prefill(model, ctx.get(), seq.get(), {1}, 0, 9, nullptr);
    for (int32_t layer = 0; layer < config.n_compress_ratios; layer++) check_span(config, got, layer, 0, 0, 9);
}

TEST_CASE("outputs are the same bits with a tap") {
    const int32_t end = is_simulated() ? 17 : 30;
    for (const Format format : {Format::bf16, Format::fp8}) {
        const TestModel model = random_model(format);
        const Record expected = whole_prefill(model, {1}, end);
        const Ctx ctx = new_ctx(model.get());
        const Seq seq = new_seq(model.get());
        Deliveries got;
        Record record;
        const char *const names[] = {"idx", "o"};
        prefill(model, ctx.get(), seq.get(), {1}, 0, 11, &record);
        for (int32_t at = 11; at < end; at++) {
            if (at % 3 == 0) must(ds41_ctx_set_tap(ctx.get(), nullptr, 0, collect, &got));
            if (at % 3 == 1) must(ds41_ctx_set_tap(ctx.get(), names, 2, collect, &got));
            if (at % 3 == 2) must(ds41_ctx_set_tap(ctx.get(), nullptr, 0, nullptr, nullptr));
            const size_t before = got.all.size();
            decode(model, ctx.get(), {{seq.get(), {1}, at, 1, &record}});
            CHECK((got.all.size() == before) == (at % 3 == 2));
        }
        check_same(record, expected, model.config);
    }
}

TEST_CASE("a tap may be set in the middle of a step, for some names or none") {
    const TestModel model = random_model(small_config());
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    Deliveries got, other;
    const char *const names[] = {"ring", "q", "q"};
    prefill_layer(model, ctx.get(), seq.get(), 0, {1}, 0, 5, nullptr);
    must(ds41_ctx_set_tap(ctx.get(), names, 3, collect, &got));
    prefill_layer(model, ctx.get(), seq.get(), 1, {1}, 0, 5, nullptr);
    const std::vector<Delivery> list = got.of(1, 0);
    REQUIRE(list.size() == 2);
    CHECK(list[0].name == "q");
    CHECK(list[1].name == "ring");
    must(ds41_ctx_set_tap(ctx.get(), names, 1, collect, &other)); // replaces
    prefill_layer(model, ctx.get(), seq.get(), 2, {1}, 0, 5, nullptr);
    CHECK(got.all.size() == 2);
    CHECK(other.all.size() == 1);
    const char *const nonsense[] = {"nonsense"};
    must(ds41_ctx_set_tap(ctx.get(), nonsense, 1, nullptr, nullptr)); // names are ignored when it goes
    prefill_layer(model, ctx.get(), seq.get(), 3, {1}, 0, 5, nullptr);
    CHECK(other.all.size() == 1);
}

TEST_CASE("names that are not in the table are refused and the tap stays as it was") {
    const TestModel model = random_model(small_config());
    const Ctx ctx = new_ctx(model.get());
    const Seq seq = new_seq(model.get());
    Deliveries got, other;
    const char *const good[] = {"q"};
    must(ds41_ctx_set_tap(ctx.get(), good, 1, collect, &got));
    const auto refuse = [&](const char *const *names, int32_t n, const std::vector<std::string> &words) {
        check_refused(ds41_ctx_set_tap(ctx.get(), names, n, collect, &other), {DS41_STATUS_INVALID_ARGUMENT},
                      "ds41_ctx_set_tap", words);
    };
    for (const char *name : {"", "Q", "q ", "index_keys", "nonsense"}) {
        CAPTURE(std::string(name));
        const char *const names[] = {"o", name};
        refuse(names, 2, {"names"});
        CHECK(std::strstr(ds41_last_error(), name) != nullptr);
    }
    refuse(good, -1, {"n_names", "-1"});
    refuse(good, INT32_MIN, {"n_names"});
    prefill_layer(model, ctx.get(), seq.get(), 0, {1}, 0, 5, nullptr);
    CHECK(got.all.size() == 1);
    CHECK(other.all.empty());
}
