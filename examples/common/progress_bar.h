// A line on a terminal that tells how far a load has come; nothing where stderr is no terminal.
#pragma once

#include <chrono>
#include <cstdint>

namespace tools {

class ProgressBar {
public:
    ProgressBar();
    ~ProgressBar(); ///< Wipes the line.
    ProgressBar(const ProgressBar &) = delete;
    ProgressBar &operator=(const ProgressBar &) = delete;

    /// Some time has gone by or all is done: draws; else returns at once.
    void update(uint64_t n_done, uint64_t n_total, const char *item);

    /// For ds41_load_options.progress; `user` is the bar. Never cancels.
    static int32_t on_progress(uint64_t n_done, uint64_t n_total, const char *tensor, void *user);

private:
    using Clock = std::chrono::steady_clock;

    bool on_terminal_;
    bool is_drawn_ = false;
    Clock::time_point begin_, drawn_;
};

} // namespace tools
