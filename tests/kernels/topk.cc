// Selection of groups and of candidate blocks: the kernels against a stable sort.
#include "paged_step.h"
#include "score/key.cuh"
#include "topk/launch.h"

#include <functional>
#include <numeric>

using namespace ds41;
using namespace ds41::kernels;
using namespace ds41::test;

namespace {

using Keys = std::vector<std::uint16_t>;
using Indices = std::vector<std::int32_t>;

// The k best that may be taken, ascending.
Indices best_of(const Keys &keys, std::int64_t k) {
    Indices order;
    for (std::size_t i = 0; i < keys.size(); ++i)
        if (keys[i] != kNeverTaken) order.push_back(static_cast<std::int32_t>(i));
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return keys[static_cast<std::size_t>(a)] > keys[static_cast<std::size_t>(b)];
    });
    if (static_cast<std::int64_t>(order.size()) > k)
        order.resize(static_cast<std::size_t>(std::max<std::int64_t>(k, 0)));
    std::sort(order.begin(), order.end());
    return order;
}

Indices best_blocks(const Keys &keys, int k, int block_size) {
    if (keys.empty() || k <= 0) return {};
    Keys best;
    for (std::size_t i = 0; i < keys.size(); i += static_cast<std::size_t>(block_size)) {
        const auto end = std::min(keys.size(), i + static_cast<std::size_t>(block_size));
        best.push_back(*std::max_element(keys.begin() + static_cast<std::ptrdiff_t>(i),
                                         keys.begin() + static_cast<std::ptrdiff_t>(end)));
    }
    // The newest group's block has its place; the others compete for the rest.
    best.pop_back();
    Indices kept = best_of(best, k - 1);
    kept.push_back(static_cast<std::int32_t>(best.size()));
    return kept;
}

Indices padded(Indices indices, int n) {
    indices.resize(static_cast<std::size_t>(n), -1);
    return indices;
}

// ---- Rows of keys.

std::uint16_t any_key(Random &random) {
    return static_cast<std::uint16_t>(1 + random.below(0xffff));
}

const struct {
    const char *name;
    std::function<std::uint16_t(Random &, std::size_t)> key;
} kRows[] = {
    {"all different, as far as 16 bits go", [](Random &r, std::size_t) { return any_key(r); }},
    {"mostly zero scores", [](Random &r, std::size_t) { return r.below(4) ? std::uint16_t{0x8000} : any_key(r); }},
    {"all equal", [](Random &, std::size_t) { return std::uint16_t{0x8123}; }},
    {"three values of one upper half",
     [](Random &r, std::size_t) { return static_cast<std::uint16_t>(0x81fd + r.below(3)); }},
    {"values across a border of upper halves",
     [](Random &r, std::size_t) { return static_cast<std::uint16_t>(0x81fe + r.below(4)); }},
    {"few that may be taken", [](Random &r, std::size_t) { return r.below(40) ? kNeverTaken : any_key(r); }},
    {"none that may be taken", [](Random &, std::size_t) { return kNeverTaken; }},
    {"the least key that may be taken", [](Random &r, std::size_t) { return static_cast<std::uint16_t>(r.below(2)); }},
    {"the greatest", [](Random &r, std::size_t) { return static_cast<std::uint16_t>(0xffff - r.below(2)); }},
    {"rising", [](Random &, std::size_t i) { return static_cast<std::uint16_t>(1 + i / 7 % 0xffff); }},
    {"falling", [](Random &, std::size_t i) { return static_cast<std::uint16_t>(0xffff - i / 7 % 0xffff); }},
    {"the best side by side",
     [](Random &r, std::size_t i) {
         return static_cast<std::uint16_t>(i / 600 % 3 == 1 ? 0xf000 + r.below(9) : 0x9000 + r.below(9));
     }},
};

Keys make_row(Random &random, std::size_t kind, std::size_t n) {
    Keys keys(n);
    for (std::size_t i = 0; i < n; ++i) keys[i] = kRows[kind].key(random, i);
    return keys;
}

// Rows of a step's tokens, each as wide as its position says; what lies behind is the best of all keys.
struct Step {
    std::vector<Keys> rows;
    int ratio = 1;
    int n_padding = 0; // places without a token behind them

