#!/bin/sh
# SPDX-License-Identifier: MIT OR GPL-2.0-only
# Runs every program of /work in the guest; /out gets what each says and its exit status.

check() {
	name=$1
	shift
	"$@" >"/out/$name" 2>&1
	echo "exit status $?" >>"/out/$name"
}

# What perfex counts of a program is what the program executes, and it ends as the program does.
perfex_counts() {
	perfex -i | grep -q '^cpu_nrctrs' || return 1
	perfex -l | grep -q -e INSTRUCTIONS_RETIRED -e RETIRED_INSTRUCTIONS || return 1
	perfex -e 0x4100c0@1 -e 0x41003c -o /tmp/counts sh -c 'exit 7'
	[ $? = 7 ] || return 1
	cat /tmp/counts
	awk '/4100c0@0x1/ && $NF > 100000 { good++ } /^tsc/ && $NF > 0 { good++ }
		END { exit good != 2 }' /tmp/counts || return 1
	! perfex -e 0x6100c0 true
}

for program in /work/*; do
	[ "$program" = /work/all.sh ] || check "${program##*/}" timeout 60 "$program"
done
check perfex perfex_counts
