// Index scores: the kernel against lib/numeric's rows and the sums of the reference, bit for bit.
#include "paged_step.h"
#include "score/key.cuh"
#include "score/launch.h"
#include "support/compare.h"

#include <limits>

using namespace ds41;
using namespace ds41::kernels;
using namespace ds41::test;

namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

struct Case {
    const char *name;
    int n_heads, head_dim, ratio;
    Spans spans;
    int block_size = 0; // of layers that use candidates
    int n_block_slots = 0;
};

struct Scene {
    Case shape;
    Array<Token> tokens;
    Array<SpanRows> span_rows;
    std::vector<Pages> keys;
    Array<std::uint8_t> iq;
    Array<Bf16> weights;
    Array<std::int32_t> blocks;

    std::int64_t n_visible(int token) const { return (tokens[std::size_t(token)].pos + 1) / shape.ratio; }
    std::int64_t n_groups(int token) const {
        return shape.spans[std::size_t(tokens[std::size_t(token)].span)].end_pos() / shape.ratio;
    }
    std::int64_t n_groups_max() const {
        std::int64_t n = 0;
        for (const Span &span : shape.spans) n = std::max(n, span.end_pos() / shape.ratio);
        return n;
    }
    std::int64_t n_columns_max() const {
        return shape.block_size ? std::int64_t{shape.n_block_slots} * shape.block_size : n_groups_max();
    }
    std::size_t row_bytes() const { return index_key_row_bytes(shape.head_dim); }
};

// Places without a token behind the step's last, with nothing but NaN for them.
void pad(Scene &scene, int n_more) {
    const auto more = static_cast<std::size_t>(n_more), heads = static_cast<std::size_t>(scene.shape.n_heads);
    scene.tokens = padded(scene.tokens, n_more);
    scene.iq = extended(scene.iq, more * heads * scene.row_bytes());
    scene.weights = extended(scene.weights, more * heads);
    if (scene.shape.block_size)
        scene.blocks = extended(scene.blocks, more * static_cast<std::size_t>(scene.shape.n_block_slots));
}

// Ascending, at most `n_slots` of those that the token sees; every third token keeps none, every other one the last.
std::vector<std::int32_t> random_blocks(Random &random, std::int64_t n_blocks, int n_slots, int token) {
    std::vector<std::int32_t> kept;
    if (token % 3 != 2) {
        for (std::int32_t b = 0; b < n_blocks; ++b)
            if (random.below(3) > 0 || (token % 2 == 0 && b == n_blocks - 1)) kept.push_back(b);
        while (static_cast<int>(kept.size()) > n_slots)
            kept.erase(kept.begin() + random.below(static_cast<int>(kept.size())));
    }
    kept.resize(static_cast<std::size_t>(n_slots), -1);
    return kept;
}

Scene make_scene(Random &random, const Case &shape) {
    Scene scene{shape,         tokens_of(shape.spans), span_rows_of(shape.spans), {}, Array<std::uint8_t>(),
                Array<Bf16>(), Array<std::int32_t>()};
    const std::size_t n = scene.tokens.size(), heads = static_cast<std::size_t>(shape.n_heads);
    for (std::size_t s = 0; s < shape.spans.size(); ++s) {
        const std::int64_t n_groups = shape.spans[s].end_pos() / shape.ratio;
        scene.keys.emplace_back(n_groups, scene.row_bytes());
        // Products of all blocks' scales lie within 2^6, so that a sum in any order is exact in f32.
        for (std::int64_t j = 0; j < n_groups; ++j)
            pack_index_key_row(uneven_row(random, shape.head_dim, kIndexKeyBlock, 2).data(), shape.head_dim,
                               scene.keys.back().row(j));
        scene.span_rows[s].index_keys = scene.keys.back().table();
    }
    scene.iq = Array<std::uint8_t>(n * heads * scene.row_bytes());
    for (std::size_t i = 0; i < n * heads; ++i)
        pack_index_key_row(uneven_row(random, shape.head_dim, kIndexKeyBlock, 1).data(), shape.head_dim,
                           scene.iq.data() + i * scene.row_bytes());
    scene.weights = random.bf16_row(static_cast<int>(n * heads), 0.1);
    std::vector<std::int32_t> blocks;
    for (std::size_t t = 0; t < n && shape.block_size; ++t) {
        const std::int64_t n_blocks = (scene.n_visible(static_cast<int>(t)) + shape.block_size - 1) / shape.block_size;
        const auto kept = random_blocks(random, n_blocks, shape.n_block_slots, static_cast<int>(t));
        blocks.insert(blocks.end(), kept.begin(), kept.end());
    }
    scene.blocks = blocks;
    return scene;
}

