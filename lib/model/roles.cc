// Layer roles from the source lists, and the contradictions that such lists can hold.
#include "error.h"
#include "model/config.h"

namespace ds41 {

namespace {

// Mark the layers of a source list. Each must compress something, and the list must ascend.
void mark_sources(const ds41_config &c, const char *name, const std::int32_t *list, int n,
                  std::vector<LayerRole> &roles, bool LayerRole::*mark) {
    for (int i = 0; i < n; ++i) {
        DS41_CHECK(list[i] >= 0 && list[i] < c.n_layers, DS41_STATUS_INVALID_CONFIG,
                   "config.%s[%d] is %d, need a layer in [0, %d]", name, i, list[i], c.n_layers - 1);
        DS41_CHECK(i == 0 || list[i] > list[i - 1], DS41_STATUS_INVALID_CONFIG,
                   "config.%s[%d] is %d, need more than the entry before it, %d", name, i, list[i],
                   i ? list[i - 1] : 0);
        DS41_CHECK(c.compress_ratios[list[i]] > 0, DS41_STATUS_INVALID_CONFIG,
                   "config.%s[%d] is %d, a layer of ratio 0; need a layer with a ratio of 1 or more", name, i, list[i]);
        roles[static_cast<std::size_t>(list[i])].*mark = true;
    }
}

// Give a compressed layer its sources: the nearest of each kind, itself included.
void resolve_sources(const ds41_config &c, int layer, int kv_source, int index_source, std::vector<LayerRole> &roles) {
    LayerRole &role = roles[static_cast<std::size_t>(layer)];
    const struct {
        const char *list;
        int source;
    } wanted[] = {{"kv_source_layers", kv_source}, {"index_source_layers", index_source}};
    for (const auto &[list, source] : wanted) {
        DS41_CHECK(source >= 0, DS41_STATUS_INVALID_CONFIG,
                   "config.%s has no entry up to %d, a layer of ratio %d that needs one", list, layer, role.ratio);
        DS41_CHECK(c.compress_ratios[source] == role.ratio, DS41_STATUS_INVALID_CONFIG,
                   "config.compress_ratios[%d] is %d, need %d, the ratio of layer %d, its nearest in %s", layer,
                   role.ratio, c.compress_ratios[source], source, list);
    }
    role.kv_source = kv_source;
    role.index_source = index_source;
    if (role.is_index_source)
        DS41_CHECK(roles[static_cast<std::size_t>(kv_source)].is_index_source, DS41_STATUS_INVALID_CONFIG,
                   "config.index_source_layers lists %d but not its kv source %d, which has no index keys then", layer,
                   kv_source);
}

void mark_candidates(const ds41_config &c, std::vector<LayerRole> &roles) {
    const int source = c.candidate_source_layer;
    if (source < 0) return;
    LayerRole &role = roles[static_cast<std::size_t>(source)];
    DS41_CHECK(role.is_index_source, DS41_STATUS_INVALID_CONFIG,
               "config.candidate_source_layer is %d, need an entry of index_source_layers or -1", source);
    role.is_candidate_source = true;
    for (int layer = source + 1; layer < c.n_layers; ++layer) {
        LayerRole &later = roles[static_cast<std::size_t>(layer)];
        if (!later.is_index_source) continue;
        DS41_CHECK(later.ratio == role.ratio, DS41_STATUS_INVALID_CONFIG,
                   "config.compress_ratios[%d] is %d, need %d: an index source after candidate_source_layer %d shares "
                   "its ratio",
                   layer, later.ratio, role.ratio, source);
        later.uses_candidates = true;
    }
}

} // namespace

std::vector<LayerRole> derive_roles(const ds41_config &c) {
    std::vector<LayerRole> roles(static_cast<std::size_t>(c.n_compress_ratios));
    for (int layer = 0; layer < c.n_compress_ratios; ++layer) {
        LayerRole &role = roles[static_cast<std::size_t>(layer)];
        const int ratio = c.compress_ratios[layer];
        DS41_CHECK(ratio >= 0 && ratio <= (1 << 20), DS41_STATUS_INVALID_CONFIG,
                   "config.compress_ratios[%d] is %d, need a value in [0, %d]", layer, ratio, 1 << 20);
        role.ratio = ratio;
        role.is_draft = layer >= c.n_layers;
        DS41_CHECK(!role.is_draft || ratio == 0, DS41_STATUS_INVALID_CONFIG,
                   "config.compress_ratios[%d] is %d, need 0: layers from n_layers, %d, on are draft layers", layer,
                   ratio, c.n_layers);
    }
    mark_sources(c, "kv_source_layers", c.kv_source_layers, c.n_kv_source_layers, roles, &LayerRole::is_kv_source);
    mark_sources(c, "index_source_layers", c.index_source_layers, c.n_index_source_layers, roles,
                 &LayerRole::is_index_source);

    int kv_source = -1, index_source = -1;
    for (int layer = 0; layer < c.n_layers; ++layer) {
        const LayerRole &role = roles[static_cast<std::size_t>(layer)];
        if (role.is_kv_source) kv_source = layer;
        if (role.is_index_source) index_source = layer;
        if (role.ratio > 0) resolve_sources(c, layer, kv_source, index_source, roles);
    }
    mark_candidates(c, roles);
    return roles;
}

} // namespace ds41
