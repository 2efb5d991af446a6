// The last step of every backend: a step's window rows go into the rings, the last window_size of each span.
#include "scene.h"

#include <algorithm>

using namespace ds41;
using namespace ds41::test;

TEST_CASE("commit_window: wraps, spans longer than the ring, several spans; other slots stay") {
    const struct {
        const char *name;
        int window;
        Spans spans;
    } cases[] = {
        {"one token", 5, {{0, 1}}},
        {"window of one", 1, {{0, 3}, {8, 1}}},
        {"wraps", 5, {{3, 4}}},
        {"exactly the ring", 5, {{0, 5}, {7, 5}}},
        {"longer than the ring", 5, {{2, 13}, {0, 6}}},
        {"several spans", 5, {{9, 1}, {0, 2}, {4, 7}, {1048575, 1}}},
        {"more than one page", 130, {{100, 60}, {0, 131}, {63, 3}}},
        {"page of 64", 64, {{63, 2}, {0, 64}}},
    };
    each_backend([&](const Backend &backend) {
        for (const auto &c : cases) {
            CAPTURE(std::string(c.name));
            Random random(600);
            Geometry g = kTiny;
            g.window = c.window;
            const TestLayer layer(backend, make_config(g, 2), kWindowLayer);
            const std::size_t row_bytes = packed_bytes(Packing::kWindow, g.head_dim);
            std::vector<std::uint8_t> rows(static_cast<std::size_t>(token_count(c.spans)) * row_bytes);
            for (auto &byte : rows) byte = random.byte();
            const Buffer<std::uint8_t> window_new(layer.memory(), rows);
            TestStep step(layer, c.spans);
            std::vector<std::vector<std::vector<std::uint8_t>>> expected; // by span and slot
            std::size_t token = 0;
            for (std::size_t s = 0; s < c.spans.size(); ++s) {
                expected.emplace_back();
                for (int slot = 0; slot < c.window; ++slot) { // what the ring held; half of it nothing
                    expected[s].push_back(
                        std::vector<std::uint8_t>(row_bytes, slot % 2 ? kPoison<std::uint8_t> : random.byte()));
                    step.sequence(s).window.set(slot, expected[s].back());
                }
                for (std::int64_t pos = c.spans[s].start_pos; pos < c.spans[s].end_pos(); ++pos, ++token)
                    expected[s][static_cast<std::size_t>(pos % c.window)] = slice(rows, token * row_bytes, row_bytes);
            }
            layer.create_stages(c.spans)->commit_window(step.view(), window_new.data());
            for (std::size_t s = 0; s < c.spans.size(); ++s)
                for (int slot = 0; slot < c.window; ++slot)
                    CHECK(step.sequence(s).window.get(slot) == expected[s][static_cast<std::size_t>(slot)]);
            CHECK(equal_bits(window_new.get(), rows));
        }
    });
}
