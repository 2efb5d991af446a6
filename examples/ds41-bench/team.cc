#include "team.h"

namespace bench {

Team::Team(int n_threads) {
    const auto n = static_cast<size_t>(n_threads);
    try {
        threads_.reserve(n - 1);
        for (size_t thread = 1; thread < n; ++thread) threads_.emplace_back([=, this] { serve(thread); });
    } catch (...) { // no more threads to be had
        end_threads();
        throw;
    }
}

Team::~Team() {
    end_threads();
}

void Team::end_threads() {
    ends_ = true;
    ++n_works_;
    n_works_.notify_all();
    for (std::thread &thread : threads_) thread.join();
}

void Team::serve(size_t thread) {
    for (uint32_t n_seen = 0;;) {
        n_works_.wait(n_seen);
        n_seen = n_works_;
        if (ends_) return;
        (*work_)(thread);
        if (--n_busy_ == 0) n_busy_.notify_one();
    }
}

void Team::run(const std::function<void(size_t thread)> &work) {
    work_ = &work;
    n_busy_ = static_cast<uint32_t>(threads_.size());
    ++n_works_;
    n_works_.notify_all();
    work(0);
    for (uint32_t n_busy = n_busy_; n_busy != 0; n_busy = n_busy_) n_busy_.wait(n_busy);
}

} // namespace bench
