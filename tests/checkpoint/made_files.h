// The checkpoints that make_files.py wrote into the build folder.
#pragma once

#include <filesystem>
#include <stdexcept>
#include <string>

namespace checkpoint_test {

inline std::string file(const std::string &name) {
    const std::filesystem::path path = std::filesystem::path(DS41_CHECKPOINT_DIR) / name;
    if (!std::filesystem::exists(path)) throw std::runtime_error(path.string() + " has not been made");
    return path.string();
}

// One of each form and weight format.
inline const std::string kFiles[] = {
    "a.release", "e.scattered",  "e.flat/model.safetensors", "f-00002-of-00003.gguf", "mixed.gguf",
    "g.release", "large.release"};

} // namespace checkpoint_test
