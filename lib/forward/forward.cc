// The order of the stages, over tiles of tokens.
#include "forward/forward.h"

#include <algorithm>

namespace ds41 {

void run_layer(const Model &model, Stages &stages, const Workspace &ws, Step &step, int layer, const Bf16 *x, Bf16 *out,
               TapRun *tap) {
    const Config &config = model.config();
    const LayerRole &role = config.role(layer);
    const StepSizes &sizes = step.sizes;
    const LayerView view{layer, &config, &role, model.layer(layer), &model.rope(layer), step.view(config, layer)};
    // Without a complete group anywhere there is no column to select, and no indexer runs.
    const bool indexed = role.ratio > 0 && sizes.n_group_slots > 0;
    if (indexed && role.is_index_source) {
        step.published.groups = ws.share(Workspace::kGroups);
        step.published.n_group_slots = sizes.n_group_slots;
    }
    if (indexed && role.is_candidate_source) {
        step.published.blocks = ws.share(Workspace::kBlocks);
        step.published.n_block_slots = sizes.n_block_slots;
    }
    const Published &published = step.published;
    std::int32_t *const groups = indexed && published.groups ? published.groups->as<std::int32_t>() : nullptr;
    const auto stage = [&](const char *name, const auto &run) {
        stages.enter(layer, name);
        run();
        stages.leave(layer, name);
    };
    const auto tapped = [&](const auto &save) {
        if (!tap) return;
        stages.synchronize();
        save();
    };

    auto *const window_new = ws.get<std::uint8_t>(Workspace::kWindowNew);
    for (std::int32_t first = 0; first < sizes.n_tokens; first += sizes.n_tile) {
        const Tile tile{first, std::min(sizes.n_tile, sizes.n_tokens - first)};
        auto *const qr = ws.get<Bf16>(Workspace::kQr);
        auto *const q = ws.get<Bf16>(Workspace::kQ);
        auto *const o = ws.get<Bf16>(Workspace::kO);

        stage("project", [&] { stages.project({view, tile, x, qr, q, window_new}); });
        tapped([&] { tap->save_q(tile, q); });
        if (role.is_kv_source)
            stage("compress", [&] { stages.compress({view, tile, x, tap ? tap->latents() : nullptr}); });
        if (indexed && role.is_index_source) {
            auto *const iq = ws.get<std::uint8_t>(Workspace::kIndexQ);
            auto *const weights = ws.get<Bf16>(Workspace::kIndexWeights);
            auto *const blocks =
                role.is_candidate_source || role.uses_candidates ? published.blocks->as<std::int32_t>() : nullptr;
            stage("index_query", [&] { stages.index_query({view, tile, x, qr, iq, weights}); });
            tapped([&] { tap->save_index_query(tile, iq, weights); });
            stage("select", [&] {
                stages.select({view, tile, iq, weights, blocks, published.n_block_slots, groups,
                               published.n_group_slots, model.topk_rule(), tap ? tap->scores() : nullptr});
            });
        }
        stage("attend", [&] {
            stages.attend({view, tile, q, window_new, groups, published.n_group_slots, o, tap != nullptr});
        });
        tapped([&] { tap->save_o(tile, o); });
        stage("output", [&] { stages.output({view, tile, o, out}); });
    }
    tapped([&] { tap->save_rows(view, ws, published); });
    // Only now: until its last token has attended, the step needs the ring as it was.
    stage("commit_window", [&] { stages.commit_window(view, window_new); });
    tapped([&] { tap->save_state(view); });
}

} // namespace ds41
