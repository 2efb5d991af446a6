// An open checkpoint: its files, the attention tensors that their headers list, and its configuration. Only headers are
// read. What the tensors mean for a configuration is the inventory's business, reading them the loader's.
#pragma once

#include "checkpoint/inventory.h"
#include "checkpoint/mapping.h"
#include "error.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ds41 {

struct CheckpointFile {
    std::string path;
    Mapping mapping;
};

// Immutable; never moved, since the inventory looks into it.
class Checkpoint {
public:
    // A folder, a safetensors file or a GGUF. Throws IO_ERROR, INVALID_FILE or UNSUPPORTED.
    explicit Checkpoint(const std::string &path);
    Checkpoint(const Checkpoint &) = delete;
    Checkpoint &operator=(const Checkpoint &) = delete;

    CheckpointFormat format() const { return format_; }
    const std::vector<CheckpointFile> &files() const { return files_; }
    const std::vector<FoundTensor> &found() const { return found_; }

    // Throws what went wrong with it when the checkpoint was opened.
    const ds41_config &config() const;

    // When one file was opened of a folder that has an index: that folder, which is the whole checkpoint. Else empty.
    const std::string &shard_of() const { return shard_of_; }

    // By its own configuration; null when that is not to be had.
    const Inventory *inventory() const { return inventory_ ? &*inventory_ : nullptr; }
    // What keeps all layers from being loaded.
    const std::vector<std::string> &problems() const { return problems_; }

private:
    void open_folder(const std::string &path);
    void open_index(const std::string &folder, const std::string &path);
    void open_safetensors(Mapping &&mapping, const std::string &path);
    void open_gguf(Mapping &&mapping, const std::string &path);
    void read_config(const std::string &folder);

    CheckpointFormat format_ = CheckpointFormat::kSafetensors;
    std::vector<CheckpointFile> files_;
    std::vector<FoundTensor> found_;
    std::string shard_of_;    // a folder with an index beside a file that was opened alone; else empty
    std::string config_path_; // the file that the configuration is in
    std::optional<ds41_config> config_;
    std::optional<Error> config_error_;
    std::optional<Inventory> inventory_;
    std::vector<std::string> problems_;
};

} // namespace ds41