struct Scores {
    std::vector<std::vector<std::uint16_t>> keys; // by token and column
    std::vector<std::vector<float>> tap;          // by token and group of the widest span

    bool operator==(const Scores &o) const {
        if (keys != o.keys || tap.size() != o.tap.size()) return false;
        for (std::size_t t = 0; t < tap.size(); ++t)
            if (!same_bits(tap[t], o.tap[t])) return false;
        return true;
    }
};

// Columns that are scored, or masked, in order: their groups.
std::vector<std::int64_t> columns_of(const Scene &scene, int token) {
    std::vector<std::int64_t> groups;
    if (scene.tokens[static_cast<std::size_t>(token)].span == kNoSpan) return groups;
    if (!scene.shape.block_size) {
        for (std::int64_t j = 0; j < scene.n_visible(token); ++j) groups.push_back(j);
        return groups;
    }
    for (int slot = 0; slot < scene.shape.n_block_slots; ++slot) {
        const std::int32_t block = scene.blocks[static_cast<std::size_t>(token * scene.shape.n_block_slots + slot)];
        if (block < 0) break;
        for (int k = 0; k < scene.shape.block_size; ++k)
            groups.push_back(std::int64_t{block} * scene.shape.block_size + k);
    }
    return groups;
}

Scores expected_scores(const Scene &scene) {
    const Case &shape = scene.shape;
    const auto dim = static_cast<std::size_t>(shape.head_dim), heads = static_cast<std::size_t>(shape.n_heads);
    Scores result;
    std::vector<Bf16> queries(heads * dim), key(dim);
    for (int t = 0; t < static_cast<int>(scene.tokens.size()); ++t) {
        const std::size_t first = static_cast<std::size_t>(t) * heads;
        for (std::size_t h = 0; h < heads; ++h)
            unpack_index_key_row(scene.iq.data() + (first + h) * scene.row_bytes(), shape.head_dim,
                                 queries.data() + h * dim);
        result.keys.emplace_back();
        result.tap.emplace_back(static_cast<std::size_t>(scene.n_groups_max()), kMasked);
        if (scene.tokens[std::size_t(t)].span == kNoSpan) continue;
        const Pages &keys = scene.keys[static_cast<std::size_t>(scene.tokens[std::size_t(t)].span)];
        for (const std::int64_t group : columns_of(scene, t)) {
            if (group >= scene.n_visible(t)) {
                result.keys.back().push_back(kNeverTaken);
                continue;
            }
            unpack_index_key_row(keys.row(group), shape.head_dim, key.data());
            float sum = 0.0f;
            for (std::size_t h = 0; h < heads; ++h) {
                float dot = 0.0f;
                for (std::size_t e = 0; e < dim; ++e) dot += to_f32(queries[h * dim + e]) * to_f32(key[e]);
                dot = round_bf16(dot);
                if (dot < 0.0f) dot = 0.0f;
                sum += round_bf16(dot * to_f32(scene.weights[first + h]));
            }
            result.tap.back()[static_cast<std::size_t>(group)] = round_bf16(sum);
            result.keys.back().push_back(sort_key(to_bf16(sum)));
        }
    }
    return result;
}

Scores run(const Scene &scene, const std::vector<int> &tiles, std::int64_t n_columns_max, bool tapped = true) {
    const Case &shape = scene.shape;
    Scores result;
    std::int32_t first = 0;
    for (const int n : tiles) {
        const auto at = static_cast<std::size_t>(first * shape.n_heads),
                   width = static_cast<std::size_t>(n * shape.n_heads);
        const Array<std::uint8_t> iq(scene.iq.get(at * scene.row_bytes(), width * scene.row_bytes()));
        const Array<Bf16> weights(scene.weights.get(at, width));
        const auto stride = static_cast<std::size_t>((scene.n_columns_max() + 7) / 8 * 8),
                   stride_tap = static_cast<std::size_t>(scene.n_groups_max());
        const Array<std::uint16_t> keys(static_cast<std::size_t>(n) * stride);
        const Array<float> tap(static_cast<std::size_t>(n) * stride_tap);
        ScoreParams p{};
        p.tokens = scene.tokens.data();
        p.spans = scene.span_rows.data();
        p.first = first;
        p.n = n;
        p.ratio = shape.ratio;
        p.index_n_heads = shape.n_heads;
        p.index_head_dim = shape.head_dim;
        p.iq = iq.data();
        p.weights = weights.data();
        p.blocks = shape.block_size ? scene.blocks.data() : nullptr;
        p.n_block_slots = shape.block_size ? shape.n_block_slots : 5; // of no array: nobody looks
        p.block_size = shape.block_size;
        p.n_columns_max = n_columns_max;
        p.keys = keys.data();
        p.stride_keys = static_cast<std::int64_t>(stride);
        p.tap = tapped ? tap.data() : nullptr;
        p.stride_tap = static_cast<std::int64_t>(stride_tap);
        REQUIRE_LAUNCHES(launch_score(nullptr, p));
        for (int i = 0; i < n; ++i) {
            const std::size_t n_columns = columns_of(scene, first + i).size();
            result.keys.push_back(keys.get(static_cast<std::size_t>(i) * stride, n_columns));
            const auto rest = keys.get(static_cast<std::size_t>(i) * stride + n_columns, stride - n_columns);
            CHECK(std::all_of(rest.begin(), rest.end(), [](std::uint16_t key) { return key == 0xffff; }));
            result.tap.push_back(tap.get(static_cast<std::size_t>(i) * stride_tap, stride_tap));
        }
        first += n;
    }
    return result;
}

