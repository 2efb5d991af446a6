// Both rules of selection.
#include "backend/reference/rank.h"

#include <algorithm>
#include <cmath>

namespace ds41::reference {

void rank_stable(Scored *items, std::int64_t n, std::int64_t k) {
    if (k <= 0 || k >= n) return;
    std::nth_element(items, items + k, items + n, [](const Scored &a, const Scored &b) {
        return a.score > b.score || (a.score == b.score && a.index < b.index);
    });
}

void rank_torch_cpu(Scored *items, std::int64_t n, std::int64_t k) {
    // torch runs libstdc++'s algorithms with a comparison that knows nothing of the index: which of equal scores win
    // follows from the algorithm alone. It sorts partially where k is small beside n. NaN ranks first there.
    // Source: topk_impl_loop in torch's ATen/native/TopKImpl.h.
    const auto before = [](const Scored &a, const Scored &b) {
        return (std::isnan(a.score) && !std::isnan(b.score)) || a.score > b.score;
    };
    if (k * 64 <= n)
        std::partial_sort(items, items + k, items + n, before);
    else
        std::nth_element(items, items + k - 1, items + n, before);
}

bool has_torch_cpu_ranking() noexcept {
#ifdef __GLIBCXX__
    return true;
#else
    return false; // another C++ library's nth_element leaves another set
#endif
}

} // namespace ds41::reference
