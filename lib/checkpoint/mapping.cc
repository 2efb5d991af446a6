#include "checkpoint/mapping.h"

#include "checkpoint/text.h"
#include "error.h"

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace ds41 {

namespace {

// Closes on every way out; a mapping does not need its descriptor.
class Descriptor {
public:
    explicit Descriptor(const std::string &path) {
        // O_NONBLOCK: a FIFO without a writer would keep us here for ever. O_NOCTTY: nor should a terminal adopt us.
        do {
            fd_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        } while (fd_ < 0 && errno == EINTR);
    }
    Descriptor(const Descriptor &) = delete;
    Descriptor &operator=(const Descriptor &) = delete;
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    int get() const { return fd_; }

private:
    int fd_ = -1;
};

Error system_error(const std::string &path, const char *action, int reason) {
    return Error(DS41_STATUS_IO_ERROR, "path %s cannot be %s: %s", shortened_path(path).c_str(), action,
                 std::generic_category().message(reason).c_str());
}

} // namespace

Mapping::Mapping(const std::string &path) {
    const Descriptor file(path);
    if (file.get() < 0) throw system_error(path, "opened", errno);

    struct stat info = {};
    if (::fstat(file.get(), &info) != 0) throw system_error(path, "examined", errno);
    if (S_ISDIR(info.st_mode)) throw system_error(path, "read", EISDIR);
    DS41_CHECK(S_ISREG(info.st_mode), DS41_STATUS_IO_ERROR, "path %s cannot be read: not a regular file",
               shortened_path(path).c_str());
    if (static_cast<uint64_t>(info.st_size) > SIZE_MAX) throw system_error(path, "mapped", EFBIG);
    if (info.st_size == 0) return;

    const size_t n_bytes = static_cast<size_t>(info.st_size);
    void *address = ::mmap(nullptr, n_bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (address == MAP_FAILED) throw system_error(path, "mapped", errno);
    data_ = static_cast<const std::byte *>(address);
    n_bytes_ = n_bytes;
}

Mapping::Mapping(Mapping &&other) noexcept
    : data_(std::exchange(other.data_, nullptr)), n_bytes_(std::exchange(other.n_bytes_, 0)) {}

Mapping &Mapping::operator=(Mapping &&other) noexcept {
    std::swap(data_, other.data_);
    std::swap(n_bytes_, other.n_bytes_);
    return *this;
}

Mapping::~Mapping() {
    if (data_) ::munmap(const_cast<std::byte *>(data_), n_bytes_);
}

} // namespace ds41