    std::size_t n_places() const { return rows.size() + static_cast<std::size_t>(n_padding); }

    Array<Token> tokens() const {
        std::vector<Token> result;
        for (const Keys &row : rows) {
            // The last position that sees no more, to catch a group that is not complete.
            const auto n = static_cast<std::int64_t>(row.size());
            result.push_back({static_cast<std::int32_t>(result.size()), 0, (n + 1) * ratio - 2});
        }
        return padded(Array<Token>(result), n_padding);
    }
    std::size_t stride() const {
        std::size_t widest = 0;
        for (const Keys &row : rows) widest = std::max(widest, row.size());
        return (widest + 7) / 8 * 8 + 8;
    }
    Array<std::uint16_t> keys(std::size_t first, std::size_t n) const {
        Array<std::uint16_t> result(n * stride());
        for (std::size_t i = 0; i < n && first + i < rows.size(); ++i)
            std::copy(rows[first + i].begin(), rows[first + i].end(), result.data() + i * stride());
        return result;
    }
};

Indices run_topk(const Step &step, const std::vector<int> &tiles, int k, int n_slots,
                 const Array<std::int32_t> *blocks = nullptr, int n_block_slots = 0, int block_size = 0) {
    const auto tokens = step.tokens();
    const Array<std::int32_t> groups(step.n_places() * static_cast<std::size_t>(n_slots));
    int first = 0;
    for (const int n : tiles) {
        const auto keys = step.keys(static_cast<std::size_t>(first), static_cast<std::size_t>(n));
        TopkParams p{};
        p.tokens = tokens.data();
        p.first = first;
        p.n = n;
        p.ratio = step.ratio;
        p.keys = keys.data();
        p.stride_keys = static_cast<std::int64_t>(step.stride());
        p.blocks = blocks ? blocks->data() : nullptr;
        p.n_block_slots = n_block_slots;
        p.block_size = block_size;
        p.index_topk = k;
        p.groups = groups.data();
        p.n_group_slots = n_slots;
        REQUIRE_LAUNCHES(launch_topk(nullptr, p));
        first += n;
    }
    return groups.get();
}

Indices run_blocks(const Step &step, const std::vector<int> &tiles, int k, int block_size, int n_slots) {
    const auto tokens = step.tokens();
    const Array<std::int32_t> blocks(step.n_places() * static_cast<std::size_t>(n_slots));
    int first = 0;
    for (const int n : tiles) {
        const auto keys = step.keys(static_cast<std::size_t>(first), static_cast<std::size_t>(n));
        KeepBlocksParams p{};
        p.tokens = tokens.data();
        p.first = first;
        p.n = n;
        p.ratio = step.ratio;
        p.keys = keys.data();
        p.stride_keys = static_cast<std::int64_t>(step.stride());
        p.candidate_topk_blocks = k;
        p.candidate_block_size = block_size;
        p.blocks = blocks.data();
        p.n_block_slots = n_slots;
        REQUIRE_LAUNCHES(launch_keep_blocks(nullptr, p));
        first += n;
    }
    return blocks.get();
}

Indices row_of(const Indices &all, std::size_t row, int width) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(row) * width;
    return Indices(first, first + width);
}

} // namespace

TEST_SUITE_BEGIN("kernels");

TEST_CASE("topk: rows of every width and kind, every k") {
    Random random(711);
    const std::size_t kWidths[] = {0, 1, 2, 7, 8, 9, 31, 300, 512, 513, 2048, 4095, 4097, 5000};
    for (std::size_t kind = 0; kind < std::size(kRows); ++kind) {
        CAPTURE(std::string(kRows[kind].name));
        Step step;
        for (const std::size_t width : kWidths) step.rows.push_back(make_row(random, kind, width));
        for (const int k : {0, 1, 2, 7, 300, 512, 4096, 6000}) {
            CAPTURE(k);
            const int n_slots = std::max(k + random.below(3), 1);
            const Indices groups = run_topk(step, {static_cast<int>(step.rows.size())}, k, n_slots);
            for (std::size_t t = 0; t < step.rows.size(); ++t) {
                CAPTURE(step.rows[t].size());
                CHECK(row_of(groups, t, n_slots) == padded(best_of(step.rows[t], k), n_slots));
            }
        }
    }
}

