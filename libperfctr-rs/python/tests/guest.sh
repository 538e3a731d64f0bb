#!/bin/sh
# SPDX-License-Identifier: MIT OR GPL-2.0-only
# Counts Python in the guest; /out gets what each program says and its exit status.

check() {
	name=$1
	shift
	timeout 120 "$@" >"/out/$name" 2>&1
	echo "exit status $?" >>"/out/$name"
}

# Runs the gated test with so many rounds more, always with a variable of the same length.
gate() {
	name=$1 more=$2
	shift 2
	check "$name" env MORE="$more" setarch -R python3.11 -m pytest -p no:cacheprovider \
		/work/tests/planted.py --perfctr-baseline=/tmp/baseline.json "$@"
}

export PYTHONPATH=/work/site PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1
mkdir /tmp/empty && cd /tmp/empty || exit 1
check page python3.11 /work/page.py
check regions python3.11 /work/regions.py
check exact setarch -R python3.11 /work/tests/exact.py
gate update 000 --perfctr-update
gate same 000
gate again 000
# 300 rounds more in 50,000.
gate worse 300
# Without the module nobody counts here.
rmmod perfctr
gate nobody 000
