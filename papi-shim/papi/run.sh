#!/bin/sh
# SPDX-License-Identifier: MIT OR GPL-2.0-only
# Runs PAPI's tests in the guest, from the directory above theirs, where they expect it:
#   run.sh SECONDS TEST...
# Leaves what each prints in /out/TEST.log and its exit status behind it.
limit=$1
shift
cd /work/papi || exit 1
PATH=./ctests:$PATH
LD_LIBRARY_PATH=/work/papi/lib
# A vCPU that spins takes the time of the one it waits for.
OMP_WAIT_POLICY=passive
export PATH LD_LIBRARY_PATH OMP_WAIT_POLICY
for test in "$@"; do
	tries=1
	# It attaches without waiting until its child has stopped, and says SKIPPED if that was too soon.
	[ "$test" = attach2 ] && tries=5
	while [ $tries -gt 0 ]; do
		timeout -k 5 "$limit" "$test" >"/out/$test.log" 2>&1 </dev/null
		status=$?
		grep -q SKIPPED "/out/$test.log" || break
		tries=$((tries - 1))
	done
	echo "exit status $status" >>"/out/$test.log"
	echo "$test: $status"
done
