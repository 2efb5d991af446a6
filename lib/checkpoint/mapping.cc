#include "checkpoint/mapping.h"

#include "checkpoint/text.h"
#include "error.h"

#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace ds41 {

namespace {

Descriptor open_file(const std::string &path) {
    int fd;
    // O_NONBLOCK: a FIFO without a writer would keep us here for ever. O_NOCTTY: nor should a terminal adopt us.
    do {
        fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    } while (fd < 0 && errno == EINTR);
    return Descriptor(fd);
}

Error system_error(const std::string &path, const char *action, int reason) {
    return Error(DS41_STATUS_IO_ERROR, "path %s cannot be %s: %s", shortened_path(path).c_str(), action,
                 std::generic_category().message(reason).c_str());
}

} // namespace

Descriptor::~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
}

Mapping::Mapping(const std::string &path) : file_(open_file(path)) {
    if (file_.get() < 0) throw system_error(path, "opened", errno);

    struct stat info = {};
    if (::fstat(file_.get(), &info) != 0) throw system_error(path, "examined", errno);
    if (S_ISDIR(info.st_mode)) throw system_error(path, "read", EISDIR);
    DS41_CHECK(S_ISREG(info.st_mode), DS41_STATUS_IO_ERROR, "path %s cannot be read: not a regular file",
               shortened_path(path).c_str());
    if (static_cast<uint64_t>(info.st_size) > SIZE_MAX) throw system_error(path, "mapped", EFBIG);
    if (info.st_size == 0) return;

    const size_t n_bytes = static_cast<size_t>(info.st_size);
    void *address = ::mmap(nullptr, n_bytes, PROT_READ, MAP_PRIVATE, file_.get(), 0);
    if (address == MAP_FAILED) throw system_error(path, "mapped", errno);
    data_ = static_cast<const std::byte *>(address);
    n_bytes_ = n_bytes;
}

Mapping::Mapping(Mapping &&other) noexcept
    : file_(std::move(other.file_)), data_(std::exchange(other.data_, nullptr)),
      n_bytes_(std::exchange(other.n_bytes_, 0)) {}

Mapping &Mapping::operator=(Mapping &&other) noexcept {
    file_ = std::move(other.file_);
    std::swap(data_, other.data_);
    std::swap(n_bytes_, other.n_bytes_);
    return *this;
}

Mapping::~Mapping() {
    if (data_) ::munmap(const_cast<std::byte *>(data_), n_bytes_);
}

void Mapping::read(uint64_t offset, std::span<std::byte> target) const {
    size_t n_done = 0;
    while (n_done < target.size()) {
        const ssize_t n =
            ::pread(file_.get(), target.data() + n_done, target.size() - n_done, static_cast<off_t>(offset + n_done));
        if (n < 0 && errno == EINTR) continue;
        DS41_CHECK(n >= 0, DS41_STATUS_IO_ERROR, "cannot be read at byte %" PRIu64 ": %s", offset + n_done,
                   std::generic_category().message(errno).c_str());
        DS41_CHECK(n > 0, DS41_STATUS_IO_ERROR, "has nothing at byte %" PRIu64 ": it was truncated while it was open",
                   offset + n_done);
        n_done += static_cast<size_t>(n);
    }
}

void Mapping::read_ahead(uint64_t offset, uint64_t n_bytes) const noexcept {
    ::posix_fadvise(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(n_bytes), POSIX_FADV_WILLNEED);
}

} // namespace ds41
