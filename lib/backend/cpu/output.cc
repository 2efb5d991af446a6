// o back to the unrotated frame, and through the two output projections.
#include "backend/cpu/stages.h"

#include <algorithm>
#include <array>

namespace ds41 {

void CpuStages::output(const OutputArgs &a) {
    const Config &c = *a.layer.config;
    const LayerWeights &w = *a.layer.weights;
    Bf16 *grouped = get<Bf16>(kRows);
    make_angles(a.layer, a.tile, true);
    rotate_heads(a.o, a.tile.n, c.n_heads, c.head_dim, a.layer.rope->n_pairs());

    // Few tokens: all groups of wo_a in one parallel region, as many as fit the list. Many: a group at a time.
    std::array<Product, 16> products{};
    const int at_once = a.tile.n <= kFewTokens ? static_cast<int>(products.size()) : 1;
    for (int first = 0; first < c.o_groups; first += at_once) {
        const int n = std::min(at_once, c.o_groups - first);
        const Activations o = take_activations(kX0, w.wo_a, a.o + first * c.o_group_width(), c.q_width(), a.tile.n, n);
        for (int g = 0; g < n; ++g) {
            const std::int64_t row = std::int64_t{first + g} * c.o_lora_rank;
            Product &product = products[static_cast<std::size_t>(g)];
            product = {&w.wo_a, row, c.o_lora_rank, &o, g, grouped + row, nullptr, c.o_lora_width()};
        }
        multiply(products.data(), n);
    }

    const Activations og = take_activations(kX0, w.wo_b, grouped, c.o_lora_width(), a.tile.n);
    const Product last = {&w.wo_b, 0, c.dim, &og, 0, a.out + std::int64_t{a.tile.first} * c.dim, nullptr, c.dim};
    multiply(&last, 1);
}

} // namespace ds41