void check_same(const Scores &actual, const Scores &expected) {
    REQUIRE(actual.keys.size() == expected.keys.size());
    for (std::size_t t = 0; t < expected.keys.size(); ++t) {
        CAPTURE(t);
        CHECK(actual.keys[t] == expected.keys[t]);
        // -0 is 0: the sign of a product of zeros is nobody's business.
        CHECK(close(actual.tap[t], expected.tap[t], Tolerance{}));
    }
}

const Case kCases[] = {
    {"one key", 1, 32, 1, {{0, 1}}},
    {"no group complete", 2, 32, 2, {{0, 1}}},
    {"production heads, more than one tile of keys", 32, 128, 1, {{298, 2}}},
    {"production heads, ratio 2, several sequences", 32, 128, 2, {{0, 3}, {130, 1}, {61, 4}}},
    {"rows that are not words", 3, 96, 1, {{5, 3}, {127, 1}}},
    {"rows of two bytes more", 5, 64, 3, {{200, 8}}},
    {"5 blocks", 33, 160, 1, {{30, 2}}},
    {"8 blocks", 7, 256, 1, {{140, 1}, {0, 2}}},
    {"8 blocks, many heads", 70, 256, 1, {{20, 2}}},
    {"keys of any size", 3, 288, 1, {{129, 3}}},
    {"a long key of whole words", 2, 512, 2, {{10, 2}}},
    {"more heads than are staged", 210, 32, 1, {{260, 2}}},
    {"9 tokens, of which some see nothing", 2, 32, 4, {{0, 9}}},
    {"16 sequences",
     2,
     64,
     2,
     {{0, 1},
      {1, 1},
      {2, 1},
      {3, 1},
      {4, 1},
      {5, 1},
      {6, 1},
      {70, 1},
      {8, 1},
      {9, 1},
      {255, 1},
      {11, 1},
      {12, 1},
      {13, 1},
      {513, 1},
      {15, 1}}},
    {"candidates", 32, 128, 1, {{330, 2}, {75, 1}}, 8, 24},
    {"candidates: more slots than blocks", 2, 32, 2, {{40, 9}, {3, 4}}, 8, 40},
    {"candidates: blocks of one", 3, 64, 1, {{300, 3}}, 1, 290},
    {"candidates: blocks of three", 3, 96, 1, {{500, 4}}, 3, 100},
    {"candidates: blocks over a page", 2, 32, 1, {{1000, 2}}, 100, 5},
    {"candidates: keys of any size", 2, 288, 1, {{150, 4}}, 8, 12},
};

} // namespace

TEST_SUITE_BEGIN("kernels");

TEST_CASE("sort key: every bf16 score, in the order of scores") {
    Tally tally;
    std::vector<std::pair<float, std::uint16_t>> scores;
    for (unsigned bits = 0; bits < 0x10000; ++bits) {
        const Bf16 score{static_cast<std::uint16_t>(bits)};
        const float value = to_f32(score);
        if (is_nan(value) || value == kMasked)
            tally.expect(sort_key(score) == kNeverTaken, "%04x is taken", bits);
        else
            scores.emplace_back(value, sort_key(score));
    }
    std::sort(scores.begin(), scores.end());
    tally.expect(scores.front().second > kNeverTaken, "the least is not taken");
    for (std::size_t i = 1; i < scores.size(); ++i) {
        const auto &[a, key_a] = scores[i - 1];
        const auto &[b, key_b] = scores[i];
        tally.expect(a == b ? key_a == key_b : key_a < key_b, "%g has %u, %g has %u", double{a}, unsigned{key_a},
                     double{b}, unsigned{key_b});
    }
    CHECK(tally);
}

