// Workspaces of every backend: as large as was announced, larger for more, and nothing before they are asked for.
#include "scene.h"

using namespace ds41;
using namespace ds41::test;

TEST_CASE("prepare: takes the bytes that were announced, and does not shrink") {
    each_backend([](const Backend &backend) {
        for (const Geometry &g : {kTiny, kOdd, kProduction}) {
            CAPTURE(std::string(g.name));
            const Config config(make_config(g, 1, 512));
            const auto stages = backend.create_stages({});
            CHECK(stages->n_bytes() == 0);
            const StageSizes small = {1, 0, 0, 1}, large = {64, 100000, 512, 128};
            const std::size_t needs_small = stages->needed_bytes(config, small),
                              needs_large = stages->needed_bytes(config, large);
            CHECK(needs_small <= needs_large);
            CHECK(stages->n_bytes() == 0); // a question takes nothing
            stages->prepare(config, small);
            CHECK(stages->n_bytes() == needs_small);
            stages->prepare(config, large);
            CHECK(stages->n_bytes() == needs_large);
            stages->prepare(config, small);
            CHECK(stages->n_bytes() == needs_large);
        }
    });
}

TEST_CASE("prepare: bounded by the step, not by the longest sequence that the configuration allows") {
    each_backend([](const Backend &backend) {
        const Config config(make_config(kProduction, 1, 512));
        const StageSizes sizes = {1, 1000, 512, 128};
        // 640 rows of 512 floats are 1.3 MB; for a million positions the scores alone would be 4.
        CHECK(backend.create_stages({})->needed_bytes(config, sizes) < (std::size_t{4} << 20));
    });
}
