// Opens files through ds41_file. The format does not align tensors (a U8 tensor of odd size in front is enough), but
// what the library borrows has to be: those tensors are copied here.
#include "fixture.h"

#include <algorithm>
#include <cctype>
#include <cstring>

namespace replay {

namespace {

constexpr std::string_view kSuffix = ".safetensors";

uintptr_t alignment(int32_t dtype) {
    switch (dtype) {
    case DS41_DTYPE_F32:
    case DS41_DTYPE_I32:
        return 4;
    case DS41_DTYPE_BF16:
    case DS41_DTYPE_F16:
        return 2;
    default:
        return 1;
    }
}

bool all_digits(std::string_view text) {
    if (text.empty() || text.size() > 6) return false;
    for (char c : text)
        if (!std::isdigit(static_cast<unsigned char>(c))) return false;
    return true;
}

} // namespace

std::vector<std::string> parts_of(const std::string &path) {
    if (path.size() <= kSuffix.size() || !path.ends_with(kSuffix)) return {path};
    const std::string stem = path.substr(0, path.size() - kSuffix.size());
    const size_t dot = stem.rfind('.');
    const size_t of = stem.rfind("of");
    if (dot == std::string::npos || of == std::string::npos || of < dot) return {path};
    const std::string number = stem.substr(dot + 1, of - dot - 1), count = stem.substr(of + 2);
    if (!all_digits(number) || !all_digits(count)) return {path};
    const int n_parts = std::stoi(count);
    if (std::stoi(number) < 1 || std::stoi(number) > n_parts)
        throw CannotRun("part " + number + " of " + count + " does not exist");
    std::vector<std::string> paths;
    for (int k = 1; k <= n_parts; ++k) {
        std::string part = std::to_string(k);
        if (number[0] == '0') part.insert(0, number.size() - std::min(number.size(), part.size()), '0'); // 02of10
        paths.push_back(stem.substr(0, dot + 1) + part + "of" + count + std::string(kSuffix));
    }
    return paths;
}

Fixture::Fixture(const std::vector<std::string> &paths) {
    for (const std::string &path : paths) {
        ds41_file *file = nullptr;
        check(ds41_file_load(&file, path.c_str()), paths.size() > 1 ? "part " + path : "opening the file");
        parts_.emplace_back(file);
        for (const char *key : {"case", "config", "steps", "rules", "tolerance", "modes", "weights"}) {
            const char *first = metadata(key), *here = ds41_file_get_metadata(file, key);
            if ((first == nullptr) != (here == nullptr) || (first && std::strcmp(first, here) != 0))
                throw CannotRun("metadata entry '" + std::string(key) + "' of " + path + " differs from that of " +
                                paths[0] + ": not parts of one case");
        }
        for (int64_t i = 0; i < ds41_file_get_n_tensors(file); ++i) {
            const char *name = ds41_file_get_tensor_name(file, i);
            if (!part_of_.emplace(name, parts_.size() - 1).second)
                throw CannotRun("tensor " + std::string(name) + " of " + path + " is in an earlier part too");
        }
    }
}

Loaded Fixture::load(const std::string &name) const {
    const auto found = part_of_.find(name);
    if (found == part_of_.end()) throw CannotRun("the file has no tensor " + name);
    Loaded loaded{};
    check(ds41_file_get_tensor(parts_[found->second].get(), name.c_str(), &loaded.view), "reading tensor " + name);
    if (reinterpret_cast<uintptr_t>(loaded.view.data) % alignment(loaded.view.dtype) != 0) {
        uint64_t n_bytes = 0;
        check(ds41_tensor_get_bytes(&loaded.view, &n_bytes), "reading tensor " + name);
        loaded.copy.resize((n_bytes + 7) / 8);
        std::memcpy(loaded.copy.data(), loaded.view.data, n_bytes);
        loaded.view.data = loaded.copy.data();
    }
    return loaded;
}

} // namespace replay