TEST_CASE("score: every shape, in tiles of every size, for grids of every size") {
    Random random(701);
    for (const Case &shape : kCases) {
        CAPTURE(std::string(shape.name));
        const Scene scene = make_scene(random, shape);
        const Scores expected = expected_scores(scene);
        const int n = token_count(shape.spans);
        for (const auto &tiles : tilings(n)) {
            CAPTURE(tiles.size());
            check_same(run(scene, tiles, scene.n_columns_max()), expected);
        }
        // One block of columns goes over all of them; more than there are find nothing.
        check_same(run(scene, {n}, 1), expected);
        check_same(run(scene, {n}, scene.n_columns_max() + 1000), expected);
    }
}

TEST_CASE("score: the same bits for every order of blocks, with and without a tap") {
    Random random(702);
    for (const Case &shape : {kCases[3], kCases[14]}) {
        const Scene scene = make_scene(random, shape);
        const int n = token_count(shape.spans);
        const std::uint64_t seed = simt::seed();
        const Scores first = run(scene, {n}, scene.n_columns_max());
        for (const std::uint64_t other : {1u, 2u, 3u}) {
            simt::set_seed(other);
            CHECK(run(scene, {n}, scene.n_columns_max()) == first);
        }
        simt::set_seed(seed);
        CHECK(run(scene, {n}, scene.n_columns_max(), false).keys == first.keys);
    }
}

TEST_CASE("score: NaN, infinite and extreme scales, weights of every kind") {
    Random random(703);
    Scene scene = make_scene(random, {"", 3, 64, 1, {{40, 2}}});
    const std::size_t row_bytes = scene.row_bytes();
    const auto scale_of_key = [&](int group, int b) -> std::uint8_t & { return scene.keys[0].row(group)[32 + b]; };
    scale_of_key(3, 0) = kUe8m0Nan; // one block is enough
    scale_of_key(5, 1) = kUe8m0Nan;
    scale_of_key(7, 0) = scale_of_key(7, 1) = 0; // 2^-127
    scale_of_key(8, 0) = scale_of_key(8, 1) = 1;
    scale_of_key(9, 1) = 200;
    std::fill_n(scene.keys[0].row(10), row_bytes, std::uint8_t{0}); // zeros of 2^-127
    std::fill_n(scene.keys[0].row(11), row_bytes, std::uint8_t{0xff});
    scene.weights[0] = to_bf16(-0.0f);
    scene.weights[1] = to_bf16(-2.5f);
    SUBCASE("as they are") {}
    SUBCASE("a weight of NaN: all scores of its token") {
        scene.weights[4] = Bf16{0x7fc0};
    }
    SUBCASE("an infinite weight: infinities, and NaN where the dot product is zero") {
        scene.weights[4] = Bf16{0x7f80};
        scene.weights[2] = Bf16{0xff80};
    }
    SUBCASE("a query of NaN: of its token only") {
        scene.iq[row_bytes * 3 + 32] = kUe8m0Nan;
    }
    SUBCASE("a query of zeros") {
        std::fill_n(scene.iq.data() + row_bytes, row_bytes, std::uint8_t{0});
    }
    SUBCASE("zeros with signs") {
        for (std::size_t h = 0; h < 6; ++h) std::fill_n(scene.iq.data() + row_bytes * h, 32, std::uint8_t{0x88});
    }
    check_same(run(scene, {2}, 42), expected_scores(scene));
}

TEST_CASE("score: nothing is read or written for places without a token") {
    Random random(704);
    for (const Case &shape : kCases) {
        CAPTURE(std::string(shape.name));
        Scene scene = make_scene(random, shape);
        const int n = token_count(shape.spans);
        pad(scene, 3);
        const Scores expected = expected_scores(scene);
        check_same(run(scene, {n + 3}, scene.n_columns_max() + 300), expected);
        check_same(run(scene, {n, 3}, scene.n_columns_max(), true), expected);
        CHECK(run(scene, {n + 3}, 1, false).keys == expected.keys);
    }
}

TEST_CASE("score: nothing is launched for no tokens and for no columns") {
    ScoreParams p{};
    p.index_n_heads = 1;
    p.index_head_dim = 32;
    p.ratio = 1;
    CHECK(launch_score(nullptr, p) == 0);
    p.n = 1;
    CHECK(launch_score(nullptr, p) == 0);
}

TEST_SUITE_END();
