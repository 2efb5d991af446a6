// A test model's weights as a checkpoint on disk: one safetensors file and a config.json, in a folder of its own.
#pragma once

#include "support.h"

#include <string>

namespace api_test {

class CheckpointFolder {
public:
    explicit CheckpointFolder(const TestModel &model);
    ~CheckpointFolder();
    CheckpointFolder(const CheckpointFolder &) = delete;
    CheckpointFolder &operator=(const CheckpointFolder &) = delete;

    const char *path() const { return path_.c_str(); }
    std::string weights_path() const { return path_ + "/model.safetensors"; }
    std::string config_path() const { return path_ + "/config.json"; }

private:
    std::string path_;
};

} // namespace api_test
