// A model.safetensors.index.json.
#include "target.h"

#include "checkpoint/index_json.h"

using namespace ds41;
using namespace ds41::fuzz;

namespace {

// An entry has 64 bytes and four times as many pass through a vector that grows; in the text it has 8 or more. JSON's
// own errors quote the text several times.
constexpr std::uint64_t kPerByte = 64, kConstant = 8192;

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    const std::string_view json(reinterpret_cast<const char *>(data), size);
    std::vector<IndexEntry> entries;
    if (!parses(size, kPerByte, kConstant, [&] { entries = parse_safetensors_index(json); })) return 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
        require(i == 0 || entries[i - 1].tensor < entries[i].tensor, "names ascend");
        const std::string_view file = entries[i].file;
        require(!file.empty() && file != "." && file != ".." && file.find('/') == file.npos &&
                    file.find('\0') == file.npos,
                "a file is one of the folder");
    }
    return 0;
}
