// The two selection rules: the stable one against its definition, torch's against an independent walk through the
// algorithm that torch runs.
#include "backend/reference/rank.h"
#include "support/random.h"

#include <algorithm>
#include <cmath>
#include <doctest/doctest.h>
#include <limits>
#include <vector>

using namespace ds41;
using namespace ds41::reference;

namespace {

using Set = std::vector<std::int32_t>;

std::vector<Scored> items_of(const std::vector<float> &scores) {
    std::vector<Scored> items;
    for (std::size_t i = 0; i < scores.size(); ++i) items.push_back({scores[i], static_cast<std::int32_t>(i)});
    return items;
}

Set winners(const std::vector<Scored> &items, std::int64_t k) {
    Set set;
    for (std::int64_t i = 0; i < k; ++i) set.push_back(items[static_cast<std::size_t>(i)].index);
    std::sort(set.begin(), set.end());
    return set;
}

Set stable(const std::vector<float> &scores, std::int64_t k) {
    auto items = items_of(scores);
    rank_stable(items.data(), static_cast<std::int64_t>(items.size()), k);
    return winners(items, k);
}

Set torch(const std::vector<float> &scores, std::int64_t k) {
    auto items = items_of(scores);
    rank_torch_cpu(items.data(), static_cast<std::int64_t>(items.size()), k);
    return winners(items, k);
}

// Repeatedly take the best that is left.
Set stable_by_definition(std::vector<float> scores, std::int64_t k) {
    Set set;
    std::vector<bool> taken(scores.size());
    for (; k > 0; --k) {
        std::size_t best = scores.size();
        for (std::size_t i = 0; i < scores.size(); ++i)
            if (!taken[i] && (best == scores.size() || scores[i] > scores[best])) best = i;
        taken[best] = true;
        set.push_back(static_cast<std::int32_t>(best));
    }
    std::sort(set.begin(), set.end());
    return set;
}

} // namespace

TEST_CASE("stable: equal scores go to the lower index") {
    CHECK(stable(std::vector<float>(100, 0.0f), 7) == Set{0, 1, 2, 3, 4, 5, 6});
    CHECK(stable({0.0f, -0.0f, 0.0f, -1.0f}, 2) == Set{0, 1});
    CHECK(stable({-1.0f, 0.0f, -2.0f, 0.0f, 0.0f}, 2) == Set{1, 3});
    CHECK(stable({-1.0f, 0.0f, -2.0f, 0.0f, 0.0f}, 4) == Set{0, 1, 3, 4});
}

TEST_CASE("stable: k of zero and of all") {
    CHECK(stable({3.0f, 1.0f}, 0).empty());
    CHECK(stable({3.0f, 1.0f}, 2) == Set{0, 1});
    CHECK(stable({}, 0).empty());
}

TEST_CASE("stable equals its definition on rows full of ties") {
    test::Random random(1);
    for (int round = 0; round < 400; ++round) {
        std::vector<float> scores(static_cast<std::size_t>(random.between(1, 120)));
        const int distinct = random.between(1, 6);
        for (float &score : scores) score = static_cast<float>(random.below(distinct)) - 1.0f;
        const auto k = static_cast<std::int64_t>(random.between(0, static_cast<int>(scores.size())));
        CAPTURE(round);
        CHECK(stable(scores, k) == stable_by_definition(scores, k));
    }
}

TEST_CASE("torch: without ties both rules agree") {
    REQUIRE(has_torch_cpu_ranking());
    test::Random random(2);
    for (const std::size_t n : {1u, 2u, 3u, 17u, 64u, 65u, 1000u, 5000u}) {
        std::vector<float> scores(n);
        for (std::size_t i = 0; i < n; ++i) scores[i] = static_cast<float>(i);
        for (std::size_t i = n; i > 1; --i)
            std::swap(scores[i - 1], scores[static_cast<std::size_t>(random.below(static_cast<int>(i)))]);
        for (const std::int64_t k :
             {std::int64_t{1}, static_cast<std::int64_t>((n + 1) / 2), static_cast<std::int64_t>(n)}) {
            CAPTURE(n);
            CAPTURE(k);
            CHECK(torch(scores, k) == stable(scores, k));
        }
    }
}

TEST_CASE("torch: NaN ranks first, and ties fall as the algorithm leaves them") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    CHECK(torch({1.0f, nan, 2.0f, 3.0f}, 1) == Set{1});
    CHECK(torch({1.0f, nan, 2.0f, 3.0f}, 2) == Set{1, 3});
    // Three or fewer are sorted by insertion, which is stable.
    CHECK(torch({0.0f, 0.0f, 0.0f}, 2) == Set{0, 1});
    // Partial sort keeps a heap of the first k and replaces its top by strictly better ones only.
    std::vector<float> flat(640, 0.0f);
    CHECK(torch(flat, 10) == Set{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
    // Selection by partition: of 12 equal scores, the median of three moves and halves swap; torch itself returns this
    // set.
    CHECK(torch(std::vector<float>(12, 0.0f), 6) != Set{0, 1, 2, 3, 4, 5});
}
