#!/bin/sh
# What continuous integration runs: the specs under Lua 5.4 and under gpulua, each with a report for JUnit's readers.
# GPULUA_TEST_DEVICES=cpu,cuda says which devices have to be there; unless said, CUDA is skipped where it is not.
set -u
cd "$(dirname "$0")" || exit 1
mkdir -p reports
failed=0
GPULUA_TEST_JUNIT=reports/lua.xml busted --run=default || failed=1
GPULUA_TEST_JUNIT=reports/gpulua.xml busted --run=gpulua || failed=1
exit $failed
