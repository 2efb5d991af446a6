// The conversation of scene.h.
#include "scene.h"

#include <algorithm>

namespace api_test {

ds41_status Scene::prefill(int32_t layer, ds41_seq *seq, int32_t n_tokens, int64_t start_pos, ds41_ctx *on) {
    const ds41_tensor x_view = x_rows(n_tokens), out_view = out_rows(n_tokens);
    return ds41_layer_prefill(on ? on : ctx, layer, seq, &x_view, n_tokens, start_pos, &out_view);
}

ds41_status Scene::body(int32_t layer, ds41_ctx *on) {
    const ds41_tensor x_view = x_rows(kDecodeRows), out_view = out_rows(kDecodeRows);
    return ds41_decode_body(on ? on : ctx, layer, &x_view, &out_view);
}

Record converse(const TestModel &model, Moment moment, const std::function<void(Scene &)> &disturb) {
    static const TestModel other = random_model(small_config());
    const Ctx ctx = new_ctx(model.get()), idle_ctx = new_ctx(model.get());
    const Seq a = new_seq(model.get()), b = new_seq(model.get()), fresh = new_seq(model.get());
    const Seq foreign = new_seq(other.get());
    const Tape tape_a{1}, tape_b{2};
    const int64_t n_scratch = (kPrefillTokens + 1) * model.config.dim;
    Scene scene{model,          ctx.get(),
                idle_ctx.get(), a.get(),
                b.get(),        fresh.get(),
                foreign.get(),  Rows(std::vector<uint16_t>(static_cast<size_t>(n_scratch), 0x3F80)),
                Rows(n_scratch)};
    const auto at = [&](Moment now) {
        if (now == moment && disturb) disturb(scene);
    };

    Record record, record_b;
    at(Moment::start);
    for (int32_t layer = 0; layer < model.config.n_compress_ratios; layer++) {
        if (layer == 3) at(Moment::in_prefill);
        prefill_layer(model, ctx.get(), a.get(), layer, tape_a, 0, kPrefillTokens, &record);
    }
    prefill(model, ctx.get(), b.get(), tape_b, 0, 5, &record_b);
    const std::vector<SpanRun> spans = {{a.get(), tape_a, kPrefillTokens, 1, &record},
                                        {b.get(), tape_b, 5, 2, &record_b}};
    prep(ctx.get(), spans);
    for (int32_t layer = 0; layer < model.config.n_compress_ratios; layer++) {
        if (layer == 5) at(Moment::in_decode);
        decode_layer(model, ctx.get(), layer, spans);
    }
    at(Moment::end);
    prefill(model, ctx.get(), a.get(), tape_a, kEndOfA, 2, &record);
    record.layers.insert(record.layers.end(), record_b.layers.begin(), record_b.layers.end());
    return record;
}

static std::vector<int64_t> state_of(const Scene &scene) {
    std::vector<int64_t> state;
    for (ds41_seq *seq : {scene.a, scene.b, scene.fresh, scene.foreign}) {
        for (int32_t layer = DS41_ALL_LAYERS; layer < scene.model.config.n_compress_ratios; layer++) {
            state.push_back(-1);
            must(ds41_seq_get_position(seq, layer, &state.back()));
        }
        state.push_back(static_cast<int64_t>(ds41_seq_get_bytes(seq)));
    }
    for (ds41_ctx *ctx : {scene.ctx, scene.idle_ctx}) state.push_back(static_cast<int64_t>(ds41_ctx_get_bytes(ctx)));
    return state;
}

static void refuse(Scene &scene, const Refusal &refusal) {
    CAPTURE(refusal.name);
    const std::vector<int64_t> before = state_of(scene);
    check_refused(refusal.call(scene), refusal.accepted, refusal.function, refusal.words);
    CHECK_MESSAGE(scene.out.untouched(), "a refused call wrote to out");
    CHECK_MESSAGE(scene.x.untouched(), "a refused call wrote to x");
    CHECK_MESSAGE(state_of(scene) == before, "a refused call moved a position or took memory");
}

void check_refusals(const std::vector<Refusal> &refusals) {
    static const TestModel model = random_model(small_config());
    static const Record undisturbed = converse(model, Moment::end, nullptr);
    std::vector<std::vector<const Refusal *>> conversations;
    for (const Refusal &refusal : refusals) {
        const auto joins = [&](const auto &one) { return is_simulated() && one[0]->moment == refusal.moment; };
        const auto found = std::find_if(conversations.begin(), conversations.end(), joins);
        if (found == conversations.end()) {
            conversations.push_back({&refusal});
        } else {
            found->push_back(&refusal);
        }
    }
    for (const std::vector<const Refusal *> &calls : conversations) {
        CAPTURE(calls[0]->name);
        bool reached = false;
        const Record record = converse(model, calls[0]->moment, [&](Scene &scene) {
            reached = true;
            for (const Refusal *refusal : calls) refuse(scene, *refusal);
        });
        CHECK(reached);
        check_same(record, undisturbed, model.config);
    }
}

} // namespace api_test
