// Other libraries that multiply matrices, timed beside this one where -Dbench_peers has found them. The library itself
// knows nothing of them.
#pragma once

#include "numeric/bf16.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace bench {

/// out[n, rows] = in[n, cols] times a matrix [rows, cols], transposed. All contiguous.
struct PeerShape {
    int64_t n, rows, cols;
};

/// A product of one shape, for any matrix of that shape.
class PeerProduct {
public:
    virtual ~PeerProduct() = default;
    /// Of a matrix in the peer's own order.
    virtual size_t packed_bytes() const = 0;
    virtual void pack(const ds41::Bf16 *matrix, std::byte *packed) = 0;
    /// `in` and `out` in the peer's values.
    virtual void run(const std::byte *packed, const void *in, void *out) = 0;
};

struct Peer {
    const char *name;
    bool takes_f32; ///< In, out and matrix; otherwise bf16.
    /// Empty: it is here; otherwise a sentence that says why not.
    std::string (*why_not)();
    /// The version, and what has to be known of it.
    std::string (*about)();
    std::unique_ptr<PeerProduct> (*create)(const PeerShape &shape, int threads);
};

/// Those that are missing included.
std::span<const Peer> all_peers();

// Of their files, which are empty shells without the peer.
std::string why_not_onednn();
std::string about_onednn();
std::unique_ptr<PeerProduct> create_onednn_bf16(const PeerShape &shape, int threads);
std::unique_ptr<PeerProduct> create_onednn_f32(const PeerShape &shape, int threads);
std::string why_not_onednn_bf16();

std::string why_not_openblas();
std::string about_openblas();
std::unique_ptr<PeerProduct> create_openblas(const PeerShape &shape, int threads);

} // namespace bench
