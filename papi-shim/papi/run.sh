#!/bin/sh
# SPDX-License-Identifier: MIT OR GPL-2.0-only
# Runs PAPI's tests in the guest, from the directory above theirs, where they expect it:
#   run.sh SECONDS LOAD TEST...
# beside LOAD programs that only loop. Leaves what each test prints in /out/TEST.log, with its exit
# status behind it.
limit=$1
load=$2
shift 2
cd /work/papi || exit 1
PATH=./ctests:$PATH
LD_LIBRARY_PATH=/work/papi/lib
# The dynamic linker's work is not the program's.
LD_BIND_NOW=1
# What the tests need besides, and nothing else here does.
preloaded=$(ls /work/papi/preloaded.so 2>/dev/null)
# A vCPU that spins takes the time of the one it waits for, and there are two processors.
OMP_WAIT_POLICY=passive
OMP_NUM_THREADS=2
export PATH LD_LIBRARY_PATH LD_BIND_NOW OMP_WAIT_POLICY OMP_NUM_THREADS
# With Debian's setting (3) PAPI assumes that even root may not use perf events.
echo -1 >/proc/sys/kernel/perf_event_paranoid
# The kernel must not throttle sampling because an emulated CPU takes long for its interrupts.
echo 0 >/proc/sys/kernel/perf_cpu_time_max_percent

while [ "$load" -gt 0 ]; do
	while :; do :; done &
	load=$((load - 1))
done
for test in "$@"; do
	tries=1
	again=SKIPPED
	case $test in
	# They attach without waiting until their child has stopped, and skip themselves if that was too
	# soon.
	attach2 | attach3) tries=5 ;;
	# They want as many overflows in every second, even if the emulator had no CPU in one of them.
	*_overflow) tries=3 again='Interrupt rate changed' ;;
	esac
	# It takes hours unless it is asked to be quiet; then it skips itself.
	quiet=
	[ "$test" = timer_overflow ] && quiet=TESTS_QUIET
	turn=1
	begin=$(date +%s)
	while :; do
		timeout -k 5 "$limit" env "LD_PRELOAD=$preloaded" "$test" $quiet >"/out/$test.log" 2>&1 </dev/null
		status=$?
		[ $turn -lt $tries ] && grep -q "$again" "/out/$test.log" || break
		echo "    $test said '$again' and is run again"
		# Kept: xtask counts these files.
		mv "/out/$test.log" "/out/$test.log.$turn"
		turn=$((turn + 1))
	done
	echo "exit status $status" >>"/out/$test.log"
	echo "    $test ended with $status after $(($(date +%s) - begin)) s"
done
