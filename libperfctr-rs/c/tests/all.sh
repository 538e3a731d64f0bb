#!/bin/sh
# SPDX-License-Identifier: MIT OR GPL-2.0-only
# Runs every program of /work in the guest; /out gets what each says and its exit status.

check() {
	name=$1
	shift
	timeout 120 "$@" >"/out/$name" 2>&1
	echo "exit status $?" >>"/out/$name"
}

cd /work || exit 1
for program in *exact* *refused* *raii* *regions* page*; do
	check "$program" "./$program"
done
# Without the module nobody counts here.
rmmod perfctr
for program in *refused* *raii* *regions*; do
	check "$program-none" "./$program" none
done
