// The table of peers, and the shells of those that are not here.
#include "peers.h"

#include <stdexcept>

namespace bench {

std::span<const Peer> all_peers() {
    static constexpr Peer kPeers[] = {
        {"oneDNN, bf16", false, why_not_onednn_bf16, about_onednn, create_onednn_bf16},
        {"oneDNN, f32", true, why_not_onednn, about_onednn, create_onednn_f32},
        {"OpenBLAS, f32", true, why_not_openblas, about_openblas, create_openblas},
    };
    return kPeers;
}

namespace {

[[maybe_unused]] std::string not_built(const char *peer) {
    return std::string("this ds41-bench was built without ") + peer + " (-Dbench_peers takes it where it is installed)";
}

[[noreturn, maybe_unused]] std::unique_ptr<PeerProduct> create_none() {
    throw std::logic_error("a product of a peer that is not here");
}

} // namespace

#ifndef DS41_BENCH_ONEDNN
std::string why_not_onednn() {
    return not_built("oneDNN");
}
std::string why_not_onednn_bf16() {
    return not_built("oneDNN");
}
std::string about_onednn() {
    return "";
}
std::unique_ptr<PeerProduct> create_onednn_bf16(const PeerShape &, int) {
    return create_none();
}
std::unique_ptr<PeerProduct> create_onednn_f32(const PeerShape &, int) {
    return create_none();
}
#endif

#ifndef DS41_BENCH_OPENBLAS
std::string why_not_openblas() {
    return not_built("OpenBLAS");
}
std::string about_openblas() {
    return "";
}
std::unique_ptr<PeerProduct> create_openblas(const PeerShape &, int) {
    return create_none();
}
#endif

} // namespace bench
