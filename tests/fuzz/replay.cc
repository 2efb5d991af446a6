// Runs a fuzz target once over every file in the given folders: the seeds, and each input that once broke something.
// Inputs lie in memory of exactly their size, so that a sanitizer or valgrind sees one byte too many.
#include "target.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

namespace {

bool run(const std::filesystem::path &path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) return false;
    const std::size_t size = static_cast<std::size_t>(file.tellg());
    const std::unique_ptr<char[]> bytes(new char[size]);
    file.seekg(0);
    if (!file.read(bytes.get(), static_cast<std::streamsize>(size))) return false;
    // Named first: a target that breaks does not come back.
    std::printf("%s, %zu bytes\n", path.c_str(), size);
    std::fflush(stdout);
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t *>(bytes.get()), size);
    return true;
}

} // namespace

int main(int argc, char **argv) {
    std::size_t n_files = 0;
    for (int i = 1; i < argc; ++i) {
        std::vector<std::filesystem::path> paths;
        std::error_code failure;
        for (const auto &entry : std::filesystem::directory_iterator(argv[i], failure)) paths.push_back(entry.path());
        if (failure) {
            std::fprintf(stderr, "%s: %s\n", argv[i], failure.message().c_str());
            return 1;
        }
        std::sort(paths.begin(), paths.end());
        for (const std::filesystem::path &path : paths) {
            if (!run(path)) {
                std::fprintf(stderr, "%s cannot be read\n", path.c_str());
                return 1;
            }
            ++n_files;
        }
    }
    std::printf("%zu files\n", n_files);
    return n_files > 0 ? 0 : 1;
}
