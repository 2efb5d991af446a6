// Medians and quartiles by their definition.
#include "statistics.h"

#include <doctest/doctest.h>

using namespace bench;

TEST_CASE("nothing is summarised to nothing") {
    CHECK(!summarize({}));
    CHECK(!summarize_ratios({}, {}));
}

TEST_CASE("a single value is its own median and quartiles") {
    const auto summary = summarize({3});
    REQUIRE(summary);
    CHECK(summary->median == 3);
    CHECK(summary->q1 == 3);
    CHECK(summary->q3 == 3);
    CHECK(summary->n == 1);
}

TEST_CASE("the median of an even count lies between the middle two, whatever the order") {
    const auto summary = summarize({8, 1, 4, 2});
    REQUIRE(summary);
    CHECK(summary->median == 3);
    CHECK(summary->q1 == 1.75); // a quarter of the way through 1 2 4 8: three quarters from 1 to 2
    CHECK(summary->q3 == 5);
    CHECK(summary->n == 4);
}

TEST_CASE("one wild value moves no median") {
    const auto summary = summarize({5, 5, 5, 5, 1e9});
    REQUIRE(summary);
    CHECK(summary->median == 5);
    CHECK(summary->q3 == 5);
}

TEST_CASE("ratios are taken within rounds that have both values") {
    const auto ratios = summarize_ratios({10, std::nullopt, 30, 40}, {5, 1, std::nullopt, 10});
    REQUIRE(ratios);
    CHECK(ratios->n == 2);
    CHECK(ratios->median == 3); // of 2 and 4
    CHECK(!summarize_ratios({1, std::nullopt}, {std::nullopt, 1}));
}

TEST_CASE("only values that are there are present") {
    CHECK(present({1, std::nullopt, 3}) == std::vector<double>{1, 3});
}
