// Bytes of a checkpoint that are not these layers' are never read: pages of a hole in a file are in the system's page
// cache only once somebody has read them.
#include "loading.h"
#include "made_files.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

using namespace checkpoint_test;
namespace fs = std::filesystem;

namespace {

constexpr size_t kHole = 64u << 20; // the last bytes of the file, as make_files.py writes it

// Pages of the hole that the system holds; -1 where it does not say.
int64_t n_resident(const std::string &path) {
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return -1;
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const auto size = static_cast<size_t>(fs::file_size(path));
    const size_t begin = (size - kHole + page - 1) / page * page;
    void *map = mmap(nullptr, size - begin, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(begin));
    close(fd);
    if (map == MAP_FAILED) return -1;
    std::vector<unsigned char> pages((size - begin + page - 1) / page);
    int64_t n = mincore(map, size - begin, pages.data()) == 0 ? 0 : -1;
    if (n == 0)
        for (const unsigned char resident : pages) n += resident & 1;
    munmap(map, size - begin);
    return n;
}

// A copy with a fresh hole: whoever read the original's, a backup or another test, does not count.
std::string fresh_copy(const fs::path &from, const fs::path &to) {
    std::ifstream in(from, std::ios::binary);
    std::vector<char> head(static_cast<size_t>(fs::file_size(from)) - kHole);
    in.read(head.data(), static_cast<std::streamsize>(head.size()));
    std::ofstream(to, std::ios::binary).write(head.data(), static_cast<std::streamsize>(head.size()));
    fs::resize_file(to, head.size() + kHole);
    return to.string();
}

} // namespace

TEST_CASE("foreign tensors are never read") {
    std::string folder = (fs::temp_directory_path() / "ds41-untouched-XXXXXX").string();
    REQUIRE(mkdtemp(folder.data()));
    for (const std::string name : {"hole/model.safetensors", "hole.gguf"}) {
        const std::string path = fresh_copy(file(name), fs::path(folder) / fs::path(name).filename());
        fs::copy_file(file("hole/config.json"), fs::path(folder) / "config.json", fs::copy_options::overwrite_existing);
        CAPTURE(name);
        const int64_t before = n_resident(path);
        if (before != 0) { // tmpfs before Linux 5.2, gVisor
            MESSAGE("the system does not tell which pages it holds: ", before);
            continue;
        }
        for (const uint32_t flags : {0u, DS41_LOAD_MAP, DS41_LOAD_EXPAND_FP8})
            for (const int32_t n_threads : {1, 4}) {
                CAPTURE(flags);
                CAPTURE(n_threads);
                ds41_load_options options = default_options();
                options.flags = flags;
                options.n_threads = n_threads;
                const Result result = load(path, options);
                INFO(result.message);
                REQUIRE(result.status == DS41_STATUS_OK);
                CHECK(!outputs_of(result.model.get()).empty());
                // The system itself reads ahead a little of what follows the last weight.
                CHECK(n_resident(path) * sysconf(_SC_PAGESIZE) <= (2 << 20));
            }
        std::ifstream in(path, std::ios::binary);
        in.seekg(-static_cast<std::streamoff>(kHole), std::ios::end);
        std::vector<char> all(kHole);
        in.read(all.data(), static_cast<std::streamsize>(all.size()));
        CHECK_MESSAGE(n_resident(path) * sysconf(_SC_PAGESIZE) > (32 << 20), "reading does not show: checks nothing");
    }
    fs::remove_all(folder);
}
