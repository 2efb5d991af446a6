// Drawn with a carriage return over the line before, cut to the terminal's width.
#include "progress_bar.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include <sys/ioctl.h>
#include <unistd.h>

namespace tools {

namespace {

size_t terminal_columns() {
    winsize size = {};
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// Names come from files: what is not printable ASCII could move the cursor or change the terminal.
std::string printable(const char *text) {
    std::string shown = text ? text : "";
    for (char &c : shown)
        if (c < 0x20 || c > 0x7e) c = '?';
    return shown;
}

} // namespace

ProgressBar::ProgressBar() : on_terminal_(isatty(STDERR_FILENO) == 1), begin_(Clock::now()), drawn_(begin_) {}

ProgressBar::~ProgressBar() {
    if (is_drawn_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::update(uint64_t n_done, uint64_t n_total, const char *item) {
    if (!on_terminal_) return;
    const Clock::time_point now = Clock::now();
    if (now - drawn_ < std::chrono::milliseconds(100) && n_done < n_total) return;
    drawn_ = now;
    const double share = n_total ? static_cast<double>(n_done) / static_cast<double>(n_total) : 1;
    const double seconds = std::max(std::chrono::duration<double>(now - begin_).count(), 1e-3);
    constexpr size_t kWidth = 20;
    const size_t n_full = std::min(static_cast<size_t>(share * kWidth), kWidth);
    char figures[64];
    std::snprintf(figures, sizeof(figures), "] %3.0f %%  %.0f MB/s  ", share * 100,
                  static_cast<double>(n_done) * 1e-6 / seconds);
    std::string line = "[" + std::string(n_full, '#') + std::string(kWidth - n_full, ' ') + figures + printable(item);
    line.resize(std::min(line.size(), terminal_columns() - 1));
    std::fprintf(stderr, "\r%s\033[K", line.c_str());
    std::fflush(stderr);
    is_drawn_ = true;
}

int32_t ProgressBar::on_progress(uint64_t n_done, uint64_t n_total, const char *tensor, void *user) {
    static_cast<ProgressBar *>(user)->update(n_done, n_total, tensor);
    return 0;
}

} // namespace tools
