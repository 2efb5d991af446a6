// The rounds on a machine whose clocks the test turns itself.
#include "harness.h"

#include <doctest/doctest.h>

#include <stdexcept>

using namespace bench;

namespace {

struct Machine {
    Reading now = {100, 50, 7};

    void spend(double wall_s, double cpu_s, int64_t n_preemptions = 0) {
        now.wall_s += wall_s;
        now.cpu_s += cpu_s;
        now.n_preemptions += n_preemptions;
    }
    Probe probe() {
        return [this](Edge) { return now; };
    }
};

Contestant make_contestant(const std::string &name, std::function<void(uint64_t)> run) {
    Contestant contestant;
    contestant.name = name;
    contestant.run = std::move(run);
    return contestant;
}

Limits rounds(int64_t n) {
    Limits limits;
    limits.rounds = n;
    return limits;
}

} // namespace

TEST_CASE("contestants run once untimed, then once a round in an order that rotates, each with a turn of its own") {
    Machine machine;
    std::string order;
    std::vector<uint64_t> turns;
    Case compared;
    for (const char *name : {"a", "b", "c"})
        compared.contestants.push_back(make_contestant(name, [&, name](uint64_t turn) {
            order += name;
            turns.push_back(turn);
            machine.spend(0.001, 0.001);
        }));
    const std::vector<Result> results = run_case(compared, rounds(4), machine.probe());
    CHECK(order == "abc"
                   "abc"
                   "bca"
                   "cab"
                   "abc");
    for (size_t i = 0; i < turns.size(); ++i) CHECK(turns[i] == i);
    REQUIRE(results.size() == 3);
    for (const Result &result : results) {
        CHECK(result.n_kept == 4);
        CHECK(result.n_dropped == 0);
        CHECK(!result.floor_ratio);
        CHECK(!result.baseline_ratio);
    }
}

TEST_CASE("neither the untimed run nor what comes before and after a run is counted") {
    Machine machine;
    int n_runs = 0, n_before = 0, n_after = 0;
    Contestant contestant = make_contestant("a", [&](uint64_t) { machine.spend(n_runs++ == 0 ? 50 : 2, 2); });
    contestant.before = [&] {
        CHECK(n_before++ == n_runs);
        machine.spend(10, 10, 1000);
    };
    contestant.after = [&] {
        CHECK(++n_after == n_runs);
        machine.spend(10, 10, 1000);
    };
    Case compared;
    compared.contestants = {contestant};
    const std::vector<Result> results = run_case(compared, rounds(3), machine.probe());
    CHECK(n_runs == 4);
    CHECK(n_before == 4);
    CHECK(n_after == 4);
    REQUIRE(results[0].seconds);
    CHECK(results[0].seconds->median == doctest::Approx(2));
    CHECK(results[0].n_dropped == 0);
}

TEST_CASE("ratios are medians of ratios within a round, of a machine that slows down") {
    Machine machine;
    double pace = 1;
    Case compared;
    compared.floor = "floor";
    compared.baseline = "slow";
    compared.contestants = {
        make_contestant("floor", [&](uint64_t) { machine.spend(0.001 * pace, 0); }),
        make_contestant("slow",
                        [&](uint64_t) {
                            machine.spend(0.004 * pace, 0);
                            pace *= 3; // what comes after it in the same round is not comparable
                        }),
    };
    // Runs: f1 s1 untimed, then f3 s3 | s9 f27 | f27 s27, where the number is the pace.
    const std::vector<Result> results = run_case(compared, rounds(3), machine.probe());
    REQUIRE(results[1].floor_ratio);
    CHECK(results[1].floor_ratio->n == 3);
    CHECK(results[1].floor_ratio->median == doctest::Approx(0.25));
    CHECK(results[1].floor_ratio->q3 == doctest::Approx(0.5)); // of 1/4, 1/4 and 27/36
    REQUIRE(results[0].baseline_ratio);
    CHECK(results[0].baseline_ratio->median == doctest::Approx(4));
    CHECK(results[0].floor_ratio->median == 1);
    CHECK(results[1].baseline_ratio->median == 1);
}

