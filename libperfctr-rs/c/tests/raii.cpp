// SPDX-License-Identifier: MIT OR GPL-2.0-only
// The header for C++. If the argument is "none", nobody counts here.

#include <thread>
#include <type_traits>
#include <vector>

#include "check.h"
#include "perfctr_counts.hpp"

KNOWN_LOOP;

static_assert(!std::is_copy_constructible_v<perfctr::counters>);
static_assert(std::is_nothrow_move_constructible_v<perfctr::counters>);

// Returns the status of the error that is thrown, or that of success.
template <typename Body> static perfctr_status thrown(Body body)
{
	try {
		body();
	} catch (const perfctr::error &error) {
		CHECK(*error.what() != 0);
		return error.status();
	}
	return PERFCTR_STATUS_OK;
}

// Objects begin and end where they should, also when they are moved.
static void lifetimes()
{
	const auto open = [] { perfctr::counters("", PERFCTR_PROVIDER_TSC); };
	{
		perfctr::counters first("", PERFCTR_PROVIDER_TSC);
		CHECK(thrown(open) == PERFCTR_STATUS_OPEN);
		perfctr::counters second(std::move(first));
		CHECK(thrown([&] { first.read(); }) == PERFCTR_STATUS_HANDLE);
		first = std::move(second);
		CHECK(first.read().size() == 0);
		CHECK(thrown([&] { second.stop(); }) == PERFCTR_STATUS_HANDLE);
		std::thread stranger([&] {
			CHECK(thrown([&] { first.read(); }) ==
			      PERFCTR_STATUS_HANDLE);
		});
		stranger.join();
		CHECK(first.event(0).empty());
	}
	CHECK(thrown(open) == PERFCTR_STATUS_OK);
}

// An exception leaves a measurement, and the counters can be used afterwards.
static void exceptions()
{
	perfctr::counters counters("", PERFCTR_PROVIDER_TSC);
	bool caught = false;
	try {
		counters.measure([] { throw std::runtime_error("mine"); });
	} catch (const std::runtime_error &error) {
		caught = std::string(error.what()) == "mine";
	}
	CHECK(caught);
	CHECK(counters.measure([] {}).size() == 0);
	caught = false;
	try {
		static_cast<void>(counters.read()[0]);
	} catch (const std::out_of_range &) {
		caught = true;
	}
	CHECK(caught);
}

static void exact()
{
	perfctr::counters counters(EVENTS);
	CHECK(counters.event(0) == "instructions:u");
	unsigned undisturbed = 0;
	for (unsigned round = 0; round < 100; round++) {
		const auto nothing = counters.measure([] {});
		const auto loop = counters.measure([] { known_loop(nullptr); });
		perfctr::reading spent;
		{
			perfctr::region region(counters, spent);
			work(1000);
		}
		// In the first round the dynamic linker has to find the functions.
		if (round == 0 || nothing.retries() || loop.retries() ||
		    spent.retries())
			continue;
		undisturbed++;
		// The body's own frame is not much, and the loop is called and returns.
		CHECK(loop[0] - nothing[0] >= LOOP_INSTRUCTIONS);
		CHECK(loop[0] - nothing[0] < LOOP_INSTRUCTIONS + 20);
		CHECK(spent[0] > 2000 && spent[0] < 2500);
		CHECK(spent.direct() && spent.end() - spent.begin() == 2);
		CHECK(counters.duration(spent)->count() > 0);
	}
	CHECK(undisturbed > 50);
	counters.stop();
	const auto before = counters.read();
	work(1000);
	CHECK(counters.since(before)[0] == 0);
	counters.start();
	work(1000);
	CHECK(counters.since(before)[0] >= 2000);
	counters.restart();
	CHECK(counters.read()[0] < before[0]);
}

// Returns how often the region of this name was stopped, in all threads.
static std::uint64_t calls(const std::string &name)
{
	std::uint32_t rows;
	std::uint64_t calls = 0;
	perfctr::check(perfctr_region_table(&rows));
	for (std::uint32_t n = 0; n < rows; n++) {
		perfctr_region row;
		perfctr::check(perfctr_region_row(n, &row));
		CHECK(row.region != name || row.open == 0);
		calls += row.region == name ? row.calls : 0;
	}
	return calls;
}

// A region ends with its object, also by an exception.
static void named_regions()
{
	perfctr::check(perfctr_region_events(""));
	std::thread other([] {
		for (int n = 0; n < 2; n++) {
			perfctr::named_region outer("outer");
			perfctr::named_region inner("inner");
		}
		try {
			perfctr::named_region region("outer");
			throw std::runtime_error("mine");
		} catch (const std::runtime_error &) {
		}
		CHECK(thrown([] { perfctr::named_region region(""); }) ==
		      PERFCTR_STATUS_REGION);
	});
	other.join();
	CHECK(calls("outer") == 3 && calls("inner") == 2);
}

int main(int argc, char **argv)
{
	const std::string somebody = argc > 1 ? argv[1] : "";
	named_regions();
	lifetimes();
	exceptions();
	if (somebody == "none") {
		CHECK(thrown([] { perfctr::counters counters(EVENTS); }) ==
		      PERFCTR_STATUS_NO_COUNTERS);
	} else if (somebody.empty()) {
		std::vector<std::thread> threads;
		for (int n = 0; n < 4; n++)
			threads.emplace_back(exact);
		for (auto &thread : threads)
			thread.join();
	}
	return 0;
}
