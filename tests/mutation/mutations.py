"""Ways to get these layers wrong: each entry changes one place of the library, and some test must notice.

(name, file below lib/, old text, new text). The old text must occur exactly once.
"""

R = "backend/reference/"
C = "backend/cpu/"
TRUNCATED = "Bf16{static_cast<std::uint16_t>(float_bits(%s) >> 16)}"

MUTATIONS = [
    # Rounding points: truncated instead of rounded to nearest even, or left out.
    ("linear f32/bf16: result truncated", R + "linear.cc", "out[i] = to_bf16(dot_float(w, first_row + i, x));",
     "out[i] = " + TRUNCATED % "dot_float(w, first_row + i, x)" + ";"),
    ("linear plain activations: result truncated", R + "linear.cc", "out[i] = to_bf16(dot(scratch.values.data(), x, w.cols));",
     "out[i] = " + TRUNCATED % "dot(scratch.values.data(), x, w.cols)" + ";"),
    ("linear q2_k: result truncated", R + "linear.cc",
     "out[i] = to_bf16(dot_q2_k(row_data(w, first_row + i), scratch.q8.data(), k));",
     "out[i] = " + TRUNCATED % "dot_q2_k(row_data(w, first_row + i), scratch.q8.data(), k)" + ";"),
    ("linear fp8: activations not quantised", R + "linear.cc", "} else if (!w.quantise_activations) {",
     "} else if (!w.quantise_activations || w.dtype == DS41_DTYPE_FP8_E4M3) {"),
    ("linear q2_k: activations not quantised", R + "linear.cc", "} else if (!w.quantise_activations) {",
     "} else if (!w.quantise_activations || w.dtype == DS41_DTYPE_Q2_K) {"),
    ("norm: result truncated", R + "rows.h", "x[i] = to_bf16(w[i] * (to_f32(x[i]) * scale));",
     "x[i] = " + TRUNCATED % "w[i] * (to_f32(x[i]) * scale)" + ";"),
    ("norm: eps outside the root", R + "rows.h",
     "1.0f / std::sqrt(static_cast<float>(sum / static_cast<double>(n)) + eps)",
     "1.0f / (std::sqrt(static_cast<float>(sum / static_cast<double>(n))) + eps)"),
    ("rope: real part truncated", R + "rows.h", "tail[2 * k] = to_bf16(re * cosine - im * sine);",
     "tail[2 * k] = " + TRUNCATED % "re * cosine - im * sine" + ";"),
    ("rope: imaginary part truncated", R + "rows.h", "tail[2 * k + 1] = to_bf16(re * sine + im * cosine);",
     "tail[2 * k + 1] = " + TRUNCATED % "re * sine + im * cosine" + ";"),
    ("pooled latent truncated", R + "rows.h", "latent[e] = to_bf16(pooled);",
     "latent[e] = " + TRUNCATED % "pooled" + ";"),
    ("index weights: second rounding truncated", R + "index_query.cc", "weights[h] = to_bf16(to_f32(weights[h]) * scale);",
     "weights[h] = " + TRUNCATED % "to_f32(weights[h]) * scale" + ";"),
    ("index score: dot not rounded", R + "select.cc", "dot = round_bf16(dot);", ""),
    ("index score: product not rounded", R + "select.cc", "sum += round_bf16(dot * to_f32(weights[h]));",
     "sum += dot * to_f32(weights[h]);"),
    ("index score: sum not rounded", R + "select.cc", "return round_bf16(sum);", "return sum;"),
    ("index score: heads in descending order", R + "select.cc", "for (int h = 0; h < n_heads; ++h) {",
     "for (int h = n_heads - 1; h >= 0; --h) {"),
    ("index score: no relu", R + "select.cc", "if (dot < 0.0f) dot = 0.0f; // a NaN stays", ""),
    ("attention output truncated", R + "attend.cc", "o[e] = to_bf16(denominator != 0.0f ? sums[e] / denominator : 0.0f);",
     "o[e] = " + TRUNCATED % "denominator != 0.0f ? sums[e] / denominator : 0.0f" + ";"),
    ("bf16 ties away from even", "numeric/bits.h", "const std::uint32_t half = (1u << (shift - 1)) - 1u;",
     "const std::uint32_t half = (1u << (shift - 1));"),

    # Rotation.
    ("YaRN in ratio-0 layers", "model/model.h", "config_.role(layer).ratio > 0 ? rope_compressed_", "true ? rope_compressed_"),
    ("no YaRN in ratio-1 layers", "model/model.h", "config_.role(layer).ratio > 0 ? rope_compressed_",
     "config_.role(layer).ratio > 1 ? rope_compressed_"),
    ("YaRN bound at half the width", "model/rope_tables.cc", "static_cast<double>(rope_dim - 1)",
     "static_cast<double>(rope_dim / 2 - 1)"),
    ("q not rotated", R + "project.cc",
     "rotate(q + std::int64_t{h} * c.head_dim, c.head_dim, *a.layer.rope, pos, Turn::kForward);", "q[0] = q[0];"),
    ("window row not rotated", R + "project.cc", "rotate(kv, c.head_dim, *a.layer.rope, pos, Turn::kForward);", ""),
    ("group at its last position", R + "compress.cc", "const std::int64_t group_pos = group * ratio;",
     "const std::int64_t group_pos = group * ratio + ratio - 1;"),
    ("index key from the rotated latent", R + "compress.cc",
     "            linear(w.indexer_wk, 0, c.index_head_dim, latent, key, buffers_.linear);",
     "            rotate(latent, c.head_dim, *a.layer.rope, group_pos, Turn::kForward);\n"
     "            linear(w.indexer_wk, 0, c.index_head_dim, latent, key, buffers_.linear);\n"
     "            rotate(latent, c.head_dim, *a.layer.rope, group_pos, Turn::kInverse);"),
    ("index key not rotated", R + "compress.cc",
     "rotate(key, c.index_head_dim, *a.layer.rope, group_pos, Turn::kForward);", ""),
    ("compressed row not rotated", R + "compress.cc",
     "rotate(latent, c.head_dim, *a.layer.rope, group_pos, Turn::kForward);", ""),
    ("index query not rotated", R + "index_query.cc",
     "rotate(head, c.index_head_dim, *a.layer.rope, pos, Turn::kForward);", ""),
    ("inverse rotation left out", R + "output.cc", "Turn::kInverse", "Turn::kForward"),

    # Quantisers.
    ("fp8 scale not a power of two", "numeric/rows.h", "const float scale = pow2_ceil(amax / kE4m3Max);",
     "const float scale = amax / kE4m3Max;"),
    ("fp8 floor", "numeric/rows.h", "constexpr float kFp8AmaxFloor = 1e-4f;", "constexpr float kFp8AmaxFloor = 1e-5f;"),
    ("compressed floor", "numeric/rows.h", "constexpr float kCompressedAmaxFloor = 6.0f * 0x1p-9f;",
     "constexpr float kCompressedAmaxFloor = 6.0f * 0x1p-8f;"),
    ("compressed values divided by the unrounded scale", "numeric/rows.h",
     "const float scale = scales[b] == kE4m3Nan ? 1.0f : e4m3_to_f32(scales[b]);",
     "const float scale = scales[b] == kE4m3Nan ? 1.0f : block_amax(block, kCompressedBlock, kCompressedAmaxFloor) / kE2m1Max;"),
    ("e2m1 tie at 5 goes up", "numeric/e2m1.h", "if (magnitude > 5.0f) code = 7;", "if (magnitude >= 5.0f) code = 7;"),
    ("e2m1 tie at 0.25 goes up", "numeric/e2m1.h", "if (magnitude > 0.25f) code = 1;", "if (magnitude >= 0.25f) code = 1;"),
    ("nibbles swapped", "numeric/rows.h", "codes[i / 2] = static_cast<std::uint8_t>(low | (high << 4));",
     "codes[i / 2] = static_cast<std::uint8_t>(high | (low << 4));"),
    ("q8 halves to even", "numeric/q8.h", "std::round(to_f32(block[i]) / d)", "std::nearbyint(to_f32(block[i]) / d)"),
    ("fp8 scales of wo_a counted from the group's first row", R + "linear.cc",
     "    const std::uint8_t *scales = w.scales + row / kFp8WeightBlock * w.scale_cols();\n    for",
     "    const std::uint8_t *scales = w.scales + row % (w.rows / 2) / kFp8WeightBlock * w.scale_cols();\n    for"),

    # Compression and selection.
    ("softmax of the group over the wrong gate", R + "compress.cc", "float *gate = kv + std::int64_t{ratio} * c.head_dim;",
     "float *gate = kv;"),
    ("group visible one token early", R + "select.cc", "const std::int64_t n_visible = groups_among(view.pos + 1, role.ratio);",
     "const std::int64_t n_visible = std::min(groups_among(view.pos + 2, role.ratio), groups_among(span.start_pos + span.n_tokens, role.ratio));"),
    ("newest block not pinned", R + "select.cc",
     "*end = {std::numeric_limits<float>::infinity(), static_cast<std::int32_t>(newest)};",
     "*end = ranking[n_blocks - 1];\n        end->score = std::max(end->score, -3e38f);\n"
     "        rank_stable(ranking, end - ranking + 1, n_kept);\n"
     "        n_kept = std::min<std::int64_t>(n_kept, end - ranking + 1);\n"
     "        write_ascending(ranking, n_kept, out, a.n_block_slots);\n        return;"),
    ("candidate source applies its own mask", R + "select.cc", "if (!a.layer.role->uses_candidates) {",
     "if (!a.layer.role->uses_candidates && !a.layer.role->is_candidate_source) {"),
    ("candidate blocks not applied", R + "select.cc", "if (!a.layer.role->uses_candidates) {", "if (true) {"),
    ("ties to the higher index", R + "rank.cc", "(a.score == b.score && a.index < b.index)",
     "(a.score == b.score && a.index > b.index)"),
    ("selection not in ascending order", R + "select.cc", "return a.index < b.index;", "return a.index > b.index;"),
    ("masked groups taken", R + "select.cc", "if (scores[j] > kMasked) ranking[n++] =", "if (true) ranking[n++] ="),

    # Attention and output.
    ("sink left out", R + "attend.cc", "denominator += total;", "denominator = total;"),
    ("window one short", R + "attend.cc", "view.pos - c.window_size + 1); pos <= view.pos",
     "view.pos - c.window_size + 2); pos <= view.pos"),
    ("window one long", R + "attend.cc", "view.pos - c.window_size + 1); pos <= view.pos",
     "view.pos - c.window_size); pos <= view.pos"),
    ("own token not attended to", R + "attend.cc", "pos <= view.pos; ++pos", "pos < view.pos; ++pos"),
    ("attention scale", "model/config.cc", "std::pow(double(head_dim), -0.5)", "std::pow(double(head_dim), -0.49)"),
    ("index weight scale", "model/config.cc", "std::pow(double(index_n_heads), -0.5)", "1.0"),
    ("wo_a: every group reads the first slice", R + "output.cc", "o + g * c.o_group_width()", "o"),
    ("ring written by position % (window - 1)", R + "project.cc", "span.window.row((span.start_pos + i) % window)",
     "span.window.row((span.start_pos + i) % (window > 1 ? window - 1 : 1))"),

    # The cpu backend.
    ("cpu: exponent of fp8 activations", C + "linear.cc", "exponent = largest - 127;", "exponent = largest - 126;"),
    ("cpu: odd values meet even ones", C + "dot.cc", "hn::Load(F(), x + 8 + kN * part), acc[part]",
     "hn::Load(F(), x + kN * part), acc[part]"),
    ("cpu: q2_k blocks of both parities in one sum", C + "q2k.cc", "(t * 2 + b % 2)", "(t * 2)"),
    ("cpu: sink left out", C + "attend_rows.cc", "(sink > -kInfinity ? of_sink : 0.0f) + ", ""),
    ("cpu: index score without relu", C + "score.cc",
     "hn::IfThenZeroElse(hn::Lt(rounded, hn::Zero(f)), rounded)", "rounded"),
    ("cpu: index score, product not rounded", C + "score.cc", "round_bf16_lanes(hn::Mul(positive, hn::Set(f, weight)))",
     "hn::Mul(positive, hn::Set(f, weight))"),
    ("cpu: one tie too many", C + "rank.cc", "n_ties-- <= 0", "n_ties-- < 0"),
    ("cpu: group at its last position", C + "compress.cc", "const std::int64_t group_pos = group * ratio;",
     "const std::int64_t group_pos = group * ratio + ratio - 1;"),
    ("cpu: every wo_a group reads the first slice", C + "output.cc", "&o, g,", "&o, 0,"),
    ("cpu: a row's sum depends on the number of tokens", C + "dot.cc",
     "multiply_panel<2>(a.panel, x + t * kBlockCols, n_cols, b == 0,",
     "multiply_panel<2>(a.panel, x + t * kBlockCols, n_cols, true,"),
    ("cpu: threads skip work", C + "pool.h", "w.next.fetch_add(1,", "w.next.fetch_add(2,"),
    ("cpu: threads share scratch memory", C + "stages.h", "std::size_t(slot) * scratch_bytes_",
     "std::size_t(slot / 2) * scratch_bytes_"),

    # Steps.
    ("position not advanced", "forward/step.cc", "span.seq->layer(layer).position = span.end_pos();", ""),
    ("order of layers not checked", "forward/step.cc", "DS41_CHECK(layer > last_layer,", "DS41_CHECK(true,"),
    ("source not checked", "forward/step.cc", "DS41_CHECK(role.is_kv_source || ran", "DS41_CHECK(true || ran"),
    ("over steps not noticed", "forward/step.cc", "return span.claim != span.seq->current_claim();", "return false;"),
    ("start position not checked", "forward/step.cc", "DS41_CHECK(spans[s].start_pos == position,", "DS41_CHECK(true,"),
]