TEST_CASE("topk: stretches of several vectors, and of more than a warp's") {
    Random random(712);
    for (const std::size_t width : {32768u, 32769u, 70001u, 1048577u}) {
        CAPTURE(width);
        for (const std::size_t kind : {0u, 1u, 2u, 5u, 6u, 9u, 10u, 11u}) {
            if (width > 100000 && kind != 0 && kind != 5 && kind != 11) continue;
            CAPTURE(std::string(kRows[kind].name));
            const Step step{{make_row(random, kind, width)}, 1};
            for (const int k : {1, 512, 5000}) {
                if (width > 100000 && k != 512) continue;
                CAPTURE(k);
                CHECK(run_topk(step, {1}, k, k) == padded(best_of(step.rows[0], k), k));
            }
        }
    }
}

TEST_CASE("topk: a token's groups depend on no other and on no order of blocks") {
    Random random(713);
    Step step;
    step.ratio = 3;
    for (int t = 0; t < 16; ++t)
        step.rows.push_back(make_row(random, static_cast<std::size_t>(t) % std::size(kRows),
                                     static_cast<std::size_t>(random.below(900))));
    const Indices expected = run_topk(step, {16}, 37, 40);
    for (std::size_t t = 0; t < 16; ++t) CHECK(row_of(expected, t, 40) == padded(best_of(step.rows[t], 37), 40));
    for (const auto &tiles : std::vector<std::vector<int>>{std::vector<int>(16, 1), {1, 2, 3, 8, 2}, {9, 7}})
        CHECK(run_topk(step, tiles, 37, 40) == expected);
    const std::uint64_t seed = simt::seed();
    for (const std::uint64_t other : {1u, 2u, 3u}) {
        simt::set_seed(other);
        CHECK(run_topk(step, {16}, 37, 40) == expected);
    }
    simt::set_seed(seed);
}

TEST_CASE("topk: fewer slots than k") {
    Random random(714);
    const Step step{{make_row(random, 0, 100)}, 1};
    CHECK(run_topk(step, {1}, 50, 20) == best_of(step.rows[0], 20));
    CHECK(run_blocks(step, {1}, 10, 8, 4) == best_blocks(step.rows[0], 4, 8));
}

TEST_CASE("topk: columns of candidate blocks become groups") {
    Random random(715);
    for (const int block_size : {1, 3, 8, 64}) {
        CAPTURE(block_size);
        const int n_slots = 700;
        Step step;
        Indices blocks;
        std::vector<Keys> columns;
        for (const int n_kept : {0, 1, 5, 511, 513, 699, 700}) {
            Indices kept;
            for (std::int32_t b = 0; static_cast<int>(kept.size()) < n_kept; ++b)
                if (random.below(2)) kept.push_back(b);
            const Indices slots = padded(kept, n_slots);
            blocks.insert(blocks.end(), slots.begin(), slots.end());
            // As wide as its columns; positions do not matter here.
            step.rows.push_back(make_row(random, static_cast<std::size_t>(random.below(6)),
                                         static_cast<std::size_t>(n_kept * block_size)));
        }
        const Array<std::int32_t> block_array(blocks);
        const int k = 100;
        const Indices groups = run_topk(step, {3, 4}, k, k, &block_array, n_slots, block_size);
        for (std::size_t t = 0; t < step.rows.size(); ++t) {
            CAPTURE(t);
            Indices expected = best_of(step.rows[t], k);
            for (std::int32_t &v : expected)
                v = blocks[t * n_slots + static_cast<std::size_t>(v / block_size)] * block_size + v % block_size;
            CHECK(row_of(groups, t, k) == padded(expected, k));
        }
    }
}

