// SPDX-License-Identifier: MIT OR GPL-2.0-only
// Exact counts of the calling thread in C++17, over perfctr_counts.h.
#ifndef PERFCTR_COUNTS_HPP
#define PERFCTR_COUNTS_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "perfctr_counts.h"

namespace perfctr
{

// The failure of a function of perfctr_counts.h: its status, and its text for people, which says
// what was found and, where that is known, what to do.
class error : public std::runtime_error
{
public:
	error(perfctr_status status, const char *text)
		: std::runtime_error(text), status_(status)
	{
	}

	perfctr_status status() const noexcept
	{
		return status_;
	}

private:
	perfctr_status status_;
};

// Throws the calling thread's last failure unless a function of perfctr_counts.h has succeeded.
inline void check(perfctr_status status)
{
	if (status != PERFCTR_STATUS_OK)
		throw error(status, perfctr_counts_error());
}

// All counters at one moment, or what happened between two moments.
class reading
{
public:
	// A reading of nothing.
	reading() noexcept : raw_{}
	{
	}

	explicit reading(const perfctr_reading &raw) noexcept : raw_(raw)
	{
	}

	// The count of an event, by the order in which the events were named. Throws
	// std::out_of_range.
	std::uint64_t operator[](std::size_t event) const
	{
		if (event >= raw_.events)
			throw std::out_of_range(
				"event " + std::to_string(event) +
				" found, less than " +
				std::to_string(raw_.events) + " expected");
		return raw_.counts[event];
	}

	// The number of events.
	std::size_t size() const noexcept
	{
		return raw_.events;
	}

	const std::uint64_t *begin() const noexcept
	{
		return raw_.counts;
	}

	const std::uint64_t *end() const noexcept
	{
		return raw_.counts + raw_.events;
	}

	// How many attempts to read were disturbed and made again.
	std::uint32_t retries() const noexcept
	{
		return raw_.retries;
	}

	// Whether the counters were read without a system call.
	bool direct() const noexcept
	{
		return raw_.direct != 0;
	}

	// The fields as C has them.
	const perfctr_reading &raw() const noexcept
	{
		return raw_;
	}

private:
	perfctr_reading raw_;
};

// The counters of the thread that makes this object. Only that thread may use it and destroy it.
class counters
{
public:
	// Counts from 0. The events are named as in perfctr_counts_open().
	explicit counters(const std::string &events,
			  perfctr_provider provider = PERFCTR_PROVIDER_ANY,
			  std::uint32_t flags = 0)
		: handle_(nullptr)
	{
		check(perfctr_counts_open(events.c_str(), provider, flags,
					  &handle_));
	}

	counters(counters &&other) noexcept
		: handle_(std::exchange(other.handle_, nullptr))
	{
	}

	counters &operator=(counters &&other) noexcept
	{
		std::swap(handle_, other.handle_);
		return *this;
	}

	counters(const counters &) = delete;
	counters &operator=(const counters &) = delete;

	~counters()
	{
		// What another thread destroys goes on until its own thread ends.
		if (handle_)
			static_cast<void>(perfctr_counts_close(handle_));
	}

	reading read() const
	{
		perfctr_reading raw;
		check(perfctr_counts_read(handle_, &raw));
		return reading(raw);
	}

	// What was counted since an earlier reading, with what the two readings execute themselves.
	reading since(const reading &before) const
	{
		perfctr_reading raw;
		check(perfctr_counts_since(handle_, &before.raw(), &raw));
		return reading(raw);
	}

	// What body() counts, without what the measurement itself does. An exception of the body's
	// is thrown on, and what was counted is lost.
	template <typename Body> reading measure(Body &&body) const
	{
		using Function = std::remove_reference_t<Body>;
		struct call {
			Function *body;
			std::exception_ptr thrown;
		} call = { std::addressof(body), nullptr };
		const auto run = [](void *argument) noexcept {
			auto &the = *static_cast<struct call *>(argument);
			try {
				(*the.body)();
			} catch (...) {
				the.thrown = std::current_exception();
			}
		};
		perfctr_reading raw;
		const auto status =
			perfctr_counts_measure(handle_, run, &call, &raw);
		if (call.thrown)
			std::rethrow_exception(call.thrown);
		check(status);
		return reading(raw);
	}

	// Stops counting. The counts stay.
	void stop()
	{
		check(perfctr_counts_stop(handle_));
	}

	// Goes on counting after a stop.
	void start()
	{
		check(perfctr_counts_start(handle_));
	}

	// Counts the same events from 0.
	void restart()
	{
		check(perfctr_counts_restart(handle_));
	}

	// The name of an event, or "" if there is no such event.
	std::string event(std::uint32_t number) const
	{
		const char *name = perfctr_counts_event(handle_, number);
		return name ? name : "";
	}

	perfctr_facts facts() const
	{
		perfctr_facts facts;
		check(perfctr_counts_facts(handle_, &facts));
		return facts;
	}

	// How long the thread has executed between two readings, or nothing if the frequency of the
	// clock is unknown.
	std::optional<std::chrono::nanoseconds>
	duration(const reading &spent) const
	{
		const std::uint64_t khz = facts().clock_khz;
		if (khz == 0)
			return std::nullopt;
		const std::uint64_t ms = spent.raw().clock / khz;
		const std::uint64_t rest = spent.raw().clock % khz;
		return std::chrono::milliseconds(ms) +
		       std::chrono::nanoseconds(rest * 1000000 / khz);
	}

private:
	perfctr_counters *handle_;
};

// Counts from its making to its end, and stores what was counted in a reading:
//
//	perfctr::reading spent;
//	{
//		perfctr::region region(counters, spent);
//		work();
//	}
class region
{
public:
	// The counters and the reading must outlive the region.
	region(const counters &counters, reading &spent)
		: counters_(counters), spent_(spent), before_(counters.read())
	{
	}

	region(const region &) = delete;
	region &operator=(const region &) = delete;

	// If the counters cannot be read, the reading stays as it was.
	~region()
	{
		try {
			spent_ = counters_.since(before_);
		} catch (const error &) {
		}
	}

private:
	const counters &counters_;
	reading &spent_;
	reading before_;
};

// A named region of the thread that makes this object, from its making to its end. The table of
// regions, which perfctr_region_print_at_exit() prints, has what it counts.
//
//	perfctr::named_region region("sieve");
//
// What the making throws is an error. A region that was stopped by its name before the object ends
// is not stopped again.
class named_region
{
public:
	explicit named_region(std::string name) : name_(std::move(name))
	{
		check(perfctr_region_start(name_.c_str()));
	}

	named_region(const named_region &) = delete;
	named_region &operator=(const named_region &) = delete;

	~named_region()
	{
		static_cast<void>(perfctr_region_stop(name_.c_str()));
	}

private:
	std::string name_;
};

} // namespace perfctr

#endif // PERFCTR_COUNTS_HPP
