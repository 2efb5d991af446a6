// Files in the kernel's page cache: out of it, in it, and read through it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

/// The first n_bytes of a file.
struct FilePart {
    std::string path;
    uint64_t n_bytes;
};

/// Ask the kernel to forget what it keeps of a file. It may not do so: see cached_share().
void drop_from_cache(const std::string &path);

/// Share of the files, 0 to 1, that is in the page cache, or may be: the kernel tells only those who own a file.
double cached_share(const std::vector<FilePart> &parts);

/// Read the parts from their starts on, one after the other, into one buffer that is used again and again.
void read_sequentially(const std::vector<FilePart> &parts, std::vector<char> &buffer);

} // namespace bench
