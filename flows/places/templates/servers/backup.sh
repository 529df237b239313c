#!/bin/sh
# backup.sh save FOLDER | restore FOLDER      both servers, with the environment of servers.env; docs/operations.md
# The order matters: what a database names is in the bucket that is copied after it. To restore, stop the servers first.
set -eu
case ${1:-} in save | restore) ;; *) false ;; esac && [ $# = 2 ] || {
    echo "usage: backup.sh save|restore FOLDER" >&2
    exit 78
}
action=$1 folder=$2
users=${MLFLOW_USERS:-/var/lib/mlflow/basic_auth.db}
: "${PREFECT_SERVER_DATABASE_CONNECTION_URL:?is in servers.env}" "${MLFLOW_BACKEND_STORE_URI:?is in servers.env}"
prefect=postgresql://${PREFECT_SERVER_DATABASE_CONNECTION_URL#*://}
case $action in
save)
    mkdir -p "$folder"
    pg_dump --format=custom --file="$folder/prefect.dump" "$prefect"
    pg_dump --format=custom --file="$folder/mlflow.dump" "$MLFLOW_BACKEND_STORE_URI"
    python3 -c 'import sqlite3, sys; sqlite3.connect(sys.argv[1]).backup(sqlite3.connect(sys.argv[2]))' "$users" "$folder/basic_auth.db"
    aws s3 sync --only-show-errors --delete "$MLFLOW_ARTIFACTS_DESTINATION" "$folder/artifacts"
    ;;
restore)
    pg_restore --clean --if-exists --no-owner --exit-on-error --dbname="$prefect" "$folder/prefect.dump"
    pg_restore --clean --if-exists --no-owner --exit-on-error --dbname="$MLFLOW_BACKEND_STORE_URI" "$folder/mlflow.dump"
    cp "$folder/basic_auth.db" "$users"
    chown --reference="$(dirname "$users")" "$users"
    aws s3 sync --only-show-errors "$folder/artifacts" "$MLFLOW_ARTIFACTS_DESTINATION"
    ;;
esac