TEST_CASE("keep blocks: every block size and k; the newest group's block is always there") {
    Random random(716);
    for (const int block_size : {1, 3, 8, 16, 64}) {
        CAPTURE(block_size);
        for (std::size_t kind = 0; kind < std::size(kRows); ++kind) {
            CAPTURE(std::string(kRows[kind].name));
            Step step;
            step.ratio = 1 + static_cast<int>(kind % 3);
            for (const int width : {0, 1, 7, 8, 9, 63, 64, 65, 400, 4100})
                step.rows.push_back(make_row(random, kind, static_cast<std::size_t>(width)));
            // The newest block's scores are no scores: it stays all the same.
            Keys masked = make_row(random, kind, 200);
            std::fill(masked.end() - block_size, masked.end(), kNeverTaken);
            step.rows.push_back(masked);
            for (const int k : {0, 1, 2, 3, 20, 5000}) {
                CAPTURE(k);
                const int n_slots = std::max(std::min(k, 4100) + random.below(2), 1);
                const Indices blocks =
                    run_blocks(step, {6, static_cast<int>(step.rows.size()) - 6}, k, block_size, n_slots);
                for (std::size_t t = 0; t < step.rows.size(); ++t) {
                    CAPTURE(step.rows[t].size());
                    CHECK(row_of(blocks, t, n_slots) == padded(best_blocks(step.rows[t], k, block_size), n_slots));
                }
            }
        }
    }
}

TEST_CASE("keep blocks: as many blocks as a long context has") {
    Random random(717);
    for (const std::size_t kind : {0u, 1u, 2u}) {
        const Step step{{make_row(random, kind, 300003)}, 1};
        CHECK(run_blocks(step, {1}, 2048, 8, 2048) == padded(best_blocks(step.rows[0], 2048, 8), 2048));
    }
}

TEST_CASE("topk and keep blocks: nothing is read or written for places without a token") {
    Random random(718);
    for (const int ratio : {1, 2, 4}) {
        CAPTURE(ratio);
        Step step;
        step.ratio = ratio;
        for (const std::size_t width : {9u, 700u, 0u}) step.rows.push_back(make_row(random, 0, width));
        const Indices untouched(20, 0x5a5a5a5a);
        for (const int n_padding : {1, 2}) {
            step.n_padding = n_padding;
            for (const auto &tiles : {std::vector<int>{3 + n_padding}, std::vector<int>{3, n_padding}}) {
                const Indices groups = run_topk(step, tiles, 17, 20), blocks = run_blocks(step, tiles, 17, 8, 20);
                for (std::size_t t = 0; t < step.n_places(); ++t) {
                    CAPTURE(t);
                    const bool there = t < 3;
                    CHECK(row_of(groups, t, 20) == (there ? padded(best_of(step.rows[t], 17), 20) : untouched));
                    CHECK(row_of(blocks, t, 20) == (there ? padded(best_blocks(step.rows[t], 17, 8), 20) : untouched));
                }
                // Of candidate blocks, whose table has nothing of such a place either.
                Step columns = step;
                columns.rows.assign(3, make_row(random, 1, 24));
                const Array<std::int32_t> kept = extended(Array<std::int32_t>(Indices{2, 5, 9, 0, 1, 2, 7, 8, 9}),
                                                          3 * static_cast<std::size_t>(n_padding));
                const Indices of_blocks = run_topk(columns, tiles, 17, 20, &kept, 3, 8);
                for (std::size_t t = 3; t < step.n_places(); ++t) CHECK(row_of(of_blocks, t, 20) == untouched);
            }
        }
        Step none;
        none.n_padding = 2;
        CHECK(run_topk(none, {2}, 17, 20) == Indices(40, 0x5a5a5a5a));
        CHECK(run_blocks(none, {2}, 17, 8, 20) == Indices(40, 0x5a5a5a5a));
    }
}

TEST_CASE("topk and keep blocks: nothing is launched for no tokens and for no slots") {
    TopkParams p{};
    KeepBlocksParams q{};
    CHECK(launch_topk(nullptr, p) == 0);
    CHECK(launch_keep_blocks(nullptr, q) == 0);
    p.n = q.n = 1;
    CHECK(launch_topk(nullptr, p) == 0);
    CHECK(launch_keep_blocks(nullptr, q) == 0);
}

TEST_SUITE_END();
