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
export PATH LD_LIBRARY_PATH
for test in "$@"; do
	timeout -k 5 "$limit" "$test" >"/out/$test.log" 2>&1 </dev/null
	status=$?
	echo "exit status $status" >>"/out/$test.log"
	echo "$test: $status"
done
