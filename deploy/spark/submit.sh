#!/bin/sh
# Runs a program on a standalone Spark cluster: MASTER=spark://host:7077 deploy/spark/submit.sh PROGRAM ARGS...
#
# PROGRAM is a script of yours, such as reminders.py beside this file, or wheel_sched_job.py, which is `wheel-sched`
# itself. Every node needs `wheel-sched[spark]` for the Python that is named here, at the same path, and must reach the
# store at the address that the program is given. More options of spark-submit go into SUBMIT_OPTIONS.
set -eu
: "${MASTER:?expected MASTER=spark://host:port of the cluster; nothing was started}"
: "${1:?expected a program to run; nothing was started}"
python=${PYTHON:-python3}
home=$("$python" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
PYSPARK_PYTHON=$python PYSPARK_DRIVER_PYTHON=$python
export PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON
# shellcheck disable=SC2086  # options are words
exec "$home/bin/spark-submit" --master "$MASTER" ${SUBMIT_OPTIONS:-} "$@"
