// Checkpoints of safetensors: a folder with an index and its shards, or one file; the configuration is in a config.json
// of the same folder. Shards without attention tensors are not opened.
#include "checkpoint/checkpoint.h"
#include "checkpoint/config_json.h"
#include "checkpoint/index_json.h"
#include "checkpoint/quantization_json.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/text.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <system_error>

#include <dirent.h>
#include <sys/stat.h>

namespace ds41 {

namespace {

constexpr char kIndexName[] = "model.safetensors.index.json";

std::string joined(const std::string &folder, const std::string &name) {
    return folder.ends_with('/') ? folder + name : folder + '/' + name;
}

std::string folder_of(const std::string &path) {
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

// Something that is there but cannot be reached counts: opening it then tells why.
bool exists(const std::string &path) {
    struct stat info = {};
    return ::lstat(path.c_str(), &info) == 0 || errno != ENOENT;
}

bool is_file(const std::string &path) {
    struct stat info = {};
    return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

std::string_view text_of(const Mapping &mapping) {
    return {reinterpret_cast<const char *>(mapping.bytes().data()), mapping.bytes().size()};
}

// Not by std::filesystem, whose iterator ends the process when memory runs out (libstdc++ 12).
std::vector<std::string> safetensors_in(const std::string &folder) {
    const std::unique_ptr<DIR, int (*)(DIR *)> entries(::opendir(folder.c_str()), ::closedir);
    DS41_CHECK(entries, DS41_STATUS_IO_ERROR, "path %s cannot be listed: %s", shortened_path(folder).c_str(),
               std::generic_category().message(errno).c_str());
    std::vector<std::string> names;
    while (const dirent *entry = ::readdir(entries.get())) {
        const std::string_view name = entry->d_name; // hidden ones are leavings of other systems
        if (name.ends_with(".safetensors") && !name.starts_with('.') && is_file(joined(folder, std::string(name))))
            names.emplace_back(name);
    }
    return names;
}

// Runs `body`; what it refuses is said to be about `path`.
template <typename Body> auto about(const std::string &path, Body &&body) {
    try {
        return body();
    } catch (const Error &error) {
        throw Error(error.status(), "path %s: %s", shortened_path(path).c_str(), error.what());
    }
}

const GgufType *type_of(std::string_view dtype) {
    if (dtype == "F32") return find_gguf_type(kGgufF32);
    if (dtype == "F16") return find_gguf_type(kGgufF16);
    if (dtype == "BF16") return find_gguf_type(kGgufBf16);
    if (dtype == kFp8Type.name) return &kFp8Type;
    if (dtype == kUe8m0Type.name) return &kUe8m0Type;
    return nullptr;
}

FoundTensor found_tensor(const TensorName &where, const SafetensorsEntry &entry, int file,
                         std::span<const std::byte> bytes) {
    FoundTensor found;
    found.where = where;
    found.name = entry.name;
    found.type = type_of(entry.dtype);
    found.type_name = find_safetensors_dtype(entry.dtype)->name;
    found.shape = entry.shape;
    found.range = {file, static_cast<std::uint64_t>(entry.data - bytes.data()), entry.n_bytes};
    return found;
}

} // namespace

void Checkpoint::open_folder(const std::string &folder) {
    read_config(folder);
    const std::string index = joined(folder, kIndexName);
    if (exists(index)) return open_index(folder, index);

    const std::vector<std::string> names = safetensors_in(folder);
    DS41_CHECK(!names.empty(), DS41_STATUS_INVALID_FILE,
               "path %s is a folder without %s and without a .safetensors file (of a GGUF, name the file)",
               shortened_path(folder).c_str(), kIndexName);
    DS41_CHECK(names.size() == 1, DS41_STATUS_INVALID_FILE,
               "path %s is a folder with %zu .safetensors files and no %s, which says what is in which",
               shortened_path(folder).c_str(), names.size(), kIndexName);
    const std::string path = joined(folder, names[0]);
    open_safetensors(Mapping(path), path);
}

void Checkpoint::open_index(const std::string &folder, const std::string &path) {
    const Mapping text(path);
    const std::vector<IndexEntry> entries = about(path, [&] { return parse_safetensors_index(text_of(text)); });
    std::map<std::string, std::vector<std::pair<TensorName, const std::string *>>> shards;
    TensorName where;
    for (const IndexEntry &entry : entries)
        if (parse_tensor_name(format_, entry.tensor, where)) shards[entry.file].emplace_back(where, &entry.tensor);

    for (const auto &shard_entry : shards) { // not a structured binding: clang 14 lets no lambda have one
        const std::string &name = shard_entry.first;
        const auto &tensors = shard_entry.second;
        const auto give_up = [&](const std::string &text, ds41_status status) {
            const auto fault = std::make_shared<const std::string>(text);
            for (const auto &[tensor, text_name] : tensors) {
                FoundTensor found;
                found.where = tensor;
                found.name = *text_name;
                found.fault = fault;
                found.fault_status = status;
                found_.push_back(std::move(found));
            }
        };
        // A shard that is not there keeps only its own layers from being loaded.
        const std::string shard_path = joined(folder, name);
        try {
            Mapping mapping(shard_path);
            about(shard_path, [&] {
                const SafetensorsFile shard(mapping.bytes());
                const int file = static_cast<int>(files_.size());
                for (const auto &[tensor, text_name] : tensors) {
                    if (const SafetensorsEntry *entry = shard.find(*text_name)) {
                        found_.push_back(found_tensor(tensor, *entry, file, mapping.bytes()));
                        continue;
                    }
                    FoundTensor missing;
                    missing.where = tensor;
                    missing.name = *text_name;
                    missing.fault = std::make_shared<const std::string>(quoted(*text_name) + " is not in " +
                                                                        quoted(name) + ", where the index places it");
                    missing.fault_status = DS41_STATUS_MISSING_TENSOR;
                    found_.push_back(std::move(missing));
                }
            });
            files_.push_back({shard_path, std::move(mapping)});
        } catch (const Error &error) {
            give_up(error.what(), error.status());
        }
    }
}

void Checkpoint::open_safetensors(Mapping &&mapping, const std::string &path) {
    if (!config_ && !config_error_) read_config(folder_of(path));
    about(path, [&] {
        const std::span<const std::byte> bytes = mapping.bytes();
        DS41_CHECK(bytes.empty() || bytes[0] != std::byte{'{'}, DS41_STATUS_INVALID_FILE,
                   "neither a safetensors file nor a GGUF but JSON: of a checkpoint in shards, name the folder");
        const SafetensorsFile file(bytes);
        TensorName where;
        for (const SafetensorsEntry &entry : file.entries())
            if (parse_tensor_name(format_, entry.name, where))
                found_.push_back(found_tensor(where, entry, 0, mapping.bytes()));
    });
    files_.push_back({path, std::move(mapping)});
    if (exists(joined(folder_of(path), kIndexName))) shard_of_ = folder_of(path);
}

void Checkpoint::read_config(const std::string &folder) {
    config_path_ = joined(folder, "config.json");
    try {
        const Mapping mapping(config_path_);
        config_ = about(config_path_, [&] {
            check_quantization_json(text_of(mapping));
            return parse_config_json(text_of(mapping));
        });
    } catch (const Error &error) { // the caller may bring a configuration
        const char *hint = error.status() == DS41_STATUS_IO_ERROR ? ": weights in safetensors need it beside them" : "";
        config_error_.emplace(error.status(), "%s%s", error.what(), hint);
    }
}

} // namespace ds41
