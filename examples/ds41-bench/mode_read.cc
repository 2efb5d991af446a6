// Mode `read`: what one thread and all threads get out of the memory.
#include "memory.h"
#include "modes.h"
#include "plain_read.h"

#include <cstdio>
#include <memory>
#include <set>
#include <vector>

namespace bench {

void run_read(const Options &options, Report &report) {
    constexpr size_t kBytes = size_t(256) << 20; // the projections of a V4.1-Flash layer in bf16 take 253 MB
    const size_t n_copies = n_rotated_copies(kBytes);
    Arena arena(n_copies * kBytes);
    std::vector<std::span<const std::byte>> copies;
    for (size_t i = 0; i < n_copies; ++i) copies.push_back(arena.take(kBytes));

    char note[160];
    std::snprintf(note, sizeof(note), "%.2f GB are read in turn; 2 MB pages hold %.0f %% of them.",
                  static_cast<double>(n_copies * kBytes) * 1e-9, 100 * arena.huge_share());
    Case compared = {"read", "256 MiB", "", "", "", arena.huge_share() < 0 ? "" : note, {}};
    for (const int threads : std::set<int>{1, options.threads}) {
        Contestant contestant;
        contestant.name = "plain read, " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
        contestant.bytes = kBytes;
        contestant.threads = threads;
        contestant.cpu_bound = threads == 1;
        const auto reader = std::make_shared<PlainReader>(threads);
        contestant.run = [&copies, reader](uint64_t turn) { reader->read(copies[turn % copies.size()]); };
        compared.contestants.push_back(std::move(contestant));
    }
    compared.baseline = compared.contestants.front().name;
    compared.floor = compared.contestants.back().name;
    report.add(compared, run_case(compared, options.limits));
}

} // namespace bench