TEST_CASE("a preempted sample is dropped and counted, and its round left out of the ratios that need it") {
    Machine machine;
    int n_runs = 0;
    Case compared;
    compared.floor = compared.baseline = "a";
    compared.contestants = {
        make_contestant("a", [&](uint64_t) { machine.spend(0.001, 0); }),
        // The untimed run may be disturbed as well; of the rounds, the second is.
        make_contestant("b",
                        [&](uint64_t) {
                            const bool disturbed = n_runs == 0 || n_runs == 2;
                            ++n_runs;
                            machine.spend(disturbed ? 0.015 : 0.002, 0, disturbed);
                        }),
    };
    const std::vector<Result> results = run_case(compared, rounds(5), machine.probe());
    CHECK(results[0].n_kept == 5);
    CHECK(results[1].n_kept == 4);
    CHECK(results[1].n_dropped == 1);
    REQUIRE(results[1].seconds);
    CHECK(results[1].seconds->q3 == doctest::Approx(0.002));
    REQUIRE(results[1].floor_ratio);
    CHECK(results[1].floor_ratio->n == 4);
    CHECK(results[1].floor_ratio->q1 == doctest::Approx(0.5));
    CHECK(results[0].floor_ratio->n == 5);
}

TEST_CASE("where every sample is dropped there are no figures") {
    Machine machine;
    Case compared;
    compared.floor = "a";
    compared.contestants = {
        make_contestant("a", [&](uint64_t) { machine.spend(0.001, 0.001); }),
        make_contestant("b", [&](uint64_t) { machine.spend(0.001, 0.001, 1); }),
    };
    const std::vector<Result> results = run_case(compared, rounds(3), machine.probe());
    CHECK(results[0].seconds);
    CHECK(!results[1].seconds);
    CHECK(!results[1].floor_ratio);
    CHECK(results[1].n_kept == 0);
    CHECK(results[1].n_dropped == 3);
}

TEST_CASE("rounds begin until the seconds are over, untimed work included, and are three at least") {
    Machine machine;
    Case compared;
    compared.contestants = {make_contestant("a", [&](uint64_t) { machine.spend(1, 1); })};
    compared.contestants[0].before = [&] { machine.spend(1, 1); };
    Limits limits;
    limits.seconds = 9;
    CHECK(run_case(compared, limits, machine.probe())[0].n_kept == 5);
    limits.seconds = 0.1;
    CHECK(run_case(compared, limits, machine.probe())[0].n_kept == kMinRounds);
}

TEST_CASE("a floor or baseline that does not take part is a mistake of the mode") {
    Machine machine;
    Case compared;
    compared.contestants = {make_contestant("a", [](uint64_t) {})};
    compared.floor = "b";
    CHECK_THROWS_AS(run_case(compared, rounds(1), machine.probe()), std::logic_error);
    compared.floor = "";
    compared.baseline = "b";
    CHECK_THROWS_AS(run_case(compared, rounds(1), machine.probe()), std::logic_error);
}

TEST_CASE("what a contestant throws comes through") {
    Machine machine;
    Case compared;
    compared.contestants = {make_contestant("a", [](uint64_t) { throw std::runtime_error("broken"); })};
    CHECK_THROWS_WITH(run_case(compared, rounds(1), machine.probe()), "broken");
}

TEST_CASE("one preemption spoils a short sample, one per 20 ms a long one") {
    struct Row {
        double wall_s;
        int64_t n_preemptions;
        bool dropped;
    };
    for (const Row &row : {Row{0.001, 0, false}, Row{0.001, 1, true}, Row{0.019, 1, true}, Row{0.021, 1, false},
                           Row{0.021, 2, true}, Row{1.0, 50, false}, Row{1.0, 51, true}}) {
        CAPTURE(row.wall_s);
        CAPTURE(row.n_preemptions);
        CHECK(was_preempted({0, 0, 0}, {row.wall_s, row.wall_s, row.n_preemptions}, false) == row.dropped);
    }
}

TEST_CASE("work that only computes on one thread is dropped when its CPU time falls short") {
    CHECK(!was_preempted({0, 0, 0}, {0.010, 0.0096, 0}, true));
    CHECK(was_preempted({0, 0, 0}, {0.010, 0.0094, 0}, true));
    CHECK(!was_preempted({0, 0, 0}, {0.010, 0.0094, 0}, false));     // it may have waited
    CHECK(!was_preempted({0, 0, 0}, {0.000010, 0.000006, 0}, true)); // the clocks themselves
}

TEST_CASE("the process's clocks run forward, its CPU clock with its work") {
    const Reading begin = read_process(Edge::begin);
    Reading end = begin;
    volatile uint64_t work = 0;
    while (end.cpu_s - begin.cpu_s < 0.002) {
        for (int i = 0; i < 1000; ++i) work = work + 1;
        end = read_process(Edge::end);
    }
    CHECK(end.wall_s > begin.wall_s);
    CHECK(end.n_preemptions >= begin.n_preemptions);
}
