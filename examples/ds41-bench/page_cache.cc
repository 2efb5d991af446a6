// POSIX_FADV_DONTNEED, mincore and read. All throw std::system_error with the path.
#include "page_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

namespace bench {

namespace {

[[noreturn]] void fail(const std::string &path) {
    throw std::system_error(errno, std::generic_category(), path);
}

/// A file that is open for reading.
class File {
public:
    explicit File(const std::string &path) : path_(path), descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
        if (descriptor_ < 0) fail(path_);
    }
    ~File() { close(descriptor_); }
    File(const File &) = delete;
    File &operator=(const File &) = delete;

    int descriptor() const { return descriptor_; }

    size_t size() const {
        struct stat status = {};
        if (fstat(descriptor_, &status) != 0) fail(path_);
        return static_cast<size_t>(status.st_size);
    }

    /// Bytes read, at least one. A file that ends is a failure.
    size_t read_some(char *target, size_t n_bytes) const {
        for (;;) {
            const ssize_t n_read = read(descriptor_, target, n_bytes);
            if (n_read > 0) return static_cast<size_t>(n_read);
            if (n_read == 0) throw std::runtime_error(path_ + ": has become shorter");
            if (errno != EINTR) fail(path_);
        }
    }

private:
    std::string path_;
    int descriptor_;
};

} // namespace

void drop_from_cache(const std::string &path) {
    const File file(path);
    fdatasync(file.descriptor()); // a page that is not written yet stays
    if (const int error = posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED); error != 0)
        throw std::system_error(error, std::generic_category(), path);
}

double cached_share(const std::vector<FilePart> &parts) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_t n_pages = 0, n_cached = 0;
    for (const FilePart &part : parts) {
        const File file(part.path);
        const size_t n_bytes = file.size();
        if (n_bytes == 0) continue;
        void *mapped = mmap(nullptr, n_bytes, PROT_READ, MAP_SHARED, file.descriptor(), 0);
        if (mapped == MAP_FAILED) fail(part.path);
        std::vector<unsigned char> states((n_bytes + page - 1) / page);
        const int status = mincore(mapped, n_bytes, states.data());
        const int error = errno;
        munmap(mapped, n_bytes);
        if (status != 0) throw std::system_error(error, std::generic_category(), part.path);
        n_pages += states.size();
        n_cached += static_cast<size_t>(
            std::count_if(states.begin(), states.end(), [](unsigned char state) { return state & 1; }));
    }
    return n_pages ? static_cast<double>(n_cached) / static_cast<double>(n_pages) : 0;
}

void read_sequentially(const std::vector<FilePart> &parts, std::vector<char> &buffer) {
    for (const FilePart &part : parts) {
        const File file(part.path);
        posix_fadvise(file.descriptor(), 0, static_cast<off_t>(part.n_bytes), POSIX_FADV_SEQUENTIAL); // reads ahead
        for (uint64_t n_left = part.n_bytes; n_left > 0;)
            n_left -= file.read_some(buffer.data(), std::min<uint64_t>(buffer.size(), n_left));
    }
}

} // namespace bench
