#!/bin/sh
# Runs a program on a standalone Spark cluster: MASTER=spark://host:7077 deploy/spark/submit.sh PROGRAM ARGS...
#
# PROGRAM is your script, for example reminders.py beside this file, or wheel_sched_job.py, which runs `wheel-sched`.
# PYTHON names the interpreter. Every node needs it at the same path, with `wheel-sched[spark]`, and must reach the store
# by the address in ARGS. SUBMIT_OPTIONS has further options of spark-submit.
set -eu
: "${MASTER:?expected MASTER=spark://host:port of the cluster; nothing was started}"
: "${1:?expected a program to run; nothing was started}"
python=${PYTHON:-python3}
spark_home=$("$python" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
PYSPARK_PYTHON=$python PYSPARK_DRIVER_PYTHON=$python
export PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON
# shellcheck disable=SC2086  # options are words
exec "$spark_home/bin/spark-submit" --master "$MASTER" ${SUBMIT_OPTIONS:-} "$@"
