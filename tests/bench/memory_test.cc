// Arenas, and that a plain read touches every byte once whatever the threads.
#include "memory.h"
#include "page_cache.h"
#include "plain_read.h"

#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>

using namespace bench;

namespace {

/// The specification: little-endian words, the last one filled up with zeros.
uint64_t combine_slowly(std::span<const std::byte> bytes) {
    uint64_t combined = 0;
    for (size_t i = 0; i < bytes.size(); ++i)
        combined ^= static_cast<uint64_t>(bytes[i]) << (8 * (i % sizeof(uint64_t)));
    return combined;
}

/// A file of that many bytes that is gone with the test.
class TemporaryFile {
public:
    explicit TemporaryFile(size_t n_bytes) {
        const char *folder = std::getenv("TMPDIR");
        path = std::string(folder ? folder : "/tmp") + "/ds41-bench-test-XXXXXX";
        const int descriptor = mkstemp(path.data());
        REQUIRE(descriptor >= 0);
        close(descriptor);
        std::ofstream(path, std::ios::binary) << std::string(n_bytes, 'x');
    }
    ~TemporaryFile() { unlink(path.c_str()); }

    std::string path;
};

} // namespace

TEST_CASE("an arena hands out aligned noise, and no byte twice") {
    constexpr size_t kBytes = 3 << 20;
    Arena arena(kBytes);
    const auto first = arena.take(100), second = arena.take(kBytes / 2);
    CHECK(reinterpret_cast<uintptr_t>(first.data()) % (2 << 20) == 0);
    CHECK(reinterpret_cast<uintptr_t>(second.data()) % 64 == 0);
    CHECK(second.data() >= first.data() + first.size());
    CHECK(first.size() == 100);
    CHECK(second.size() == kBytes / 2);
    for (const std::byte *page = second.data(); page < second.data() + second.size(); page += 4096)
        CHECK(std::any_of(page, page + 64, [](std::byte byte) { return byte != std::byte(0); }));
    std::fill(second.begin(), second.end(), std::byte(0));
    CHECK(combine_slowly(first) != 0);
    CHECK(arena.huge_share() <= 1);
}

TEST_CASE("an arena that is exhausted, or larger than memory, is an error") {
    Arena arena(1 << 20);
    CHECK(arena.take(2 << 20).size() == 2 << 20); // whole pages
    CHECK_THROWS_AS(arena.take(1), std::length_error);
    CHECK_THROWS_AS(Arena(size_t(1) << 60), std::runtime_error);
    CHECK_THROWS_AS(Arena(SIZE_MAX), std::runtime_error);
}

TEST_CASE("rotated copies are more than a gigabyte in all") {
    for (const size_t n_bytes : {size_t(1), size_t(41'500'000), size_t(1) << 28, size_t(1) << 40}) {
        CAPTURE(n_bytes);
        CHECK(n_rotated_copies(n_bytes) >= 2);
        CHECK(n_rotated_copies(n_bytes) * n_bytes > size_t(1) << 30);
    }
}

TEST_CASE("a plain read takes every byte once, with any number of threads") {
    Arena arena(2 << 20);
    const std::span<const std::byte> memory = arena.take(1 << 20);
    for (const int n_threads : {1, 2, 3, 7}) {
        PlainReader reader(n_threads);
        for (const size_t n_bytes : {0, 1, 7, 8, 63, 255, 1023, 1024, 1025, 4095, 4096, 4097, 12288, 100003, 1 << 19})
            for (const size_t begin : {0, 1, 8, 4099}) {
                CAPTURE(n_threads);
                CAPTURE(n_bytes);
                CAPTURE(begin);
                const auto bytes = memory.subspan(begin, n_bytes);
                CHECK(reader.read(bytes) == combine_slowly(bytes));
            }
    }
}

TEST_CASE("files are read to the length that is asked for, and no further") {
    const TemporaryFile file(100000);
    std::vector<char> buffer(4096);
    read_sequentially({{file.path, 100000}, {file.path, 4097}, {file.path, 0}}, buffer);
    CHECK(buffer[0] == 'x');
    CHECK_THROWS_WITH_AS(read_sequentially({{file.path, 100001}}, buffer), (file.path + ": has become shorter").c_str(),
                         std::runtime_error);
    CHECK_THROWS_AS(read_sequentially({{file.path + ".not", 1}}, buffer), std::system_error);
    CHECK_THROWS_AS(drop_from_cache(file.path + ".not"), std::system_error);
    CHECK_THROWS_AS(cached_share({{file.path + ".not", 1}}), std::system_error);
}

TEST_CASE("what was read is in the page cache, and may leave it") {
    const TemporaryFile file(100000), empty(0);
    std::vector<char> buffer(4096);
    read_sequentially({{file.path, 100000}}, buffer);
    CHECK(cached_share({{file.path, 100000}}) == 1);
    CHECK(cached_share({{empty.path, 0}}) == 0);
    drop_from_cache(file.path);
    const double share = cached_share({{file.path, 100000}});
    CHECK(share >= 0); // a file system in memory keeps all of it
    CHECK(share <= 1);
}
