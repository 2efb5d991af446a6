#include "checkpoint/checkpoint.h"

#include "checkpoint/text.h"

#include <cstring>

#include <sys/stat.h>

namespace ds41 {

namespace {

bool is_folder(const std::string &path) {
    struct stat info = {};
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool is_gguf(std::span<const std::byte> bytes) {
    return bytes.size() >= 4 && std::memcmp(bytes.data(), "GGUF", 4) == 0;
}

} // namespace

Checkpoint::Checkpoint(const std::string &path) {
    if (is_folder(path)) {
        open_folder(path);
    } else {
        Mapping mapping(path);
        if (is_gguf(mapping.bytes()))
            open_gguf(std::move(mapping), path);
        else
            open_safetensors(std::move(mapping), path);
    }
    if (config_error_) {
        problems_.push_back(config_error_->what());
        return;
    }
    try {
        inventory_.emplace(format_, found_, Config(*config_));
        for (const Problem &problem : inventory_->problems()) problems_.push_back(problem.text);
    } catch (const Error &error) { // read, but refused by validation
        config_error_.emplace(error.status(), "path %s: %s", shortened_path(config_path_).c_str(), error.what());
        problems_.push_back(config_error_->what());
    }
}

const ds41_config &Checkpoint::config() const {
    if (config_error_) throw *config_error_;
    return *config_;
}

} // namespace ds41
