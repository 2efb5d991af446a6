// o back to the unrotated frame, and through the two output projections.
#include "backend/reference/rows.h"

namespace ds41 {

using namespace reference;

void ReferenceStages::output(const OutputArgs &a) {
    const Config &c = *a.layer.config;
    const LayerWeights &w = *a.layer.weights;
    Bf16 *grouped = buffers_.row.data();
    for (int i = 0; i < a.tile.n; ++i) {
        const int token = a.tile.first + i;
        const std::int64_t pos = a.layer.step.tokens[token].pos;
        Bf16 *o = a.o + i * c.q_width();
        for (int h = 0; h < c.n_heads; ++h)
            rotate(o + std::int64_t{h} * c.head_dim, c.head_dim, *a.layer.rope, pos, Turn::kInverse);
        // Group g: its slice of o against rows g * o_lora_rank .. of wo_a; the result is bf16 before wo_b.
        for (int g = 0; g < c.o_groups; ++g)
            linear(w.wo_a, std::int64_t{g} * c.o_lora_rank, c.o_lora_rank, o + g * c.o_group_width(),
                   grouped + std::int64_t{g} * c.o_lora_rank, buffers_.linear);
        linear(w.wo_b, 0, c.dim, grouped, a.out + std::int64_t{token} * c.dim, buffers_.linear);
    }
}

} // namespace ds41
