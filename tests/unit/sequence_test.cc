// A sequence's memory: pages that grow with it, one address for each row, packed rows that come back as they were.
#include "sequence/sequence.h"

#include "numeric/rows.h"
#include "support/random.h"

#include <cstring>
#include <doctest/doctest.h>
#include <memory>

using namespace ds41;

namespace {

constexpr std::int64_t kMillion = 1048576;

ds41_config flash() {
    ds41_config config;
    ds41_config_flash(&config, sizeof(config));
    return config;
}

std::shared_ptr<const Model> model_of(const ds41_config &config) {
    ds41_model_options options;
    ds41_model_options_init(&options, sizeof(options));
    return std::make_shared<const Model>(config, options);
}

} // namespace

TEST_CASE("rows lie one after the other within a page, and a page is looked up for each 64") {
    const std::size_t row_bytes = compressed_row_bytes(512);
    PagedRows rows(host_memory(), row_bytes, kMillion);
    rows.reserve(130);
    const RowsView view = rows.view();
    CHECK(view.row(0) == view.pages[0]);
    CHECK(view.row(63) == view.pages[0] + 63 * row_bytes);
    CHECK(view.row(64) == view.pages[1]);
    CHECK(view.row(129) == view.pages[2] + row_bytes);
    CHECK(rows.n_bytes() == 3 * 64 * 288);
}

TEST_CASE("growing keeps the pages that there are") {
    PagedRows rows(host_memory(), 8, kMillion);
    rows.reserve(1);
    std::uint8_t *const first = rows.view().row(0);
    std::memset(first, 7, 8);
    rows.reserve(100000);
    CHECK(rows.view().row(0) == first);
    CHECK(first[7] == 7);
    rows.reserve(10);
    CHECK(rows.n_bytes() == rows.bytes_for(100000));
}

TEST_CASE("bytes are known before they are taken, and no page is larger than what can come") {
    for (const std::int64_t max_rows : {1, 6, 63, 64, 65, 128, 1000})
        for (const std::int64_t n : {0, 1, 6, 63, 64, 65, 128, 1000}) {
            if (n > max_rows) continue;
            PagedRows rows(host_memory(), 68, max_rows);
            CHECK(rows.n_bytes() == 0);
            const std::size_t expected = rows.bytes_for(n);
            rows.reserve(n);
            CAPTURE(max_rows);
            CAPTURE(n);
            CHECK(rows.n_bytes() == expected);
            CHECK(rows.n_bytes() <= static_cast<std::size_t>(max_rows) * 68);
            CHECK(rows.n_bytes() >= static_cast<std::size_t>(n) * 68);
        }
}

TEST_CASE("every row of every kind reads back the bf16 round trip that was written, across pages") {
    struct Kind {
        const char *name;
        int n;
        std::size_t row_bytes;
        void (*pack)(const Bf16 *, int, std::uint8_t *);
        void (*unpack)(const std::uint8_t *, int, Bf16 *);
    };
    const Kind kinds[] = {
        {"window", 512, window_row_bytes(512), pack_window_row, unpack_window_row},
        {"compressed", 512, compressed_row_bytes(512), pack_compressed_row, unpack_compressed_row},
        {"index key", 128, index_key_row_bytes(128), pack_index_key_row, unpack_index_key_row},
    };
    test::Random random(3);
    for (const Kind &kind : kinds) {
        CAPTURE(kind.name);
        const auto n = static_cast<std::size_t>(kind.n);
        constexpr std::size_t kRows = 150;
        PagedRows rows(host_memory(), kind.row_bytes, kMillion);
        std::vector<Bf16> round_trips;
        for (std::size_t r = 0; r < kRows; ++r) {
            const std::vector<Bf16> values = random.bf16_row(kind.n, std::ldexp(1.0, static_cast<int>(r % 40) - 20));
            rows.reserve(static_cast<std::int64_t>(r + 1));
            kind.pack(values.data(), kind.n, rows.view().row(static_cast<std::int64_t>(r)));
            std::vector<std::uint8_t> packed(kind.row_bytes);
            std::vector<Bf16> round_trip(n);
            kind.pack(values.data(), kind.n, packed.data());
            kind.unpack(packed.data(), kind.n, round_trip.data());
            round_trips.insert(round_trips.end(), round_trip.begin(), round_trip.end());
        }
        std::vector<Bf16> read(n);
        for (std::size_t r = 0; r < kRows; ++r) {
            kind.unpack(rows.view().row(static_cast<std::int64_t>(r)), kind.n, read.data());
            REQUIRE(std::memcmp(read.data(), round_trips.data() + r * n, n * sizeof(Bf16)) == 0);
        }
    }
}

TEST_CASE("V4.1-Flash: a sequence of 100 tokens takes kilobytes of cache pages, whatever the model could hold") {
    const auto model = model_of(flash());
    REQUIRE(model->config().max_seq_len == kMillion);
    Sequence seq(model);
    CHECK(seq.bytes().total() == 0);
    for (int layer = 0; layer < model->config().n_layers_total(); ++layer) seq.reserve(layer, 100);
    const SequenceBytes bytes = seq.bytes();
    // Three sources of 50 groups, one page each; layer 20 has 100 groups, two pages.
    CHECK(bytes.compressed == 5 * 64 * 288);
    CHECK(bytes.index_keys == 5 * 64 * 68);
    CHECK(bytes.group_state == 3 * 2 * 2 * 512 * sizeof(float));
    CHECK(bytes.window == 43 * 128 * 528); // 100 rows in each of 43 layers are two pages
}

TEST_CASE("V4.1-Flash: the growth per token is that of packed rows") {
    const auto model = model_of(flash());
    Sequence seq(model);
    for (int layer = 0; layer < model->config().n_layers_total(); ++layer) seq.reserve(layer, 128 * 1000);
    const SequenceBytes bytes = seq.bytes();
    CHECK(bytes.compressed + bytes.index_keys == 128000u * 5 / 2 * (288 + 68)); // 890 bytes a token
    CHECK(bytes.window == 43 * 128 * 528);
}

TEST_CASE("a reset forgets tokens and keeps pages; each way to end a step takes a new number") {
    const auto model = model_of(flash());
    Sequence seq(model);
    seq.reserve(2, 500);
    seq.layer(2).position = 500;
    const std::uint64_t before = seq.current_claim(), bytes = seq.bytes().total();
    seq.reset();
    CHECK(seq.layer(2).position == 0);
    CHECK(seq.bytes().total() == bytes);
    CHECK(seq.current_claim() != before);
}
