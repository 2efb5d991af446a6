// Entries of page tables: those that are given are written, and nothing else.
#include "pages/launch.h"

#include "paged_step.h"
#include "simt/engine.h"

using namespace ds41;
using namespace ds41::kernels;
using namespace ds41::test;

TEST_CASE("pages: the given entries of tables are written") {
    static std::uint8_t page[kMaxPageWrites];
    for (const int n : {0, 1, 2, 31, 33, kMaxPageWrites}) {
        CAPTURE(n);
        // Every third entry of a table, from the last to the first.
        Array<std::uint8_t *> table(3 * kMaxPageWrites);
        const std::vector<std::uint8_t *> before = table.get();
        WritePagesParams p{};
        p.n = n;
        for (int i = 0; i < kMaxPageWrites; ++i)
            p.writes[i] = {&table[static_cast<std::size_t>(3 * (63 - i))], page + i};
        simt::take_counts();
        REQUIRE(launch_write_pages(nullptr, p) == 0);
        const simt::Counts counts = simt::take_counts();
        CHECK(counts.n_launches == (n > 0 ? 1 : 0));
        CHECK(counts.bytes_written == static_cast<std::uint64_t>(n) * sizeof(std::uint8_t *));
        for (int i = 0; i < 3 * kMaxPageWrites; ++i) {
            CAPTURE(i);
            const int which = 63 - i / 3;
            const bool is_given = i % 3 == 0 && which < n;
            CHECK(table[static_cast<std::size_t>(i)] ==
                  (is_given ? page + which : before[static_cast<std::size_t>(i)]));
        }
    }
}
