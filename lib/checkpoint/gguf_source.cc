// Checkpoints in GGUF: one file, or all shards of a split one, found from the name of any of them.
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_config.h"
#include "checkpoint/text.h"

#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <set>

namespace ds41 {

namespace {

constexpr char kSplitNo[] = "split.no", kSplitCount[] = "split.count", kSplitTensors[] = "split.tensors.count";
constexpr std::int64_t kMostShards = 99999; // five digits in the names

// "<stem>-00002-of-00007.gguf": the part before the numbers, or nothing.
std::optional<std::string> split_stem(const std::string &path, std::int64_t n_shards) {
    char of[24];
    std::snprintf(of, sizeof of, "-of-%05" PRId64 ".gguf", n_shards);
    const std::string_view tail = of;
    constexpr std::size_t kNumber = 6; // "-00002"
    if (!path.ends_with(tail) || path.size() < tail.size() + kNumber) return std::nullopt;
    const std::size_t at = path.size() - tail.size() - kNumber;
    if (path[at] != '-' || path.find_first_not_of("0123456789", at + 1) != at + kNumber) return std::nullopt;
    return path.substr(0, at);
}

std::string shard_path(const std::string &stem, std::int64_t shard, std::int64_t n_shards) {
    char numbers[64]; // longer than any two numbers, which keeps -Wformat-truncation quiet
    std::snprintf(numbers, sizeof numbers, "-%05" PRId64 "-of-%05" PRId64 ".gguf", shard + 1, n_shards);
    return stem + numbers;
}

Mapping open_shard(const std::string &name, const std::string &opened) {
    try {
        return Mapping(name);
    } catch (const Error &error) {
        throw Error(error.status(), "%s (it is a shard of the GGUF that %s belongs to)", error.what(),
                    shortened_path(opened).c_str());
    }
}

} // namespace

void Checkpoint::open_gguf(Mapping &&opened, const std::string &path) {
    format_ = CheckpointFormat::kGguf;
    const auto about = [](const std::string &shard, auto &&body) {
        try {
            return body();
        } catch (const Error &error) {
            throw Error(error.status(), "path %s: %s", shortened_path(shard).c_str(), error.what());
        }
    };
    std::int64_t n_shards = 1, opened_no = 0;
    std::string stem;
    about(path, [&] {
        const GgufFile file(opened.bytes());
        n_shards = file.integer(kSplitCount).value_or(1);
        opened_no = file.integer(kSplitNo).value_or(0);
        if (n_shards == 0) n_shards = 1; // some writers say so of a file that is not split
        DS41_CHECK(n_shards >= 1 && n_shards <= kMostShards, DS41_STATUS_INVALID_FILE,
                   "%s is %" PRId64 ", need a value in [1, %" PRId64 "]", kSplitCount, n_shards, kMostShards);
        DS41_CHECK(opened_no >= 0 && opened_no < n_shards, DS41_STATUS_INVALID_FILE,
                   "%s is %" PRId64 ", need a value in [0, %" PRId64 "]", kSplitNo, opened_no, n_shards - 1);
        if (n_shards == 1) return;
        const std::optional<std::string> found = split_stem(path, n_shards);
        DS41_CHECK(found, DS41_STATUS_INVALID_FILE,
                   "it is one of %" PRId64 " shards, whose names have to end in -%05" PRId64 "-of-%05" PRId64 ".gguf",
                   n_shards, opened_no + 1, n_shards);
        stem = *found;
    });

    std::set<std::string> names;
    std::int64_t n_tensors = 0, n_promised = -1;
    for (std::int64_t shard = 0; shard < n_shards; ++shard) {
        const std::string name = n_shards == 1 ? path : shard_path(stem, shard, n_shards);
        Mapping mapping = name == path ? std::move(opened) : open_shard(name, path);
        about(name, [&] {
            const GgufFile file(mapping.bytes());
            if (n_shards > 1) {
                const auto check = [&](const char *key, std::int64_t need) {
                    const auto value = file.integer(key);
                    DS41_CHECK(value == need, DS41_STATUS_INVALID_FILE, "%s is %s, need %" PRId64, key,
                               value ? std::to_string(*value).c_str() : "missing", need);
                };
                check(kSplitNo, shard);
                check(kSplitCount, n_shards);
                if (n_promised < 0) n_promised = file.integer(kSplitTensors).value_or(-1);
                check(kSplitTensors, n_promised < 0 ? 0 : n_promised);
            }
            n_tensors += static_cast<std::int64_t>(file.tensors().size());
            TensorName where;
            for (const GgufTensor &tensor : file.tensors()) {
                DS41_CHECK(names.insert(tensor.name).second, DS41_STATUS_INVALID_FILE,
                           "tensor %s is in an earlier shard too", quoted(tensor.name).c_str());
                if (!parse_tensor_name(format_, tensor.name, where)) continue;
                FoundTensor found;
                found.where = where;
                found.name = tensor.name;
                found.type = tensor.type;
                found.type_name = tensor.type ? tensor.type->name : "a type unknown here";
                found.shape = tensor.shape;
                found.range = {static_cast<int>(shard), tensor.offset, tensor.n_bytes};
                found_.push_back(std::move(found));
            }
        });
        files_.push_back({name, std::move(mapping)});
    }
    DS41_CHECK(n_shards == 1 || n_tensors == n_promised, DS41_STATUS_INVALID_FILE,
               "path %s: the %" PRId64 " shards hold %" PRId64 " tensors, need %" PRId64 " (%s)",
               shortened_path(path).c_str(), n_shards, n_tensors, n_promised, kSplitTensors);

    config_path_ = files_[0].path;
    try {
        const GgufFile first(files_[0].mapping.bytes());
        config_ = about(config_path_, [&] { return gguf_config(first.metadata(), found_); });
    } catch (const Error &error) {
        config_error_ = error; // the caller may bring a configuration
    }
}

} // namespace ds41
