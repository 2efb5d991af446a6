// A config.json, by the path that ds41_config_parse takes: reading, then validation and the roles of its layers; and
// what it says of the quantisation.
#include "target.h"

#include "checkpoint/config_json.h"
#include "checkpoint/quantization_json.h"
#include "model/config.h"

using namespace ds41;
using namespace ds41::fuzz;

namespace {

// Lists keep 24 bytes for an entry that has 2 in the text, and pass through a vector that grows; they end at
// DS41_MAX_LAYERS entries. JSON's own errors quote the text several times.
constexpr std::uint64_t kPerByte = 64, kConstant = 16384;

void check_role(const Config &config, int layer) {
    const LayerRole &role = config.role(layer);
    require(role.ratio == config.compress_ratios[layer], "a role has its layer's ratio");
    for (const int source : {role.kv_source, role.index_source})
        require(source >= -1 && source <= layer, "a layer reads itself or a layer before it");
    require(role.is_kv_source == (role.kv_source == layer), "a kv source reads itself");
    require(role.is_index_source == (role.index_source == layer), "an index source selects for itself");
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    const std::string_view json(reinterpret_cast<const char *>(data), size);
    parses(size, kPerByte, kConstant, [&] { check_quantization_json(json); });
    ds41_config raw = {};
    if (!parses(size, kPerByte, kConstant, [&] { raw = parse_config_json(json); })) return 0;
    for (const int32_t n : {raw.n_compress_ratios, raw.n_kv_source_layers, raw.n_index_source_layers})
        require(n >= 0 && n <= DS41_MAX_LAYERS, "a list's length fits its member");
    attempt([&] {
        const Config config(raw);
        for (int layer = 0; layer < config.n_layers_total(); ++layer) check_role(config, layer);
    });
    return 0;
}
